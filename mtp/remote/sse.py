"""Server-sent events (WHATWG HTML, section 9.2), as far as OpenAI's streams use them: the data of each event."""

from __future__ import annotations

from collections.abc import AsyncIterator


async def event_data(parts: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """The `data` of each event of a byte stream. Comments and other fields are skipped.

    Lines end at a line feed only (with or without a carriage return): str.splitlines would also cut at U+2028 and the
    like, which may stand inside JSON. An event that the stream's end cuts off is not given, as the standard says.
    """
    pending = b""
    data: list[str] = []
    async for part in parts:
        *lines, pending = (pending + part).split(b"\n")
        for line in lines:
            text = line.removesuffix(b"\r").decode("utf-8", errors="replace")
            if not text:
                if data:
                    yield "\n".join(data)
                data = []
            elif text.startswith("data:"):
                data.append(text[5:].removeprefix(" "))
