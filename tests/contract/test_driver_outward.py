"""What the bubblewrap driver does for the way out, with a real spawner, box, guest and template."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from ringfence.host.drivers.spawner_client import Answer
from ringfence.host.kernel.boxes import BoxKind
from ringfence.host.kernel.errors import Conflict, Failed, NotFound, Refused
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.outward.listeners import FIXED_PORTS
from ringfence.host.kernel.outward.ports import Outlets
from tests.support import spawner_rig
from tests.support.driver_stage import BOX, command, own_installation, stage

__all__ = ["own_installation"]
pytestmark = pytest.mark.root
SO_ORIGINAL_DST = 80
CALL = "import socket; print(socket.create_connection(('192.0.2.7', 4321), 10).recv(9))"


async def test_listeners_worker_and_trust() -> None:
    async with stage(outward=True) as s:
        outlets: Outlets = s.driver
        with pytest.raises(NotFound):
            await outlets.listen(BOX, 0)
        await s.driver.provision(BOX, BoxKind.HOME)
        await outlets.trust(BOX, spawner_rig.CERTIFICATE)
        with pytest.raises(Refused, match="does not run"):
            await outlets.worker(BOX)
        link = await s.up()
        listeners = await outlets.listen(BOX, 0) + await outlets.listen(BOX, 300)
        held = [socket.socket(fileno=one.fd) for one in listeners]
        assert {one.kind for one in listeners} == {*FIXED_PORTS, "proxy"}
        for one, sock in zip(listeners, held, strict=True):
            assert sock.getsockname()[1] == one.port and not os.get_inheritable(one.fd)
        with pytest.raises(Conflict, match="port 300"):
            await outlets.listen(BOX, 300)
        transparent = held[0]
        started = await link.spawn("out/1", command("/usr/bin/python3", "-c", CALL))
        transparent.settimeout(20)
        with transparent.accept()[0] as connection:
            raw = connection.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
            assert (socket.inet_ntoa(raw[4:8]), struct.unpack("!H", raw[2:4])[0]) == ("192.0.2.7", 4321)
            connection.send(b"through")
        assert b"".join([data async for _, data in started.output()]) == b"b'through'\n"
        with socket.socket(fileno=await outlets.worker(BOX)) as control:
            control.settimeout(20)
            assert control.family == socket.AF_UNIX and control.type == socket.SOCK_SEQPACKET
            assert b"ready" in control.recv(1000)
            await outlets.end_worker(BOX)
            assert control.recv(1000) == b""
        for sock in held:
            sock.close()
        jail = BoxId("jailjailjailjail")
        await s.driver.provision(jail, BoxKind.SKILL)
        with pytest.raises(Refused, match="has no way out"):
            await outlets.trust(jail, spawner_rig.CERTIFICATE)


@pytest.mark.parametrize("body", [{}, {"kinds": []}, {"kinds": ["proxy", "dns_udp"]}, {"kinds": ["unheard"]}])
async def test_sockets_of_a_reply_that_is_none_are_closed(
    monkeypatch: pytest.MonkeyPatch, body: dict[str, list[str]]
) -> None:
    """Nobody else would have them. Control: those of one that is are the caller's."""
    async with stage(outward=True) as s:
        replies: list[Answer] = []

        async def ask(request: object) -> Answer:
            ends = socket.socketpair()
            replies.append(Answer(dict(body), (ends[0].detach(),)))
            ends[1].close()
            return replies[-1]

        monkeypatch.setattr(s.driver._client, "ask", ask)
        with pytest.raises(Failed):
            await s.driver.listen(BOX, 0)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(replies[0].fds[0])
        body.clear()
        body["kinds"] = ["dns_udp"]
        (made,) = await s.driver.listen(BOX, 0)
        os.close(made.fd)
        monkeypatch.undo()
