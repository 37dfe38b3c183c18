"""Who is at the far end: the decision over facts, and the facts of this very process."""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import asdict, replace

import pytest

from ringfence.host.drivers import identity
from ringfence.host.drivers.identity import Peer
from ringfence.spawner.protocol import Identity

EXPECTED = Identity(pid=500, start_time=77, boot_id="b", pid_ns=1, net_ns=2, pidfd_inode=9000, uid=1000)
FOUND = Peer(pid=500, uid=1000, pidfd_inode=9000, start_time=77, boot_id="b")


def test_the_same_process_is_proven() -> None:
    assert identity.mismatch(EXPECTED, FOUND) is None
    assert identity.mismatch(EXPECTED, replace(FOUND, pidfd_inode=0)) is None  # by its start time
    assert identity.mismatch(replace(EXPECTED, pidfd_inode=0), FOUND) is None
    assert identity.mismatch(EXPECTED, replace(FOUND, start_time=None)) is None  # by its inode; hidepid


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (replace(FOUND, boot_id="c"), "started anew"),
        (replace(FOUND, pid=501), "another process listens"),
        (replace(FOUND, uid=0), "another uid"),
        (replace(FOUND, pidfd_inode=9001), "pidfd is another"),
        (replace(FOUND, start_time=78), "another time"),
        (replace(FOUND, start_time=78, pidfd_inode=0), "another time"),
        (replace(FOUND, start_time=None, pidfd_inode=0), "has ended"),
    ],
)
def test_anything_else_is_refused_with_the_reason(found: Peer, why: str) -> None:
    assert why in str(identity.mismatch(EXPECTED, found))


def test_without_an_inode_on_either_side_and_without_a_start_time_nothing_is_proven() -> None:
    assert identity.mismatch(replace(EXPECTED, pidfd_inode=0), replace(FOUND, start_time=None)) is not None


def test_a_record_is_taken_only_when_it_is_whole() -> None:
    record = asdict(EXPECTED)
    assert identity.from_record(record) == EXPECTED
    for broken in (
        {},
        {**record, "more": 1},
        {**record, "pid": "500"},
        {**record, "pid": True},
        {**record, "boot_id": 1},
    ):
        with pytest.raises(ValueError, match="identity"):
            identity.from_record(broken)


def test_the_peer_is_who_called_listen() -> None:
    """A child binds nothing and listens on an inherited socket: it is the peer, not who bound it (unix(7))."""
    door = socket.socket(socket.AF_UNIX)
    door.bind("")  # a name of the kernel's choice in the abstract namespace
    code = (
        f"import socket,sys; s=socket.socket(fileno={door.fileno()}); s.listen(1); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        ["/usr/bin/python3", "-I", "-S", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[door.fileno()],
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with door, socket.socket(socket.AF_UNIX) as ours:
            ours.connect(door.getsockname())
            peer = identity.peer(ours)
            assert (peer.pid, peer.uid) == (child.pid, os.getuid())
            assert peer.start_time == identity.start_time(child.pid) is not None
            expected = Identity(peer.pid, peer.start_time or 0, identity.boot_id(), 0, 0, peer.pidfd_inode, peer.uid)
            assert identity.mismatch(expected, peer) is None
            assert not identity.gone(expected)
            assert identity.gone(replace(expected, start_time=1))
            assert identity.gone(replace(expected, boot_id="of another boot"))
            child.kill()
            child.wait()
            assert identity.gone(expected)
            assert identity.mismatch(expected, identity.peer(ours)) is not None


def test_a_zombie_is_no_process() -> None:
    with subprocess.Popen(["/bin/true"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has reaped it
        assert identity.start_time(child.pid) is None
