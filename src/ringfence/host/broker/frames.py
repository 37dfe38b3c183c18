"""A frame of a box before anything parses it. Pure. A frame that would make too much of itself is a broken rule."""

from __future__ import annotations

from ringfence.host.kernel.json_bounds import FRAME, beyond
from ringfence.wire.framing import RemoteProtocolError


def check_frame(frame: bytes) -> None:
    """RemoteProtocolError. 1 MiB takes at most 20 ms, and 2 ms when it is refused for what it mostly is."""
    much = beyond(frame, FRAME)
    if much:
        raise RemoteProtocolError(f"a frame with {much}")
