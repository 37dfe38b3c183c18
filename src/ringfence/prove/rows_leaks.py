"""The leak scan (`prove --only leaks`): every kind of secret of leak_kinds.py, in every form, wherever it must not be."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringfence.prove.attacks.secrets import TOLD
from ringfence.prove.attacks.trying import DONE
from ringfence.prove.leak_database import unreachable
from ringfence.prove.leak_kinds import KINDS, OF_OTHERS, OWNER, Needle, found, given, needles
from ringfence.prove.outward_stage import Held, holding
from ringfence.prove.row import NotHere, Row, Tries, ran
from ringfence.prove.stage import PYTHON, VICTIM, Stage
from ringfence.prove.world import MINE

HOLD_SECONDS = 120.0  # the most that the loop whose token is looked for lives; what is scanned meanwhile takes a few
PIECE = 4 << 20
OVERLAP = 256  # bytes, more than any needle
MAX_FILE = 64 << 20
_WRITABLE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw")
CONTROL = b"control-secret-0123456789abcdefXYZ"
CRASHES = {  # what goes wrong before it is known who asks, and after
    "a bad path": b"POST /v1/%ff/\x01",
    "a bad body": b"POST /v1/tenants",
    "a wrong method": b"POST /v1/runs/..",
    "an absent run": b"GET /v1/runs/run_none",
    "an absent user": b"GET /v1/tenants/default/users/nobody/box",
}
HOLDER = """
import sys, time
held = [bytes.fromhex(line) for line in sys.stdin.readline().split()]
held = [bytes(bytearray(one)) for one in held]
print("ready", flush=True)
time.sleep(60)
"""


# --- reading ----------------------------------------------------------------------------------------------------------


def pieces(read: Callable[[int, int], bytes], start: int, end: int) -> Iterator[bytes]:
    """[start, end) in pieces that overlap, so that nothing is cut in two."""
    at = start
    while at < end:
        with suppress(OSError, ValueError, OverflowError):
            yield read(at, min(PIECE, end - at))
        at += PIECE - OVERLAP if end - at > PIECE else end - at


def in_memory(pid: int, wanted: tuple[Needle, ...]) -> set[str]:
    """Of what the process may write, which is where what it was told is. PermissionError: not to be looked into."""
    hits: set[str] = set()
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
        fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except (FileNotFoundError, ProcessLookupError):
        return hits
    try:
        for match in _WRITABLE.finditer(maps):
            start, end = (int(part, 16) for part in match.groups())
            for data in pieces(lambda at, size: os.pread(fd, size, at), start, end):
                hits |= {f"{needle.kind} ({needle.form})" for needle in found(data, wanted)}
    finally:
        os.close(fd)
    return hits


def in_file(path: Path, wanted: tuple[Needle, ...]) -> set[str]:
    """Regular files only; a link is its own text."""
    if path.is_symlink() or not path.is_file():
        return set()
    hits: set[str] = set()
    with path.open("rb") as file:
        fd = file.fileno()
        for data in pieces(lambda at, size: os.pread(fd, size, at), 0, min(MAX_FILE, os.fstat(fd).st_size)):
            hits |= {f"{needle.kind} ({needle.form})" for needle in found(data, wanted)}
    return hits


def in_proc(pid: int, wanted: tuple[Needle, ...]) -> set[str]:
    """Environment, arguments, names behind descriptors."""
    hits: set[str] = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        texts = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline")]
        texts += [os.fsencode(os.readlink(f"/proc/{pid}/fd/{fd}")) for fd in os.listdir(f"/proc/{pid}/fd")]
        for text in texts:
            hits |= {f"{needle.kind} ({needle.form})" for needle in found(text, wanted)}
    return hits


# --- what is looked for -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """`needles` of all kinds; the names of those that parts of the owner's own box may hold."""

    needles: tuple[Needle, ...]
    in_main: frozenset[str]
    in_box: frozenset[str]


def looked_for(stage: Stage, held: Held) -> Wanted:
    """Of KINDS, while a loop holds its token and a command its placeholder. Scans of one prove share it."""
    kinds = (*KINDS, *given(held))
    return Wanted(
        tuple(needle for kind in kinds for needle in needles(kind.name, kind.value(stage))),
        frozenset(kind.name for kind in kinds if kind.in_main),
        frozenset(kind.name for kind in kinds if kind.in_box),
    )


def scanned(stage: Stage) -> dict[str, Tries]:
    """Every place, in one go: a run token is one only while its run lives."""
    user = stage.user(OWNER)
    with ThreadPoolExecutor(1) as pool:
        loop = pool.submit(stage.attack, "e", user, "secrets", "hold", str(HOLD_SECONDS))
        until = time.monotonic() + 10
        while stage.shell(user, f"test -s {TOLD}").get("exit_code") != 0 and time.monotonic() < until:
            time.sleep(0.1)
        try:
            with holding(stage, user, f"{MINE}/late-leaks") as held:
                told = everywhere(stage, looked_for(stage, held))
        finally:
            stage.shell(user, f"rm -f {TOLD}")
        loop.result()
    return told


def everywhere(stage: Stage, looked: Wanted) -> dict[str, Tries]:
    """While a command whose placeholder was exchanged waits for its answer."""
    sleeper, wanted = pool_of_commands(stage), looked.needles
    told = {
        "K01": boxes(stage, looked, in_proc),
        "K11": boxes(stage, looked, in_memory),
        "K05": crashes(stage, wanted),  # before the log is looked into
        "K02": files(
            stage, wanted, [*(stage.made.home / name for name in ("db", "run")), stage.made.log, backed(stage)]
        ),
        "K12": files(stage, wanted, [path / "tree" for path in (stage.made.home / "boxes").iterdir()]),
        "K13": server(stage, wanted),
    }
    sleeper.exception()
    return told


def pool_of_commands(stage: Stage) -> Future[dict[str, Any]]:
    """A command in the box of the token's owner and one in another's, so that there is something to look into."""
    pool = ThreadPoolExecutor(2)
    pool.submit(stage.shell, VICTIM, "sleep 8")
    sleeping = pool.submit(stage.shell, OWNER, "sleep 8")
    pool.shutdown(wait=False)
    time.sleep(0.3)
    return sleeping


def backed(stage: Stage) -> Path:
    """A backup of the database as it is."""
    path = stage.root / "leaks.backup"
    stage.made.ok("db", "backup", str(path))
    return path


def boxes(stage: Stage, looked: Wanted, look: Callable[[int, tuple[Needle, ...]], set[str]]) -> Tries:
    """Every process of every box. PID 1 and loops of the owner may hold the run token, and nobody else's file is in a
    box of another."""
    told: dict[str, str] = {}
    sighted = (
        look is not in_memory
    )  # whether the loop's own token was seen in it, as it must be: else the scan is blind
    count, users = 0, [str(each["user"]) for each in stage.client.boxes()]
    others = needles(OF_OTHERS.name, OF_OTHERS.value(stage))
    for user in users:
        here = looked.needles if user == VICTIM else (*looked.needles, *others)
        for pid in stage.processes(user):
            count += 1
            hits = look(pid, here)
            if user == OWNER:
                hits -= {hit for hit in hits if hit.partition(" (")[0] in looked.in_box}
            if user == OWNER and is_guest(pid):
                own = {hit for hit in hits if hit.partition(" (")[0] in looked.in_main}
                sighted, hits = sighted or bool(own), hits - own
            if hits:
                told[f"{user} {_name(pid)}"] = f"{DONE} {sorted(hits)}"
    told["processes"] = f"{count} looked into" if count and sighted else f"{DONE} the scan is blind ({count})"
    return Tries(told)


def is_guest(pid: int) -> bool:
    """PID 1 or a loop: the guest's arguments, and not in the leaf of commands, where the command spawner is."""
    with suppress(OSError):
        commands = "/cmds" in Path(f"/proc/{pid}/cgroup").read_text()
        return not commands and b"/opt/ringfence/init.pyc" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return "gone"


def files(stage: Stage, wanted: tuple[Needle, ...], places: list[Path]) -> Tries:
    told, count = {}, 0
    for place in places:
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            count += 1
            hits = in_file(path, wanted)
            if hits:
                told[str(path.relative_to(stage.root))] = f"{DONE} {sorted(hits)}"
    return Tries({**told, "files": f"{count} looked into" if count else f"{DONE} none to look into"})


def server(stage: Stage, wanted: tuple[Needle, ...]) -> Tries:
    """The server's own processes: environment and arguments, which other accounts of the host may read."""
    assert stage.made.server is not None
    told = {}
    for name, pid in (("spawner", stage.made.server.pid), ("kernel", stage.made.kernel_pid())):
        hits = in_proc(pid, wanted)
        told[name] = f"{DONE} {sorted(hits)}" if hits else "nothing"
    return Tries(told)


def crashes(stage: Stage, wanted: tuple[Needle, ...]) -> Tries:
    """What goes wrong while a token is in the request: its answer, and what the log says of it."""
    token = next(
        needle.data for needle in wanted if needle.kind == "API token" and needle.form.startswith("plain, first")
    )
    rest = next(
        needle.data for needle in wanted if needle.kind == "API token" and needle.form.startswith("plain, second")
    )
    told = unreachable(stage, wanted)
    for label, first in CRASHES.items():
        answer = _request(stage, first, token + rest)
        hits = found(answer, wanted)
        told[label] = f"{DONE} {hits[0].form}" if hits else answer.partition(b"\r\n")[0].decode(errors="replace")[:40]
    hits_in_log = in_file(stage.made.log, wanted)
    return Tries({**told, "the log": f"{DONE} {sorted(hits_in_log)}" if hits_in_log else "nothing"})


def _request(stage: Stage, first: bytes, token: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as wire:
        wire.settimeout(5)
        wire.connect(stage.made.socket)
        wire.sendall(
            first + b" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token + b"\r\n"
            b"Content-Type: application/json\r\nContent-Length: 5\r\nConnection: close\r\n\r\n{bad}"
        )
        answer = b""
        with suppress(TimeoutError):
            while data := wire.recv(65536):
                answer += data
        return answer


# --- the control ------------------------------------------------------------------------------------------------------


def every_form() -> dict[str, bytes]:
    """A form -> a text that holds the control's secret in it."""
    wanted = needles("control", CONTROL)
    return {needle.form: b"before " + needle.data + b" behind" for needle in wanted}


def finds(stage: Stage) -> Tries:
    """The scanner finds each form in a file and in the memory of a process that holds it."""
    wanted, forms = needles("control", CONTROL), every_form()
    folder = stage.root / "leak-control"
    folder.mkdir(exist_ok=True)
    told = {}
    held = " ".join(text.hex() for text in forms.values()).encode() + b"\n"
    with subprocess.Popen([PYTHON, "-I", "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        try:
            holder.stdin.write(held)
            holder.stdin.flush()
            holder.stdout.readline()
            there = in_memory(holder.pid, wanted)
        finally:
            holder.kill()
    for number, (form, text) in enumerate(forms.items()):
        path = folder / str(number)
        path.write_bytes(text)
        both = f"control ({form})" in in_file(path, wanted) and f"control ({form})" in there
        told[form] = f"{DONE} found" if both else "not found"
    if any(not word.startswith(DONE) for word in told.values()):
        return Tries({form: word for form, word in told.items() if not word.startswith(DONE)})
    return Tries(told)


def _of(row_id: str) -> Callable[[Stage, str], Tries]:
    def attack(stage: Stage, _runner: str) -> Tries:
        if os.geteuid() != 0:
            raise NotHere(
                "an ordinary account may not look into boxes, whose processes are not dumpable and whose files are not its own"
            )
        return stage.once("leaks", scanned)[row_id]

    return attack


def _row(row_id: str, where: str, wall: str) -> Row:
    return Row(
        row_id,
        f"look for every secret in {where}",
        "not found in any form",
        wall,
        _of(row_id),
        ran(finds),
        "h",
        alone=True,
        group="leaks",
    )


ROWS: tuple[Row, ...] = (
    _row("K01", "environment, arguments and descriptors of the boxes' processes", "environments are built by the host"),
    _row("K11", "memory of the boxes' processes", "no secret enters a box; forks before anything secret exists"),
    _row("K12", "files of the boxes", "no secret enters a box"),
    _row("K02", "database, WAL, events, checkpoints, logs and run/", "tokens are kept as digests"),
    _row("K05", "answers and log lines of requests that went wrong", "errors repeat no credential"),
    _row("K13", "environment and arguments of the server", "an environment of its own"),
)
