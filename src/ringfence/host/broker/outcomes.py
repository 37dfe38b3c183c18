"""What a guest says of the end of a command, checked for sense and turned into the kernel's noun. Pure.

The shape has been validated. A box's word is evidence for nothing but its own commands; it must still never be able to
say what cannot be: more output than it may keep, numbers that do not add up, a signal that does not exist.
"""

from __future__ import annotations

import binascii

from ringfence.host.kernel.ports import Kept, Outcome
from ringfence.wire import messages
from ringfence.wire.framing import RemoteProtocolError

HEAD_BYTES = 64 * 1024
TAIL_BYTES = 192 * 1024
_MAX_MESSAGE = 4096  # what exec said; a path is at most 4096 bytes and gets cut


def outcome(ended: messages.CmdEnded) -> Outcome:
    """RemoteProtocolError: it cannot have been like this."""
    if ended.code is not None and not 0 <= ended.code <= 255:
        raise RemoteProtocolError("cmd.ended: no such exit status")
    if ended.signal is not None and not 1 <= ended.signal <= 64:
        raise RemoteProtocolError("cmd.ended: no such signal")
    if ended.duration_ms < 0 or any(pid < 1 for pid in ended.left):
        raise RemoteProtocolError("cmd.ended: a negative number")
    return Outcome(
        code=ended.code,
        signal=ended.signal,
        reason=ended.reason,
        message=ended.message[:_MAX_MESSAGE],
        left=tuple(ended.left),
        duration_ms=ended.duration_ms,
        stdout=kept(ended.stdout),
        stderr=kept(ended.stderr),
    )


def lost(reason: str) -> Outcome:
    """The outcome of a command whose box, or whose memory of it, is gone. What it did is not known."""
    return Outcome(code=None, signal=None, reason="box_lost", message=reason, left=(), duration_ms=0)


def kept(stream: messages.Kept | None) -> Kept | None:
    if stream is None:
        return None
    head, tail = decode(stream.head_b64, HEAD_BYTES), decode(stream.tail_b64, TAIL_BYTES)
    if stream.dropped < 0 or stream.total != len(head) + len(tail) + stream.dropped:
        raise RemoteProtocolError("cmd.ended: the bytes of a stream do not add up")
    return Kept(head, tail, stream.total, stream.dropped)


def decode(text: str, most: int) -> bytes:
    """The bytes of strict base64. RemoteProtocolError: it is none, or holds more than `most` bytes."""
    try:
        data = binascii.a2b_base64(text, strict_mode=True) if text else b""
    except (ValueError, UnicodeError):
        raise RemoteProtocolError("data that is not base64") from None
    if len(data) > most:
        raise RemoteProtocolError(f"data of {len(data)} bytes; the limit is {most}")
    return data
