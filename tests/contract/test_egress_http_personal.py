"""Connections to a server that somebody has proved himself on (NTLM, Negotiate) are nobody else's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.egress_rig import reply, request, rig
from tests.support.egress_upstream import Arrived, answer


@pytest.mark.parametrize(
    ("sent", "said", "connections"),
    [
        (["Authorization: Negotiate abc"], [], 2),
        (["Authorization: NTLM abc"], [], 2),
        ([], ["WWW-Authenticate: Basic realm=x, NTLM"], 2),
        (["Authorization: Bearer abc"], ["WWW-Authenticate: Basic realm=x"], 1),  # the control
    ],
)
async def test_they_are_not_kept(tmp_path: Path, sent: list[str], said: list[str], connections: int) -> None:
    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(answer("200 OK", b"ok", *said))
        return True

    async with rig(tmp_path) as way:
        way.upstream.handler = handler
        reader, writer = await way.tunnel()
        for _ in range(2):
            writer.write(request("GET", "/", *sent))
            assert (await reply(reader)).status == 200
        assert way.upstream.connections == connections
