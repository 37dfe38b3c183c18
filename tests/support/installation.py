"""The throw-away installation with what tests ask of it.

All of one process's are given the runtime that the first of them made, by hard links, as prove does for its own further
ones (docs/decisions/0027): `init` and `serve` look for it by its digest and make it when it is not there. No test may
change a file of it; what tests of the copy itself need, they make themselves (tests/contract/test_install.py).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ringfence.bench import throwaway
from ringfence.bench.throwaway import COMMAND, state_base
from ringfence.host.kernel.life.states import CANNOT_FREEZE

RINGFENCE = COMMAND
__all__ = ["RINGFENCE", "Installation", "eventually", "installation", "of_uid", "state_base", "until_file"]


class Installation(throwaway.Installation):
    def outcome(self, user: str, script: str, *options: str, limit: float = 120) -> dict[str, Any]:
        """The --json object of an exec."""
        result = self.run("exec", user, "--json", *options, "--", "sh", "-c", script, limit=limit)
        answer = result.json()
        assert isinstance(answer, dict)
        return answer

    def freezes(self, user: str) -> bool:
        """Whether their box can be paused on this host."""
        return CANNOT_FREEZE.isdisjoint(self.box(user)["weak"])

    def say(self, user: str, thread: str, *lines: str, key: str | None = None) -> dict[str, Any]:
        words = ["say", "--as", user, "--thread", thread, "--json", *(["--key", key] if key else [])]
        answer = self.run(*words, "\n".join(lines)).json()
        assert isinstance(answer, dict)
        return answer


@functools.cache
def _kept() -> Path:
    """A folder for links of the first runtime, until this process ends. A copy is 4,400 files, of 94 MB, and a wait for
    all that the volume has to write yet: more than the rest of an installation and of its server's start."""
    folder = Path(tempfile.mkdtemp(prefix="ringfence-kept-", dir=state_base()))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _link(source: Path, target: Path) -> None:
    """Each runtime of `source` that `target` lacks. One that is not whole has a name with a dot, and is left out."""
    target.mkdir(mode=0o755, exist_ok=True)
    target.chmod(0o755)
    for runtime in source.iterdir():
        if not runtime.name.startswith(".") and not (target / runtime.name).exists():
            shutil.copytree(runtime, target / runtime.name, symlinks=True, copy_function=os.link)


@contextlib.contextmanager
def installation(
    *options: str, settings: str = "", started: bool = True, before: tuple[str, ...] = ()
) -> Iterator[Installation]:
    """`before`: words in front of the server's command."""
    ours = Installation(throwaway.place("test", settings), before=before)
    try:
        _link(_kept(), ours.home / "runtime")
        ours.ok("init")
        _link(ours.home / "runtime", _kept())
        if started:
            ours.start(*options)
        yield ours
    finally:
        throwaway.remove(ours)


def until_file(name: str) -> str:
    """A command that waits for a file in its box, so that nothing depends on how fast the host is."""
    return f"until [ -e {name} ]; do sleep 0.1; done"


def of_uid(uid: int) -> dict[int, str]:
    """pid -> /proc/PID/status of every process of a host id that has not ended. One that has, and that the host's PID 1
    must still wait for, is nobody's to end."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            text = status.read_text()
            if f"\nUid:\t{uid}\t" in text and "\nState:\tZ" not in text:
                found[int(status.parent.name)] = text
    return found


def eventually(holds: Callable[[], object], seconds: float = 30.0, what: str = "it") -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come true within {seconds} s"
        time.sleep(0.02)
