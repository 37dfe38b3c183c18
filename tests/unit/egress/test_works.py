"""Whether a connection that was kept can carry another request."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from ringfence.host.egress.works import Link


@pytest.mark.parametrize("what", ["", "end", "error", "closing", "bytes"])
async def test_what_a_kept_connection_is_good_for(what: str) -> None:
    reader = asyncio.StreamReader()
    if what == "end":
        reader.feed_eof()
    elif what == "error":  # its far end went with bytes unread: no end comes
        reader.set_exception(ConnectionResetError())
    elif what == "bytes":
        reader.feed_data(b"HTTP/1.1 200 OK")
    writer = SimpleNamespace(is_closing=lambda: what == "closing")
    assert Link(reader, writer, lambda _: None).good == (not what)  # type: ignore[arg-type]
