"""Does this piece of an event stream complete the response? Judged on raw bytes, in a microsecond.

An SSE field begins at the start of a line, and JSON cannot hold a raw line break, so no text that a model writes can
look like these. A stream that ends by its connection alone is for the caller to notice. Pure.
"""

import re

# The line that a terminal event of each dialect has. [DONE] is complete with its line, the others with a blank line.
_TERMINAL = re.compile(
    rb"(?:^|[\r\n])(?:"
    rb"data: ?(?:(\[DONE\]) *[\r\n]|\{\"type\": ?\"(?:message_stop|response\.(?:completed|incomplete|failed))\")"
    rb"|event: ?(?:message_stop|response\.(?:completed|incomplete|failed)) *[\r\n])"
)
# How the chunks of OpenAI's dialects begin: vLLM, SGLang, llama.cpp. No terminal event of any dialect does.
_CHUNK = (b'data: {"id"', b'data: {"choices"')
_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r")
# Of the pieces before: a read may cut the terminal line in two.
_TAIL_BYTES = 64


class TerminalWatch:
    """Feed it every piece in order, but for those that `passes` lets by."""

    __slots__ = ("_ending", "_tail", "plain")

    def __init__(self) -> None:
        self.plain = True  # the next piece begins at the start of a line, and none before it was terminal
        self._tail = b"\n"  # of the pieces before, where one of them ended within a line
        self._ending = False  # the terminal line was seen, its blank line not yet

    def passes(self, data: bytes) -> bool:
        """Whether a piece that is not empty cannot be part of an end. Nearly every piece is a whole event like that."""
        if not self.plain or data[-1] != 10:
            return False
        # One event of one line, as engines send them: only its beginning could make it terminal.
        if data.startswith(_CHUNK) and data.find(b"\n") >= len(data) - 2 and b"\r" not in data:
            return True
        return b"[DONE]" not in data and b"message_stop" not in data and b"response." not in data

    def ends_with(self, data: bytes) -> bool:
        """Whether the response is complete with this piece. Call no more once it is."""
        seen = self._tail + data
        if not self._ending:
            found = _TERMINAL.search(seen)
            if found is None:
                self.plain = data[-1:] == b"\n"
                self._tail = b"\n" if self.plain else seen[-_TAIL_BYTES:]
                return False
            if found[1] is not None:
                return True
            self.plain, self._ending = False, True
            # From the end of that line on: a blank line before it ended another event.
            seen = seen[found.end() - 1 :]
        self._tail = seen[-3:]
        return _BLANK_LINE.search(seen) is not None
