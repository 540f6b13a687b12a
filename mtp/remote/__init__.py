"""The benchmark against running OpenAI-compatible servers: `python -m mtp bench --server URL --baseline URL`."""
