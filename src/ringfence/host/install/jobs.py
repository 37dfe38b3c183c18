"""Has a job done by a kernel process that is no server (host/jobs.py), under a spawner of its own, while no server runs.

The spawner holds the installation's lock meanwhile, so that no server starts. What the job says and is told goes over one socket,
its standard output. Ends with this process: the job finds its stream closed, and the spawner the job. Must never outlive it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from ringfence.host.install import atomic, database, prepare, state
from ringfence.host.install.layout import Layout
from ringfence.host.install.prepare import Ready
from ringfence.host.install.state import Installation
from ringfence.host.kernel.errors import Failed, RingfenceError, Unavailable
from ringfence.host.kernel.settings import ACCEPT, Settings

PIECE = 1 << 20
END_SECONDS = 30.0
MOST_ANSWER = 64 << 20


@dataclass(frozen=True, slots=True)
class Running:
    """`stream`: what the job says; what is written to it, the job reads."""

    process: subprocess.Popen[bytes]
    stream: socket.socket
    errors: IO[bytes]

    def why(self) -> str:
        self.errors.seek(0)
        said = self.errors.read(1 << 16).decode(errors="replace").strip().splitlines()
        told = [line for line in said if line.startswith("ringfence: ")]
        return (told or said or [f"exit {self.process.wait()}"])[-1].removeprefix("ringfence: ")[:500]


@contextmanager
def running(ready: Ready, job: str, options: Mapping[str, Any]) -> Iterator[Running]:
    """Unavailable: a server runs; the host lacks something."""
    layout = ready.layout
    path = layout.run / "job.json"
    with prepare.no_server(layout):
        copied = prepare.copy_runtime(ready)
        asked = {"job": job, "settings": ready.settings.to_json(), "options": dict(options)}
        atomic.write_json(path, asked, mode=0o600, owner=(ready.kernel.uid, ready.kernel.gid))
        config = {**prepare.spawner_config(ready, copied), "kernel_config": str(path)}
        place = layout.spawner / "job.json"
        atomic.write_json(place, config, mode=0o600)
    command = prepare.launch(copied.site, ready.settings.python, prepare.SPAWNER, str(place))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, tempfile.TemporaryFile() as errors:
        with theirs:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=theirs.fileno(),
                stderr=errors,
                cwd="/",
                env=prepare.minimal_environment(),
            )
        try:
            yield Running(process, ours, errors)
        finally:
            _ended(process, ours)
            path.unlink(missing_ok=True)
            place.unlink(missing_ok=True)


def _ended(process: subprocess.Popen[bytes], stream: socket.socket) -> None:
    """By itself when its stream is at its end, else told to."""
    with contextlib.suppress(OSError):
        stream.shutdown(socket.SHUT_RDWR)
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
            return


def done(
    ready: Ready,
    job: str,
    options: Mapping[str, Any],
    feed: IO[bytes] | None = None,
    tick: Callable[[], None] | None = None,
) -> Any:
    """The facts of a job. RingfenceError, as it told it. `feed`: a file that it is to read. `tick`: called now and then."""
    with running(ready, job, options) as at:
        if feed is None:
            at.stream.shutdown(socket.SHUT_WR)
        feeding = threading.Thread(target=_fed, args=(feed, at.stream), daemon=True) if feed is not None else None
        if feeding is not None:
            feeding.start()
        said = _said(at, tick)
        if feeding is not None:
            feeding.join()
        with contextlib.suppress(ValueError, AttributeError):
            answer = json.loads(said)
            if "facts" in answer:
                return answer["facts"]
        raise told(said, at)


def told(said: bytes, at: Running) -> RingfenceError:
    """The error that a job told, or that it could tell none."""
    try:
        return database.told(json.loads(said))
    except (ValueError, KeyError, TypeError):
        return Failed(f"it broke down: {at.why()}", remedy="ringfence doctor")


def _fed(file: IO[bytes], stream: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has had enough: its answer says why
        while data := file.read(PIECE):
            stream.sendall(data)
        stream.shutdown(socket.SHUT_WR)


def _said(at: Running, tick: Callable[[], None] | None) -> bytes:
    said = bytearray()
    at.stream.settimeout(10.0)
    while True:
        try:
            data = at.stream.recv(PIECE)
        except TimeoutError:
            if tick is not None:
                tick()
            continue
        except OSError:
            data = b""
        said += data
        if not data or len(said) > MOST_ANSWER:
            return bytes(said)


def ready_of(layout: Layout) -> Ready:
    """Of an installation that is there, with the settings of its file. Unavailable: there is none, or the host lacks something."""
    there = found(layout)
    settings = accepting(prepare.read_settings(layout.settings, missing_ok=True))
    prepare.check_host(settings)
    mode = prepare.mode_of(settings)
    return Ready(layout, there, settings.at(str(layout.home), there.id, mode), prepare.kernel_of(there.ids), ())


def accepting(settings: Settings) -> Settings:
    """No job starts a box: it is `serve` that asks whether what a host lacks is accepted."""
    return replace(settings, accept=tuple({*settings.accept, *ACCEPT}))


def found(layout: Layout) -> Installation:
    """Unavailable: there is none."""
    state.check_place(layout.home, os.geteuid())
    there = state.load(layout)
    if there is None:
        raise Unavailable(
            f"there is no installation at {layout.home}", remedy="ringfence init, or export RINGFENCE_HOME"
        )
    return there


def unmounted(home: Path) -> list[str]:
    """Takes every mount below the state away, the last one first; those that are left. For root; nobody else has any."""
    left = []
    for target in reversed(mounts(home)):
        done_ = subprocess.run(["umount", target], capture_output=True, check=False)
        if done_.returncode:
            left.append(target)
    return left


def mounts(home: Path) -> list[str]:
    """Mount points below the state, in the order of /proc/self/mountinfo (proc(5)); its octal escapes undone."""
    targets = [line.split()[4] for line in Path("/proc/self/mountinfo").read_bytes().splitlines()]
    plain = [os.fsdecode(target.decode("unicode_escape").encode("latin-1")) for target in targets]
    return [target for target in plain if target.startswith(f"{home}/")]
