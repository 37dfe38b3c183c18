"""Group D: sockets and what processes share by name (docs/threats.md)."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from ringfence.prove import outside
from ringfence.prove.attacks.trying import DONE
from ringfence.prove.receiving import receiver
from ringfence.prove.row import Control, NotHere, Row, Tries, program, ran
from ringfence.prove.stage import ATTACKER, VICTIM, Stage

HOST_SOCKETS = (
    "/var/run/docker.sock /run/docker.sock /run/containerd/containerd.sock /run/dbus/system_bus_socket "
    "/run/systemd/private /run/snapd.socket /tmp/.X11-unix/X0 /run/user/1000/bus /run/nscd/socket"
)
Listening = Callable[[Stage], contextlib.AbstractContextManager[str]]


@contextlib.contextmanager
def _abstract(_stage: Stage) -> Iterator[str]:
    name = f"ringfence-prove-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as door:
        door.bind("\0" + name)
        door.listen()
        yield "@" + name


@contextlib.contextmanager
def _by_path(stage: Stage) -> Iterator[str]:
    """A socket of the host's that anybody may connect to."""
    path = stage.canaries.host / "open" / secrets.token_hex(4)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        path.chmod(0o777)
        door.listen()
        try:
            yield str(path)
        finally:
            path.unlink()


@contextlib.contextmanager
def _loopback(_stage: Stage) -> Iterator[str]:
    """A service of the host's that answers."""
    with receiver() as door:
        yield f"127.0.0.1:{door.port}"


def _doors(
    row_id: str, attempt: str, expected: str, wall: str, door: Listening, further: Callable[[Stage], list[str]]
) -> Row:
    """Connects to a door that stands open on the host, and to `further` ones."""

    def attack(stage: Stage, runner: str) -> Tries:
        with door(stage) as address:
            return stage.attack(runner, ATTACKER, "sockets", "connecting", address, *further(stage), timeout=60)

    def control(stage: Stage) -> Tries:
        with door(stage) as address:
            return stage.bare("sockets", "connecting", address)

    return Row(row_id, attempt, expected, wall, attack, ran(control), "ske")


def _wire_sockets(stage: Stage) -> list[str]:
    return [str(stage.directory(user) / "ctl" / "host.sock") for user in (VICTIM, ATTACKER)] + [stage.made.socket]


def _shared(row_id: str, what: str, kind: str, wall: str, name: Callable[[], str]) -> Row:
    """Made on the host by the control's id, looked for in the box under the same name."""

    @contextlib.contextmanager
    def made(stage: Stage) -> Iterator[str]:
        chosen = name()
        tries = stage.bare("sockets", f"{kind}_make", chosen)
        if not tries.done:
            raise NotHere(f"this host has none: {tries.text}")
        try:
            yield chosen
        finally:
            stage.bare("sockets", f"{kind}_remove", chosen)

    def attack(stage: Stage, runner: str) -> Tries:
        with made(stage) as chosen:
            return stage.attack(runner, ATTACKER, "sockets", f"{kind}_find", chosen)

    def control(stage: Stage) -> Tries:
        with made(stage) as chosen:
            return stage.bare("sockets", f"{kind}_find", chosen)

    return Row(row_id, f"{what} of another process, by name", "ENOENT", wall, attack, ran(control), "ske")


def _descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        raise NotHere("this account may not count the descriptors of the box's PID 1") from None


def _pushed(stage: Stage, _runner: str) -> Tries:
    """The box's PID 1 and the server's kernel before and after a loop has pushed 200 descriptors at a time."""
    watched = {"PID 1": outside.first(stage.processes(ATTACKER)), "the server": stage.made.kernel_pid()}
    before = {name: _descriptors(pid) for name, pid in watched.items()}
    stage.attack("e", ATTACKER, "sockets", "pushing")
    gained = {name: _descriptors(pid) - before[name] for name, pid in watched.items()}
    return Tries({name: f"{DONE} {n} installed" if n >= 100 else "none installed" for name, n in gained.items()})


def _unfiltered(name: str, impossible: str = "") -> Control:
    return ran(lambda stage: stage.loose("sockets", name, without=("--seccomp",)), impossible)


def _only_loopback() -> str:
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    names = {line.split(":")[0].strip() for line in lines}
    return "this host has no interface but the loopback" if names == {"lo"} else ""


ROWS: tuple[Row, ...] = (
    _doors(
        "D01",
        "connect to an abstract socket of the host",
        "ECONNREFUSED",
        "network namespace, which abstract names belong to; second: Landlock scope",
        _abstract,
        lambda _stage: [],
    ),
    _doors(
        "D02",
        "connect to sockets of the host's services by path",
        "ENOENT",
        "mount namespace: no directory with sockets is bound",
        _by_path,
        lambda _stage: HOST_SOCKETS.split(),
    ),
    _shared(
        "D03", "System V memory, queue and semaphore", "sysv", "ipc namespace", lambda: str(secrets.randbits(30) + 2)
    ),
    _shared(
        "D04",
        "POSIX memory and message queue",
        "posix",
        "ipc namespace and a /dev/shm of its own",
        lambda: f"ringfence-prove-{secrets.token_hex(6)}",
    ),
    program(
        "D05",
        "AF_VSOCK, which no network namespace holds",
        "EAFNOSUPPORT",
        "seccomp: a list of families",
        ("sockets", "vsock"),
        _unfiltered("vsock", "this kernel has no AF_VSOCK"),
    ),
    program(
        "D06",
        "AF_ALG, PACKET, XDP and others, netlink other than ROUTE, raw ICMP",
        "an error",
        "seccomp: a list of families; second: no capability",
        ("sockets", "families"),
        _unfiltered("families"),
    ),
    _doors(
        "D07",
        "connect to a service on the host's loopback, to the metadata address, to the world",
        "refused, or denied by the box's own worker",
        "network namespace: its own loopback only; what leads elsewhere leads to the worker",
        _loopback,
        lambda _stage: ["169.254.169.254:80", "1.1.1.1:443", "10.0.0.1:22", "2606:4700:4700::1111:443"],
    ),
    Row(
        "D08",
        "push 200 descriptors with each frame from a loop",
        "none is installed in PID 1 or the server",
        "both read with recv, without room for descriptors",
        _pushed,
        ran(lambda stage: stage.bare("sockets", "taking")),
        "h",
        alone=True,
    ),
    _doors(
        "D10",
        "connect to the wire of another box, to one's own, to the server's socket",
        "ENOENT",
        "bound by the spawner in a directory that is in no box; second: 0600 of the server's account",
        _by_path,
        _wire_sockets,
    ),
    program(
        "D11",
        "bind the ports of the way out",
        "EACCES",
        "ports below 1024 need a capability in the box's network namespace",
        ("sockets", "low_ports"),
        ran(lambda stage: stage.rooted("sockets", "low_ports")),
    ),
    program(
        "D12",
        "network interfaces of the host",
        "loopback only",
        "network namespace",
        ("sockets", "interfaces"),
        ran(lambda stage: stage.bare("sockets", "interfaces"), _only_loopback()),
    ),
)
