"""The sockets of a box's way out: nobody but their holder has them, and the spawner opens them in no other network."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ringfence.spawner import protocol
from tests.support import spawner_rig
from tests.support.spawner_rig import Refusal, Rig

pytestmark = pytest.mark.root
A, B = "a" * 16, "b" * 16
BIND = 'python3 -c \'import socket; s = socket.socket(); s.bind(("127.0.0.1", {})); s.listen(); print("bound")\''
PACKETS = 'python3 -c \'import socket; s = socket.socket(socket.AF_INET{}, socket.SOCK_DGRAM); s.bind(("", 53)); print("bound")\''
CONNECT = "python3 -c 'import socket; print(socket.create_connection((\"{}\", {}), 5))'"


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = spawner_rig.make()
    made.start()
    for box in (A, B):
        made.provision(box)
        made.start_box(box)
    yield made
    made.clean()


def opened(rig: Rig, stack: ExitStack, box: str, port: int) -> list[socket.socket]:
    _, fds = rig.ask_fds(protocol.Listen(box, port))
    return [stack.enter_context(socket.socket(fileno=fd)) for fd in fds]


def refused(rig: Rig, request: protocol.Request) -> str:
    with pytest.raises(Refusal) as caught:
        rig.ask_fds(request)
    return caught.value.code


@pytest.mark.parametrize("port", [100, 1021, 1022, 53, 80])
def test_nothing_in_the_box_takes_a_port_first(rig: Rig, port: int) -> None:
    assert "denied" in rig.shell(A, BIND.format(port))["err"]
    assert "bound" in rig.shell(A, BIND.format(port + 1024))["out"]  # control: it is the number
    for family in ("", "6"):
        assert "denied" in rig.shell(A, PACKETS.format(family))["err"]


def test_nothing_in_the_box_gets_hold_of_one_that_is_open(rig: Rig) -> None:
    with ExitStack() as stack:
        opened(rig, stack, A, 0)
        held = rig.shell(A, "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c socket; cat /proc/net/tcp | wc -l")[
            "out"
        ].split()
        assert int(held[1]) == 3  # control: both are listening in there, and the headline
        again = "python3 -c 'import socket; s = socket.socket(); s.setsockopt(1, 15, 1); s.bind((\"127.0.0.1\", 1022))'"
        assert "denied" in rig.shell(A, again)["err"]  # SO_REUSEPORT: a second one would get half the connections


def test_another_boxs_network_does_not_lead_there(rig: Rig) -> None:
    with ExitStack() as stack:
        (proxy,) = opened(rig, stack, A, 200)
        assert "efused" in rig.shell(B, CONNECT.format("127.0.0.1", 200))["err"]
        assert "efused" in rig.shell(B, CONNECT.format("10.0.0.1", 200))["err"]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", 200), 5)  # nor does the host's
        assert "raddr" in rig.shell(A, CONNECT.format("127.0.0.1", 200))["out"]  # control
        (own,) = opened(rig, stack, B, 200)  # the same port of another box is another one
        assert "raddr" in rig.shell(B, CONNECT.format("127.0.0.1", 200))["out"]
        for listener, expected in ((proxy, 1), (own, 1)):
            assert waiting(listener) == expected


def waiting(listener: socket.socket) -> int:
    """Connections that wait in it."""
    count = 0
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


@pytest.mark.parametrize("port", [-1, 1, 22, 53, 99, 1022, 1023, 1024, 65536, "200", 200.0, True, None, [200]])
def test_other_ports_are_no_requests(rig: Rig, port: object) -> None:
    assert rig.channel is not None
    rig.channel.send(json.dumps({"id": 5, "op": "listen", "box": A, "port": port}).encode())
    reply, fds = rig.receive()
    assert reply["error"]["code"] == "bad_request" and not fds


def test_only_the_network_that_the_box_was_given(rig: Rig) -> None:
    """live.json that names another process, as if a wall before had failed: the host's network is never entered."""
    path = rig.home / "boxes" / A / "live.json"
    good = json.loads(path.read_text())
    with subprocess.Popen(["sleep", "60"]) as stranger:
        fields = Path(f"/proc/{stranger.pid}/stat").read_text().rpartition(")")[2].split()
        pidfd = os.pidfd_open(stranger.pid)
        named = {"pid": stranger.pid, "start_time": int(fields[19]), "pidfd_inode": os.fstat(pidfd).st_ino}
        os.close(pidfd)
        for change in (
            {"pid": stranger.pid},  # a number that was given away again
            {"start_time": good["identity"]["start_time"] + 1},
            {"boot_id": "0" * 36},
            named,  # a process that is there, in another network
        ):
            path.write_text(json.dumps(good | {"identity": good["identity"] | change}))
            assert refused(rig, protocol.Listen(A, 200)) == "refused", change
        stranger.kill()
    path.write_text(json.dumps(good))
    with ExitStack() as stack:
        opened(rig, stack, A, 200)  # control


def test_a_box_of_another_installation_or_of_none(rig: Rig) -> None:
    path = rig.home / "boxes" / A / "box.json"
    good = path.read_text()
    path.write_text(json.dumps(json.loads(good) | {"installation": "z" * 16}))
    pem = spawner_rig.CERTIFICATE
    for request in (protocol.Listen(A, 0), protocol.Worker(A), protocol.EndWorker(A), protocol.Trust(A, pem)):
        assert refused(rig, request) == "refused", request
    path.write_text(good)
    assert refused(rig, protocol.Listen("c" * 16, 0)) == "not_found"
    rig.ask(protocol.Stop(A))
    assert refused(rig, protocol.Listen(A, 0)) == "refused"


def test_without_the_way_back_the_spawner_ends() -> None:
    """A spawner that stayed in a box's network would serve the next box from there."""
    lost = spawner_rig.make(changes={"spawner/listeners.py": stays_away})
    lost.start()
    process = lost.process
    try:
        assert process is not None
        lost.provision(A)
        lost.start_box(A)
        assert lost.channel is not None
        lost.send(protocol.Listen(A, 0))
        assert lost.channel.recv(100) == b"" and process.wait(20) == 70
        lost.stop()
        lost.start()
        assert lost.ask(protocol.Observe(A))["state"] == "running"  # control: it served until then, and its boxes go on
    finally:
        lost.clean()


def stays_away(text: str) -> str:
    """The descriptor of the spawner's own network is a closed one when it goes back."""
    old = "    with network.inside(namespace):\n"
    assert text.count(old) == 1
    return text.replace(old, old + "        os.closerange(namespace + 1, 4096)\n")
