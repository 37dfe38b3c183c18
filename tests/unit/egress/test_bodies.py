"""The body of a request whose beginning is waited for no longer: all of it is there still. No sockets."""

from __future__ import annotations

import pytest

from ringfence.host.egress import bodies, head
from ringfence.host.egress.client import Client
from ringfence.host.egress.configuration import Bounds

HEAD = b"POST / HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("seconds", [0.0, 30.0], ids=["at once", "control"])
@pytest.mark.parametrize("count", [255, 256, 257, 1000])
async def test_a_body_of_many_small_chunks_is_whole(
    count: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is over at the first moment at which it can be: framed anew, nobody would notice what is missing."""
    monkeypatch.setattr(bodies, "_HOLD_SECONDS", seconds)
    sent = bytes(n % 251 for n in range(count))
    box = Client(Bounds())
    box.pending += b"".join(b"1\r\n%c\r\n" % byte for byte in sent) + b"0\r\n\r\n"
    upload = bodies.Upload(head.request(HEAD, Bounds()), box, 1 << 20)
    got = b"".join(await upload.beginning())
    while piece := await upload.next():
        got += piece
    assert got == sent and upload.taken == count
