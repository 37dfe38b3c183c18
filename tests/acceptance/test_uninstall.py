"""`ringfence uninstall`: nothing of an installation is left, and nothing of another is touched."""

from __future__ import annotations

import contextlib
import grp
import json
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringfence.bench.throwaway import CommandFailed
from ringfence.host.install import accounts, uninstall
from ringfence.prove import remains
from ringfence.prove.remains import Facts
from tests.support.installation import Installation, eventually, installation, until_file

pytestmark = pytest.mark.root
STEPS = (
    "_end_server",
    "_without_boxes",
    "_kill",
    "_without_mounts",
    "_without_cgroups",
    "_without_files",
    "_without_host",
)


@contextlib.contextmanager
def purged() -> Iterator[Installation]:
    """One that is gone at the end, by what is tried here or else by force."""
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(installation())
        made.ok("user", "add", "alice")
        made.ok("user", "add", "bob")
        facts = facts_of(made)
        try:
            yield made
        finally:
            if made.home.exists():
                with contextlib.suppress(CommandFailed):
                    made.run("uninstall", "--purge", "--yes", "--force")
                ended(made)
            if made.home.exists():  # else its ids may be another's by now
                remains.end_by_force(facts, made.home)


def facts_of(made: Installation) -> Facts:
    said = json.loads((made.home / "installation.json").read_text())
    return Facts(said["id"], (said["ids"][0], said["ids"][1]))


def names() -> set[str]:
    """Users and groups of the host."""
    return {f"u:{entry.pw_name}" for entry in pwd.getpwall()} | {f"g:{entry.gr_name}" for entry in grp.getgrall()}


def entries() -> set[str]:
    """Of the registry: whose state has a slice."""
    return {path.read_text().strip() for path in accounts.REGISTRY.iterdir()}


def left_of(made: Installation, facts: Facts) -> list[str]:
    shm = [str(path) for path in Path("/dev/shm").glob(f"ringfence-{facts.installation}-*")]
    entry = [f"entry {made.home}"] if accounts.REGISTRY.exists() and str(made.home) in entries() else []
    return [*remains.find(facts, made.home), *shm, *entry]


def run_box(made: Installation, user: str) -> subprocess.Popen[bytes]:
    """With a command in it that goes on until it is ended."""
    process = made.popen("exec", user, "--", "sh", "-c", f"touch here; {until_file('never')}")
    eventually(lambda: made.shell(user, "test -e here").code == 0, what="the command")
    return process


def ended(made: Installation) -> None:
    """The server was stopped by somebody else than who started it."""
    assert made.server is not None
    made.server.wait(60)
    assert made.server.stdout is not None
    made.server.stdout.close()


def test_nothing_is_left_and_another_is_untouched(tmp_path: Path) -> None:
    before = names()
    with installation() as other, purged() as made:
        other.ok("user", "add", "carol")
        kept = run_box(other, "carol")
        running = run_box(made, "alice")
        facts = facts_of(made)
        unit, others = (uninstall.UNITS / f"ringfence-{name}.service" for name in ("test-mine", "test-other"))
        for path, home in ((unit, made.home), (others, other.home)):
            path.write_text(f"[Service]\nEnvironment=RINGFENCE_HOME={home}\n")
        try:
            there = {line.split()[0] for line in left_of(made, facts)}
            assert {"process", "cgroup", "mount", "loop", "folder", "entry"} <= there  # what is looked for can be found

            code, error = refused(made, "uninstall", "--purge", "--yes")
            assert (code, error["code"]) == (1, "conflict")
            assert "boxes run" in error["message"]
            assert made.ok("box", "show", "alice", "--json").json()["observed"] == "running"

            said = made.ok("uninstall", "--json").json()
            assert len(said["stopped"]) == 1
            assert {str(made.home), str(unit)} <= set(said["takes"])
            assert made.ok("box", "show", "alice", "--json").json()["observed"] == "stopped"
            running.wait(60)

            gone = made.ok("uninstall", "--purge", "--yes", "--json").json()
            ended(made)
            assert (gone["left"], gone["boxes"], gone["installation"]) == ([], 2, facts.installation)
            assert left_of(made, facts) == []
            assert not unit.exists()
            assert names() == before
            assert made.run("uninstall", "--purge", "--yes").code == 5  # nothing is there any more

            assert others.exists()
            assert kept.poll() is None
            assert other.ok("box", "show", "carol", "--json").json()["observed"] == "running"
            assert other.ok("exec", "carol", "--", "cat", "here").code == 0
        finally:
            for path in (unit, others):
                path.unlink(missing_ok=True)
            for process in (kept, running):
                process.kill()
                process.communicate()


def refused(made: Installation, *words: str) -> tuple[int, dict[str, Any]]:
    result = made.run(*words, "--json")
    error: dict[str, Any] = result.json()["error"]
    return result.code, error


def killed_at(made: Installation, step: str, *, after: bool) -> None:
    """`uninstall --purge`, killed just before that step, or just after it."""
    code = f"""
import os, signal
from ringfence.host.install import uninstall
real = uninstall.{step}
def step(*words):
    if {after}:
        real(*words)
    os.kill(os.getpid(), signal.SIGKILL)
uninstall.{step} = step
uninstall.purge(uninstall.find(os.environ), force=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=made.environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_killed_at_any_step_it_is_finished_by_the_next() -> None:
    """One installation, killed at each step in turn: every call finds what the one before has left of it."""
    with purged() as made:
        running = run_box(made, "alice")
        facts = facts_of(made)
        for step in STEPS:
            killed_at(made, step, after=False)
        ended(made)
        assert made.home.exists() is False  # by then: the files go before what lies outside the state
        assert str(made.home) in entries()
        assert made.ok("uninstall", "--purge", "--yes", "--json").json()["left"] == []
        assert left_of(made, facts) == []
        running.kill()
        running.communicate()


def test_killed_amid_the_files_the_id_is_still_known() -> None:
    with purged() as made:
        facts = facts_of(made)
        code = """
import os, signal
from ringfence.host.install import uninstall
real, seen = uninstall.take_away, []
def take_away(path):
    seen.append(path)
    if len(seen) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    real(path)
uninstall.take_away = take_away
uninstall.purge(uninstall.find(os.environ), force=True)
"""
        done = subprocess.run(
            [sys.executable, "-c", code], env=made.environment, check=False, capture_output=True, text=True
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        ended(made)
        assert (made.home / "installation.json").exists()
        assert not (made.home / "boxes").exists()  # the first by name
        assert made.ok("uninstall", "--purge", "--yes", "--json").json()["left"] == []
        assert left_of(made, facts) == []


def test_where_no_spawner_can_work_root_does_it() -> None:
    """With a box that runs and is mounted, and settings that no host can meet."""
    with purged() as made:
        running = run_box(made, "alice")
        facts = facts_of(made)
        (made.home / "ringfence.toml").write_text('bwrap = "/nonexistent/bwrap"\n')
        gone = made.ok("uninstall", "--purge", "--yes", "--force", "--json").json()
        ended(made)
        running.communicate()
        assert gone["left"] == []
        assert left_of(made, facts) == []


def test_what_somebody_mounted_below_it_survives(tmp_path: Path) -> None:
    """It is unmounted. One that cannot be keeps the state as it is, and the next call finishes. Control: the foreign file can be seen
    through the state."""
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "file").write_text("kept")
    with purged() as made:
        facts = facts_of(made)
        points = [made.home / "snapshots" / "shared", made.home / "vault" / "shared"]
        for point in points:
            point.mkdir()
            subprocess.run(["mount", "--bind", str(foreign), str(point)], check=True)
            assert (point / "file").exists()
        code = """
import json, os
from ringfence.host.install import jobs, uninstall
jobs.unmounted = lambda home: []
uninstall._quiet = lambda *command: None
print(json.dumps(uninstall.purge(uninstall.find(os.environ), force=True)))
"""
        try:
            done = subprocess.run(
                [sys.executable, "-c", code], env=made.environment, check=True, capture_output=True, text=True
            )
            said = json.loads(done.stdout)
            assert {f"mount {point}" for point in points} <= set(said["left"])
            assert {f"what is mounted at {point}" for point in points} <= set(said["kept"])
            assert (made.home / "installation.json").exists()
            assert (made.home / "vault" / "audit.key").exists()
            assert (foreign / "file").read_text() == "kept"
            ended(made)
            assert made.ok("uninstall", "--purge", "--yes", "--force", "--json").json()["left"] == []
            assert left_of(made, facts) == []
            assert (foreign / "file").read_text() == "kept"
        finally:
            for point in points:
                subprocess.run(["umount", str(point)], capture_output=True, check=False)


def test_nobody_is_asked_where_there_is_no_terminal() -> None:
    with purged() as made:
        code, error = refused(made, "uninstall", "--purge")
        assert (code, error["code"]) == (2, "usage")
        assert made.home.exists()
        assert made.server is not None
        assert made.server.poll() is None


def test_the_word_is_asked_for_on_a_terminal() -> None:
    with purged() as made:
        facts = facts_of(made)
        assert typed(made, "yes") == 1
        assert made.home.exists()
        assert typed(made, facts.installation) == 0
        ended(made)
        assert left_of(made, facts) == []


def typed(made: Installation, word: str) -> int:
    """The exit code of a purge that is answered on a terminal."""
    ours, theirs = os.openpty()
    code = "import sys; from ringfence.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "uninstall", "--purge"]
    with open(ours, "r+b", buffering=0) as terminal:
        process = subprocess.Popen(
            command, env=made.environment, stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs)
        terminal.write(word.encode() + b"\n")
        return process.wait(120)
