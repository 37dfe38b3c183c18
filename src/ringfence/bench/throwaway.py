"""A throw-away installation: its own state, server and boxes, driven by the command line, gone at the end.

What the demo, the benchmarks and the acceptance tests stand on. Must never touch another installation.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringfence.client.errors import ApiError
from ringfence.client.sync import SyncClient

COMMAND = str(Path(sys.executable).parent / "ringfence")
ACCEPTABLE = (
    "no-cgroup",
    "shared-uid",
    "no-landlock",
    "no-landlock-scope",
    "no-pidfs",
    "no-nft",
    "no-disk-quota",
    "no-cpu-limit",
    "no-swap-limit",
    "no-freezer",
)  # what an ordinary account may lack
END_SECONDS = 30
SAYS = "ringfence: "  # before what an error says, on stderr


class CommandFailed(Exception):
    """A command of ours that did not exit 0."""


class ServerEnded(CommandFailed):
    """A server that did not come up. `message` and `remedy`: as it gave them; empty: it gave none."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(f"the server ended with {code}: {said[-2000:]}")
        self.message, self.remedy = refusal(said)


def refusal(said: str) -> tuple[str, str]:
    """(what, remedy) of the last error among lines of stderr: the line that says what, and the indented one below."""
    lines = said.splitlines()
    for at in range(len(lines) - 1, -1, -1):
        if lines[at].startswith(SAYS):
            below = lines[at + 1] if at + 1 < len(lines) and lines[at + 1].startswith("  ") else ""
            return lines[at].removeprefix(SAYS), below.strip()
    return "", ""


@dataclass(frozen=True, slots=True)
class Result:
    code: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        return self.out.decode(errors="surrogateescape")

    @property
    def errors(self) -> str:
        return self.err.decode(errors="replace")

    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Installation:
    home: Path
    server: subprocess.Popen[str] | None = None
    lines: list[str] = field(default_factory=list)  # what the server said on stdout
    site: Path | None = None  # a folder with another copy of the package, which every command then runs
    apart: bool = False  # the server has a session of its own: a ^C at the terminal is not for it
    before: tuple[str, ...] = ()  # words in front of the server's command, which end by becoming it

    @property
    def log(self) -> Path:
        """What the server said on stderr."""
        return self.home.with_suffix(".log")

    @property
    def socket(self) -> str:
        return str(self.home / "run" / "api.sock")

    @property
    def environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("RINGFENCE_")}
        copied = {"PYTHONPATH": str(self.site)} if self.site is not None else {}
        return {**inherited, "RINGFENCE_HOME": str(self.home)} | copied

    # -- the server

    def start(self, *options: str, wait: bool = True) -> subprocess.Popen[str]:
        command = [*self.before, COMMAND, "serve", "--listen", "none", *options]
        if os.geteuid() != 0:
            command += ["--accept", ",".join(ACCEPTABLE)]
        with self.log.open("a") as log:
            self.server = subprocess.Popen(
                command,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=self.apart,
            )
        if wait:
            self.await_line(" serving at ")
        return self.server

    def await_line(self, part: str) -> str:
        """The first further line of the server that has `part` in it. ServerEnded: before."""
        assert self.server is not None and self.server.stdout is not None
        for line in self.server.stdout:
            self.lines.append(line.strip())
            if part in line:
                return line.strip()
        code = self.server.wait()
        self._hang_up()
        raise ServerEnded(code, self.log.read_text())

    def kernel_pid(self) -> int:
        assert self.server is not None
        children = Path(f"/proc/{self.server.pid}/task/{self.server.pid}/children").read_text().split()
        found = [int(pid) for pid in children if b"ringfence.host.app" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        if len(found) != 1:
            raise CommandFailed(f"the server has {len(found)} kernel processes")
        return found[0]

    def kill(self, *, kernel_only: bool = False) -> list[int]:
        """SIGKILL, to both halves unless told otherwise; the pids, once both are gone."""
        assert self.server is not None
        pids = [self.kernel_pid()] if kernel_only else [self.kernel_pid(), self.server.pid]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.server.wait(END_SECONDS)
        self._hang_up()
        return pids

    def stop(self) -> int:
        """Its exit status; 0 when there is none."""
        if self.server is None or self.server.poll() is not None:
            return 0
        self.server.terminate()
        try:
            code = self.server.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.server.kill()
            code = self.server.wait()
        self._hang_up()
        return code

    def _hang_up(self) -> None:
        assert self.server is not None
        if self.server.stdout is not None:
            self.server.stdout.close()

    # -- the command line

    def popen(self, *words: str | bytes, stdin: int | None = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [COMMAND, *words], env=self.environment, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, *words: str | bytes, stdin: bytes | None = None, limit: float = 120) -> Result:
        """`limit` in seconds: CommandFailed above it."""
        process = self.popen(*words, stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL)
        try:
            out, err = process.communicate(stdin, timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise CommandFailed(f"{words!r} took more than {limit} s; {out[-500:]!r} {err[-500:]!r}") from None
        return Result(process.returncode, out, err)

    def ok(self, *words: str | bytes, stdin: bytes | None = None, limit: float = 120) -> Result:
        result = self.run(*words, stdin=stdin, limit=limit)
        if result.code != 0:
            raise CommandFailed(f"{words!r}: exit {result.code}\n{result.errors}\n{result.text[-2000:]}")
        return result

    def shell(self, user: str, script: str, *options: str, limit: float = 120) -> Result:
        """A script in the user's box, which may fail."""
        return self.run("exec", user, *options, "--", "sh", "-c", script, limit=limit)

    def box(self, user: str) -> dict[str, Any]:
        answer = self.ok("box", "show", user, "--json").json()
        assert isinstance(answer, dict)
        return answer


def state_base() -> Path:
    """A directory for states, which the server's account can reach."""
    if os.geteuid() == 0:
        return Path("/var/lib")
    base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    base.mkdir(parents=True, exist_ok=True)
    return base


def place(name: str, settings: str = "") -> Path:
    """A new directory for a state, with nothing in it but ringfence.toml, if `settings` has any text."""
    home = Path(tempfile.mkdtemp(prefix=f"ringfence-{name}-", dir=state_base()))
    home.chmod(0o711)
    if settings:
        (home / "ringfence.toml").write_text(settings)
    return home


@contextlib.contextmanager
def installation(*options: str, settings: str = "", name: str = "test", started: bool = True) -> Iterator[Installation]:
    """`settings`: text of ringfence.toml. `options`: of `serve`."""
    made = Installation(place(name, settings))
    try:
        made.ok("init")
        if started:
            made.start(*options)
        yield made
    finally:
        remove(made)


def remove(made: Installation) -> None:
    """Removes every user with their files (an ordinary account could not delete what has subordinate ids), stops the
    server, deletes the state. CommandFailed: a box is left."""
    try:
        if made.server is not None and made.server.poll() is None:
            _purge(made)
    finally:
        made.stop()
        _unmount(made.home)
        shutil.rmtree(made.home, ignore_errors=True)
    made.log.unlink(missing_ok=True)


def _purge(made: Installation) -> None:
    """By the client, not by a command for each: an interpreter's start is longer than most removals."""
    try:
        with SyncClient(socket=made.socket) as client:
            for box in client.boxes():
                client.remove_user(box["user"], purge=True, tenant=box["tenant"])
    except ApiError as error:
        raise CommandFailed(f"a user is not removed: {error}") from error


def _unmount(home: Path) -> None:
    """Disks of boxes whose server died before it could remove them: they would hold their device for ever."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place = line.split()[4]
        if place.startswith(f"{home}/boxes/"):
            subprocess.run(["umount", "--lazy", place], check=False)


def measured(module: str, *made: Installation) -> Any:
    """What a process of its own, which drives the spawners of these installations itself, has measured. CommandFailed."""
    configs = [str(one.home / "spawner" / "config.json") for one in made]
    done = subprocess.run([sys.executable, "-m", module, *configs], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandFailed(f"the measuring process ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
