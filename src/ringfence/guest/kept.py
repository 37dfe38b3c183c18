"""What is kept of a long output: its head and its tail, and how much went missing between. Pure."""

HEAD = 64 * 1024
TAIL = 192 * 1024
"""256 KiB together: two streams in base64 are 683 KiB, which fits in one frame of 1 MiB."""


class Kept:
    """Memory: at most HEAD + 2 * TAIL, whatever is added."""

    __slots__ = ("_head", "_tail", "total")

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = HEAD - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * TAIL:  # cut rarely: each byte is moved at most once for each that is added
            del self._tail[:-TAIL]

    def parts(self) -> tuple[bytes, bytes, int]:
        """(head, tail, bytes dropped between them)."""
        tail = bytes(self._tail[-TAIL:])
        return bytes(self._head), tail, self.total - len(self._head) - len(tail)
