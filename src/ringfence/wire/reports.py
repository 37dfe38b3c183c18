"""Reports: what a guest says that must not be lost. Numbers and acknowledgements. No I/O.

A report lives longer than a connection: it is kept until the host has acknowledged it, and sent again after each new
hello. The receiving end must never act on the same number of the same guest twice.
"""

from ringfence.wire.framing import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_KEPT = 4 * 1024 * 1024
"""Bytes of reports without acknowledgement, above which a guest stops reading what its commands write."""


class Unacknowledged:
    """The guest's end: numbers reports from 1 and keeps them."""

    __slots__ = ("_frames", "_next", "size")

    def __init__(self) -> None:
        self._frames: dict[int, bytes] = {}  # in order of their numbers
        self._next = 1
        self.size = 0  # bytes kept

    @property
    def full(self) -> bool:
        return self.size > MAX_KEPT

    def add(self, method: str, params: "dict[str, Any]") -> tuple[int, bytes]:
        """(number, frame). LocalProtocolError: cannot be said."""
        number = self._next
        frame = encode({"m": method, "p": params, "seq": number})
        self._next += 1
        self._frames[number] = frame
        self.size += len(frame)
        return number, frame

    def acknowledge(self, numbers: "list[int]") -> list[int]:
        """Forgets them; those that were kept until now. An unknown number is nothing: it was acknowledged before."""
        gone = []
        for number in numbers:
            frame = self._frames.pop(number, None)
            if frame is not None:
                self.size -= len(frame)
                gone.append(number)
        return gone

    def frame(self, number: int) -> bytes | None:
        """The frame of one report that is still kept."""
        return self._frames.get(number)

    def frames(self) -> list[bytes]:
        """All that are kept, oldest first."""
        return list(self._frames.values())
