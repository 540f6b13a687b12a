"""An OpenAI-compatible HTTP server over this library's model: `python -m mtp serve`.

Something real for `mtp.remote` to measure where no GPU is at hand: endpoints, streaming and counters are vLLM's.
"""
