"""A worker that somebody has taken over: it runs what the test says. Each attack against every wall that is to stop it:
with all of them it fails; with each one alone, the others taken away, it fails; without any of them it works.

The walls: seccomp, Landlock, limits, capabilities (dropped), and the process namespace.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ringfence.host.egress import confine
from ringfence.spawner import protocol
from tests.support import spawner_rig
from tests.support.spawner_rig import Rig

pytestmark = pytest.mark.root
A = "a" * 16
OBEYS = """
import asyncio, ctypes, mmap, os, signal, socket, ssl
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "call")
    return result
def run(fd, trust=None):
    with socket.socket(fileno=fd) as control:
        control.send(b"ready")
        while code := control.recv(64 << 10):
            scope = dict(globals(), control=control)
            try:
                exec(code, scope)
                said = "done " + repr(scope.get("said"))
            except BaseException as error:
                said = "%s %s" % (type(error).__name__, getattr(error, "errno", "") or "")
            control.send(said.encode())
"""
CAPSET = '    _checked(_libc.syscall(ctypes.c_long(_CAPSET[os.uname().machine]), header, none), "capset")\n'
WALLS: dict[str, tuple[str, str, str]] = {  # name -> file, the line that puts it up, what stands there instead
    "seccomp": ("host/egress/confine.py", "    seccomp.install(filter_code)\n", ""),
    "landlock": ("host/egress/confine.py", "    no_files()\n", ""),
    "limits": ("host/egress/confine.py", "    set_limits()\n", ""),
    "capabilities": ("host/egress/confine.py", CAPSET, ""),
    "not dumpable": (
        "host/egress/confine.py",
        "    _prctl(_PR_SET_DUMPABLE, 0)",
        "    _prctl(_PR_SET_DUMPABLE, 1)",
    ),
    "pairs of streams alone": ("host/egress/seccomp_table.py", ", Only(1, (socket.SOCK_STREAM,), _TYPE))),", ",)),"),
    "pids": ("spawner/template.py", "        syscalls.unshare(syscalls.CLONE_NEWPID)\n", ""),
}


def instead(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert text.count(old) == 1, old
        return text.replace(old, new)

    return change


def both(first: Callable[[str], str], second: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: second(first(text))


@dataclass
class Stage:
    """One worker without some of its walls."""

    uid: int
    pid: int
    control: socket.socket

    def does(self, code: str, **values: object) -> str:
        for name, value in values.items():
            code = code.replace(f"${name}", repr(value))
        self.control.send(code.encode())
        return self.control.recv(64 << 10).decode()


@dataclass
class Stages:
    """A server for each set of walls that is taken away, one at a time, and a new worker of it for each attack."""

    made: dict[frozenset[str], Rig] = field(default_factory=dict)

    @contextmanager
    def without(self, *walls: str) -> Iterator[Stage]:
        key = frozenset(walls)
        if key not in self.made:
            self.clean()  # two of one installation would meet
            changes: dict[str, Callable[[str], str]] = {"host/egress/worker.py": lambda _: OBEYS}
            for wall in sorted(key):
                file, old, new = WALLS[wall]
                one = instead(old, new)
                changes[file] = both(changes[file], one) if file in changes else one
            self.made[key] = opened(spawner_rig.make(outward=True, changes=changes))
        with worker(self.made[key]) as stage:
            yield stage

    def clean(self) -> None:
        for key in list(self.made):
            self.made.pop(key).clean()


def opened(rig: Rig) -> Rig:
    rig.start()
    rig.provision(A)
    rig.start_box(A)
    return rig


@contextmanager
def worker(rig: Rig) -> Iterator[Stage]:
    body, (fd,) = rig.ask_fds(protocol.Worker(A))
    with socket.socket(fileno=fd) as control:
        control.settimeout(30)
        assert control.recv(100) == b"ready"
        yield Stage(body["uid"], body["pid"], control)
    rig.ask(protocol.EndWorker(A))


@pytest.fixture(scope="module")
def stages() -> Iterator[Stages]:
    made = Stages()
    yield made
    made.clean()


@dataclass(frozen=True)
class Victim:
    """Of the worker's own id, so that nothing but its walls is in the way."""

    pid: int
    address: int  # of the bytes b"secret-of-the-victim"


SECRET = b"secret-of-the-victim"
HOLDS = f"import ctypes, sys, time; b = ctypes.create_string_buffer({SECRET!r}); print(ctypes.addressof(b), flush=True); time.sleep(600)"


@pytest.fixture
def victim(stages: Stages) -> Iterator[Callable[[Stage], Victim]]:
    started: list[subprocess.Popen[str]] = []

    def start(stage: Stage) -> Victim:
        command = [spawner_rig.PYTHON, "-I", "-c", HOLDS]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, user=stage.uid, group=stage.uid, extra_groups=[], cwd="/"
        )
        started.append(process)
        assert process.stdout is not None
        return Victim(process.pid, int(process.stdout.readline()))

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@dataclass(frozen=True)
class Attack:
    code: str
    works: str  # what it says then, or begins with
    walls: tuple[str, ...]


READ_MEMORY = """
class V(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(20)
here, there = V(ctypes.addressof(buffer), 20), V($address, 20)
checked(libc.process_vm_readv($pid, ctypes.byref(here), ctypes.c_ulong(1), ctypes.byref(there), ctypes.c_ulong(1), ctypes.c_ulong(0)))
said = buffer.raw
"""
ATTACKS = {
    "read a file": Attack("said = open('/etc/passwd').read(5)", "done 'root:'", ("landlock",)),
    "read another's environment": Attack("said = len(open('/proc/%d/environ' % $pid).read())", "done ", ("landlock",)),
    "read its own memory's map": Attack("said = bool(open('/proc/self/maps').read(9))", "done True", ("landlock",)),
    "list a folder": Attack("said = bool(os.listdir('/usr'))", "done True", ("seccomp", "landlock")),
    "write a file": Attack(
        "said = os.open($folder + '/x', os.O_WRONLY | os.O_CREAT)", "done ", ("seccomp", "landlock")
    ),
    "run a program": Attack(
        "os.set_inheritable(control.fileno(), True)\n"
        "os.execv('/bin/sh', ['sh', '-c', 'echo done by sh >&%d' % control.fileno()])",
        "done by sh",
        ("seccomp", "landlock"),
    ),
    "fork": Attack("pid = os.fork()\nif pid == 0: os._exit(0)\nsaid = pid > 0", "done True", ("seccomp", "limits")),
    "signal": Attack("said = os.kill($pid, 0)", "done None", ("seccomp", "landlock", "pids")),
    "trace": Attack(
        "said = checked(libc.ptrace(16, $pid, None, None))", "done 0", ("seccomp", "landlock", "pids")
    ),  # PTRACE_ATTACH
    "read another's memory": Attack(READ_MEMORY, f"done {SECRET!r}", ("seccomp", "landlock", "pids")),
    "become another id": Attack(
        "said = os.setresuid($other, $other, $other)", "done None", ("seccomp", "capabilities")
    ),
    "connect to a socket of the host": Attack(
        "s = socket.socket(socket.AF_UNIX); s.connect($folder + '/door'); said = s.recv(4)",
        "done b'host'",
        ("seccomp",),
    ),
    "speak to a socket of the host by datagrams": Attack(
        "s, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect($folder + '/log'); said = s.send(b'x')",
        "done 1",
        ("pairs of streams alone",),
    ),
    "connect to an abstract socket": Attack(
        "s = socket.socket(socket.AF_UNIX); s.connect($abstract); said = s.recv(4)",
        "done b'host'",
        ("seccomp", "landlock"),
    ),
    "listen": Attack(
        "s = socket.socket(); s.bind(('127.0.0.1', 0)); said = s.listen()", "done None", ("seccomp", "landlock")
    ),
    "speak netlink": Attack(
        "said = bool(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))", "done True", ("seccomp",)
    ),
    "make memory that runs": Attack(
        "said = bool(mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC))",
        "done True",
        ("seccomp",),
    ),
    "fill memory": Attack("said = len(bytearray(600 << 20)) >> 20", "done 600", ("limits",)),
    "fill memory files": Attack(
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nfd = os.memfd_create('x')\n"
        "said = [os.write(fd, bytes(64 << 10)) for _ in range(2)]",
        "done [65536, 65536]",
        ("limits",),
    ),
    "take descriptors": Attack("l = [socket.socket() for _ in range(1100)]; said = len(l)", "done 1100", ("limits",)),
}


@pytest.fixture
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """A folder that everybody may write, and three doors of the host's."""
    folder = spawner_rig.temporary_home().parent
    folder.chmod(0o777)
    abstract = f"\0ringfence-test-{os.getpid()}-{id(folder)}"
    doors = []
    for address in (f"{folder}/door", abstract):
        door = socket.socket(socket.AF_UNIX)
        door.bind(address)
        door.listen()
        doors.append(door)
    log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    log.bind(f"{folder}/log")
    for name in ("door", "log"):
        Path(folder, name).chmod(0o777)

    def greet(door: socket.socket) -> None:
        with suppress(OSError):
            while True:
                with door.accept()[0] as connection:
                    connection.send(b"host")

    threads = [threading.Thread(target=greet, args=(door,)) for door in doors]
    for thread in threads:
        thread.start()
    yield {"folder": str(folder), "abstract": abstract}
    for door, thread in zip(doors, threads, strict=True):
        door.shutdown(socket.SHUT_RDWR)
        door.close()
        thread.join()
    log.close()
    subprocess.run(["rm", "-r", str(folder)], check=True)


def cases() -> list[tuple[str, tuple[str, ...]]]:
    """Attack and the walls that are taken away: none, all but one of its own, all of its own. Same walls in a row."""
    found = []
    for name, attack in ATTACKS.items():
        taken = {(), *itertools.combinations(attack.walls, len(attack.walls) - 1), attack.walls}
        found += [(name, one) for one in sorted(taken)]
    return sorted(found, key=lambda case: case[1])


@pytest.mark.parametrize(
    ("name", "taken"), cases(), ids=lambda value: value if isinstance(value, str) else "-".join(value)
)
def test_each_wall_holds_by_itself(
    stages: Stages,
    victim: Callable[[Stage], Victim],
    host: dict[str, object],
    name: str,
    taken: tuple[str, ...],
) -> None:
    attack = ATTACKS[name]
    with stages.without(*taken) as stage:
        values = dict(host, other=stage.uid + 8)
        if "$pid" in attack.code:
            found = victim(stage)
            values |= {"pid": found.pid, "address": found.address}
        said = stage.does(attack.code, **values)
    if set(taken) == set(attack.walls):
        assert said.startswith(attack.works), said
    else:
        assert said and not said.startswith("done"), said


CONNECTS = """
async def go():
    context = ssl.create_default_context(cadata=$pem)
    where = ("127.0.0.1", $port)
    reader, writer = await asyncio.open_connection(*where, ssl=context, server_hostname="example.test")
    writer.write(b"x")
    await writer.drain()
    answer = await reader.read(9)
    writer.close()
    return answer
said = asyncio.run(go())
"""
HOLDS_A_CHAIN = """
fd = os.memfd_create("chain")
os.write(fd, $pem.encode())
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/proc/self/fd/%d" % fd)
os.close(fd)
said = "loaded"
"""
ASKS_WHOSE_IT_IS = """
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as asked:
    asked.connect(("127.0.0.1", 9))
    said = asked.getsockname()[0]
"""


def certificate() -> str:
    """Key and certificate of example.test."""
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout - "
        "-subj /CN=example.test -addext subjectAltName=DNS:example.test"
    )
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout


def test_what_a_worker_is_for_works(stages: Stages, tmp_path: Path) -> None:
    """An event loop, a verified TLS connection, and a certificate of its own by a memory file: all that it may open."""
    made = certificate()
    (tmp_path / "chain").write_text(made)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "chain")
    with socket.create_server(("127.0.0.1", 0)) as plain, stages.without() as stage:

        def answer() -> None:
            with plain.accept()[0] as connection, context.wrap_socket(connection, server_side=True) as wrapped:
                wrapped.send(wrapped.recv(9) * 2)

        thread = threading.Thread(target=answer)
        thread.start()
        pem = made[made.index("-----BEGIN CERTIFICATE") :]
        assert stage.does(CONNECTS, port=plain.getsockname()[1], pem=pem) == "done b'xx'"
        thread.join()
        assert stage.does(HOLDS_A_CHAIN, pem=made) == "done 'loaded'"
        assert stage.does(ASKS_WHOSE_IT_IS) == "done '127.0.0.1'"


def looked_into(stage: Stage) -> subprocess.CompletedProcess[str]:
    """By another process of its id."""
    look = f"open('/proc/{stage.pid}/environ').read(); open('/proc/{stage.pid}/mem')"
    return subprocess.run(
        [spawner_rig.PYTHON, "-I", "-c", look], user=stage.uid, group=stage.uid, extra_groups=[], cwd="/",
        capture_output=True, text=True,
    )  # fmt: skip


def test_nobody_of_its_own_id_looks_into_it(stages: Stages) -> None:
    with stages.without() as stage:
        assert "PermissionError" in looked_into(stage).stderr
        assert Path(f"/proc/{stage.pid}/environ").read_bytes().strip(b"\0") == b"LANG=C.UTF-8"
    with stages.without("not dumpable") as stage:
        assert looked_into(stage).returncode == 0


def test_the_landlock_of_this_host_has_scopes() -> None:
    """Without them two of the walls above are not there, and the server says so (no-landlock-scope)."""
    assert confine.landlock_abi() >= 6 and ctypes.sizeof(ctypes.c_long) == 8
