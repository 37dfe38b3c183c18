"""The TLS side in a process that can open no file: leaves are minted, loaded and shown there, names are looked up and servers
dialled, behind all the walls of a worker.

Controls: the same process without Landlock reads a file of the host; without the filter too it makes one.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ringfence.host.egress import confine
from tests.support.egress_outside import NOW, Ca, line, nameserver

pytestmark = pytest.mark.root
UID = 1_879_048_193  # of nobody: the first ids of the default range are the server's
# The walls close what they are not told of, and point 1 and 2 nowhere: what this says goes out under another number.
WORKER = """
import asyncio, os, socket, ssl, sys
from datetime import datetime
import dns.message
from ringfence.host.egress import assembly, confine, preloaded, seccomp
from ringfence.host.egress.configuration import Configuration
from ringfence.host.egress.trust import Trust
from ringfence.host.kernel.outward.secret import Secret

fd, uid, now, certificate, key, made = sys.argv[1:]

def tried(path, mode):
    try:
        open(path, mode).close()
    except OSError as error:
        return type(error).__name__
    return "done"

def shown(context, client):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_side=True)
    for step in (session.do_handshake, lambda: session.write(b"closed in")):
        while True:
            try:
                step()
                break
            except ssl.SSLWantReadError:
                client.sendall(outgoing.read())
                incoming.write(client.recv(65536))
        client.sendall(outgoing.read())

client, told = socket.socket(fileno=int(fd)), os.dup(1)
preloaded.warm()
$WALLS
confine.close_in(int(uid), (client.fileno(), told), filter_code=seccomp.program())
parts = assembly.Assembly(Trust(), lambda: datetime.fromisoformat(now), lambda: 0.0, lambda name: None)
works = parts.works(Configuration("u", (), (), certificate, Secret(key.encode()), certificate, ()))
contexts = {works.minter.context(f"h{n}.test") for n in range(20)}
answers = [parts.answer(dns.message.make_query("a.test.", each).to_wire()) for each in ("A", "CAA", "NAPTR", "TYPE777")]
did = [tried("/etc/hostname", "r"), tried("/proc/self/status", "r"), tried(made, "w")]
os.write(told, " ".join([*did, str(len(contexts)), str(all(answers)), str(os.getuid())]).encode())
shown(works.minter.context("h7.test"), client)
"""
NO_LANDLOCK = "confine.no_files = lambda: None\n"
NO_FILTER = "seccomp.install = lambda code: None\n"


@pytest.fixture
def directory() -> Iterator[Path]:
    """Open to every id: those of pytest are root's alone."""
    with TemporaryDirectory() as made:
        Path(made).chmod(0o777)
        yield Path(made)


def run(directory: Path, walls: str = "") -> tuple[list[str], bytes]:
    """What the process told, and what came through TLS as h7.test."""
    ca = Ca("user")
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    WORKER.replace("$WALLS", walls),
                    str(theirs.fileno()),
                    str(UID),
                    NOW.isoformat(),
                    ca.pem,
                    ca.secret.reveal().decode(),
                    str(directory / "made"),
                ],
                pass_fds=[theirs.fileno()],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        ours.settimeout(30)
        try:
            with ca.trusting().wrap_socket(ours, server_hostname="h7.test") as session:
                said = session.recv(100)
        except OSError:
            said = b""
    out, errors = process.communicate(timeout=30)
    assert not errors, errors
    return out.split(), said


def test_a_worker_that_can_open_no_file_shows_leaves(directory: Path) -> None:
    told, said = run(directory)
    assert told == ["PermissionError", "PermissionError", "PermissionError", "20", "True", str(UID)]
    assert said == b"closed in"
    assert not (directory / "made").exists()


def test_control_without_landlock_it_reads_what_its_id_may(directory: Path) -> None:
    assert confine.landlock_abi() > 0
    told, said = run(directory, NO_LANDLOCK)
    assert told[:3] == ["done", "done", "PermissionError"]  # the filter opens nothing for writing
    assert said == b"closed in"


def test_control_without_the_filter_too_it_makes_a_file(directory: Path) -> None:
    told, _ = run(directory, NO_LANDLOCK + NO_FILTER)
    assert told[:3] == ["done", "done", "done"]
    assert (directory / "made").exists()


DIALS = """
import asyncio, os, sys
from ringfence.host.egress import assembly, confine, preloaded, seccomp
from ringfence.host.egress.configuration import Configuration
from ringfence.host.egress.trust import Trust
from ringfence.host.kernel.outward.secret import Secret

uid, certificate, key, nameserver, port = sys.argv[1:]

async def main():
    works = assembly.Assembly(Trust(), lambda: None, lambda: 0.0, lambda name: None).works(
        Configuration("u", (), (), certificate, Secret(key.encode()), certificate, (("127.0.0.1", int(nameserver)),),
                      internal=(("api.test", "127.0.0.0/8"),)))
    reader, writer = await works.dialler.connect("api.test", int(port))
    writer.write(b"from inside" + bytes([10]))
    os.write(told, await reader.readline())
    writer.close()

told = os.dup(1)
preloaded.warm()
confine.close_in(int(uid), (told,), filter_code=seccomp.program())
asyncio.run(main())
"""


async def test_from_behind_all_walls_a_name_is_looked_up_and_a_server_verified(directory: Path) -> None:
    """By UDP and, when it does not fit, by TCP."""
    ca = Ca("user")
    key = ca.secret.reveal().decode()
    async with (
        line(ca.leaf(directory, "api.test")) as server,
        nameserver(lambda name, kind: ["9 A 127.0.0.1"]) as names,
    ):
        for names.truncates in (False, True):
            argv = [sys.executable, "-c", DIALS, str(UID), ca.pem, key, str(names.port), str(server.port)]
            process = await asyncio.create_subprocess_exec(
                *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            out, errors = await asyncio.wait_for(process.communicate(), 30)
            assert out == b"from inside\n", errors
        assert "api.test" in names.by_tcp
        assert server.seen == ["api.test", "api.test"]
