"""What a server says over a WebSocket, frame by frame (RFC 6455 section 5): payloads are looked through, and nothing of a
message is kept back once it is whole. No extension is in use where this is: fields.py and answering.py have taken the offer away.

A message is looked through as one, however it is cut into frames; control frames that come in its midst keep their place.
Same length out as in. It must never let a payload pass that its scrubber has not seen.
"""

from __future__ import annotations

from collections import deque

from ringfence.host.egress.scrub import Scrubber

_FINAL, _CONTROL, _MASKED, _RESERVED = 0x80, 0x08, 0x80, 0x70
_SHORT, _TWO = 125, 126  # lengths of a payload: itself, or in two bytes behind it; above, in eight
_MOST_BEHIND = (
    64 << 10
)  # bytes of frames that wait for the rest of what may be a secret: nobody sends so many empty ones


class Frames:
    """tunnel.Change. ConnectionError: what comes is no frame that a client would take."""

    def __init__(self, scrubber: Scrubber) -> None:
        self._scrubber = scrubber
        self._head = bytearray()  # of the frame whose payload is read, or as much of one as has come
        self._left: int | None = None  # of its payload; None: its head is not whole
        self._told = bytearray()  # the payload of a control frame
        self._out: list[bytes] = []
        self._behind: deque[tuple[int, bytes]] = deque()  # what follows so many bytes of payload, and waits with them
        self._waiting = 0  # bytes of it
        self._fed = self._given = 0  # bytes of payload

    def feed(self, data: bytes) -> bytes:
        at = 0
        while at < len(data):
            if self._left is None:
                at += self._headed(data, at)
            else:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                self._paid(piece)
            if self._left == 0:
                self._over()
        return self._taken()

    def end(self) -> bytes:
        self._give(self._scrubber.end())
        self._put(self._scrubber.whole(bytes(self._told)))
        if self._left is None:
            self._put(bytes(self._head))
        return self._taken()

    def _headed(self, data: bytes, at: int) -> int:
        """Bytes that it took, of a head that is whole with them or not."""
        took = 0
        while at + took < len(data) and (missing := _size(self._head) - len(self._head)) > 0:
            piece = data[at + took : at + took + missing]
            self._head += piece
            took += len(piece)
        if len(self._head) == _size(self._head):
            self._left = _length(self._head)
            self._put(bytes(self._head))
        return took

    def _paid(self, piece: bytes) -> None:
        if self._head[0] & _CONTROL:
            self._told += piece
        else:
            self._fed += len(piece)
            self._give(self._scrubber.feed(piece))

    def _over(self) -> None:
        first = self._head[0]
        self._left = None
        self._head.clear()
        if first & _CONTROL:
            self._put(self._scrubber.whole(bytes(self._told)))
            self._told.clear()
        elif first & _FINAL:
            self._give(self._scrubber.end())

    def _put(self, data: bytes) -> None:
        """Behind all payload that has come."""
        if self._given == self._fed:
            self._out.append(data)
            return
        self._behind.append((self._fed, data))
        self._waiting += len(data)
        if self._waiting > _MOST_BEHIND:
            raise ConnectionError("frames without end inside of one message")

    def _give(self, payload: bytes) -> None:
        at = 0
        end = self._given + len(payload)
        while self._behind and self._behind[0][0] <= end:
            place, data = self._behind.popleft()
            cut = at + place - self._given
            self._out += (payload[at:cut], data)
            self._waiting -= len(data)
            self._given, at = place, cut
        self._out.append(payload[at:])
        self._given = end

    def _taken(self) -> bytes:
        out = b"".join(self._out)
        self._out.clear()
        return out


def _size(head: bytearray) -> int:
    """Of the whole head, as far as what has come of it says. ConnectionError."""
    if len(head) < 2:
        return 2
    if head[1] & _MASKED or head[0] & _RESERVED:
        raise ConnectionError("a server's frame that is masked, or of an extension")
    length = head[1] & ~_MASKED
    if head[0] & _CONTROL and (length > _SHORT or not head[0] & _FINAL):
        raise ConnectionError("a control frame that is too long, or cut")
    return 2 + (0 if length <= _SHORT else 2 if length == _TWO else 8)


def _length(head: bytearray) -> int:
    short = head[1] & ~_MASKED
    return short if short <= _SHORT else int.from_bytes(head[2:], "big")
