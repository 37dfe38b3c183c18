"""A backup, and a restore, killed anywhere: nothing half is called a backup or an installation, and boxes go on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.host.install import accounts
from ringfence.prove import remains
from tests.support.installation import Installation, eventually, installation
from tests.support.whole_backups import DIGEST, at, away, facts_of, home, python

pytestmark = pytest.mark.root
STEPS = ("_made", "_spend", "jobs.done", "_named", "_synced")


def slow_reader(made: Installation, target: Path) -> subprocess.Popen[bytes]:
    """A backup that nobody takes the bytes of but for its beginning: the server waits for room in its pipe."""
    with target.open("wb") as out:
        process = made.popen("backup", "create", "--output", "-")
        assert process.stdout is not None
        out.write(process.stdout.read(1 << 20))
    return process


def frozen(made: Installation, user: str) -> bool:
    """Whether the box stands still, by the host's own word."""
    box = made.box(user)["box"]
    found = remains.cgroups(facts_of(made.home).installation, box)
    states = [path / name for path in found for name in ("cgroup.freeze", "freezer.state")]
    return any(path.exists() and path.read_text().strip() in ("1", "FROZEN") for path in states)


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Installation]:
    """Alice's box runs and has more than pipes and buffers hold."""
    with installation() as made:
        made.ok("user", "add", "alice")
        made.ok("exec", "alice", "--", "sh", "-c", "head -c 60000000 /dev/urandom > noise; sync")
        yield made


def test_a_server_that_dies_leaves_no_backup_and_a_box_that_goes_on(large: Installation, tmp_path: Path) -> None:
    """Killed while the box stands still: the stream has no end, and the next server lets the box go on."""
    begun = large.popen("exec", "alice", "--", "sh", "-c", "while :; do date +%s%N > beat; done")
    process = slow_reader(large, tmp_path / "cut.tar")
    eventually(lambda: frozen(large, "alice"), what="the freeze")
    large.kill()
    assert process.stdout is not None
    with (tmp_path / "cut.tar").open("ab") as out:
        shutil.copyfileobj(process.stdout, out)
    said = process.communicate()[1].decode()
    assert process.returncode != 0
    assert "whole" not in said.splitlines()[0].replace("no whole", "")
    assert large.run("backup", "verify", str(tmp_path / "cut.tar")).code == 2
    large.start()
    assert not frozen(large, "alice")
    before = large.ok("exec", "alice", "--", "cat", "beat").text
    eventually(lambda: large.ok("exec", "alice", "--", "cat", "beat").text != before, what="the command that went on")
    large.ok("backup", "create", "--output", str(tmp_path / "whole.tar"))
    begun.kill()
    begun.communicate()


def test_a_command_that_dies_leaves_no_file_and_a_box_that_goes_on(large: Installation, tmp_path: Path) -> None:
    process = slow_reader(large, tmp_path / "cut.tar")
    eventually(lambda: frozen(large, "alice"), what="the freeze")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    eventually(lambda: not frozen(large, "alice"), what="the thaw")
    assert large.ok("exec", "alice", "--", "echo", "on").text == "on\n"
    whole = tmp_path / "whole.tar"
    to_file = large.popen("backup", "create", "--output", str(whole))
    eventually(lambda: list(tmp_path.glob(".whole.tar.*.part")), what="the file")
    to_file.send_signal(signal.SIGKILL)
    to_file.communicate()
    assert not whole.exists()
    eventually(lambda: not frozen(large, "alice"), what="the thaw")
    large.ok("backup", "create", "--output", str(whole))
    large.ok("backup", "verify", str(whole))


def test_one_without_a_server_that_dies(large: Installation, tmp_path: Path) -> None:
    """The spawner and the job end with it, and the box that ran goes on."""
    large.stop()
    process = slow_reader(large, tmp_path / "cut.tar")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    eventually(lambda: large.run("db", "rebuild", "--json").code == 0, what="the lock")  # the spawner has gone
    large.start()
    assert not frozen(large, "alice")
    assert large.ok("exec", "alice", "--", "echo", "on").text == "on\n"


def killed_at(made: Installation, file: Path, step: str, *, after: bool) -> None:
    """A restore, killed just before that step of it, or just after."""
    module, _, name = f"whole_restore.{step}".rpartition(".")
    code = f"""
import os, signal, sys
from pathlib import Path
from ringfence.host.install import jobs, whole_restore
module = {module.rpartition(".")[2]}
real = module.{name}
def step(*words):
    found = real(*words) if {after} else None
    os.kill(os.getpid(), signal.SIGKILL)
module.{name} = step
whole_restore.restore(os.environ, whole_restore.Wish(Path({str(file)!r})))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=made.environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_a_restore_killed_at_any_step_is_made_by_the_next(tmp_path: Path) -> None:
    file = tmp_path / "b.tar"
    with installation() as made:
        for user in ("alice", "bob"):
            made.ok("user", "add", user)
            made.ok("exec", user, "--", "sh", "-c", "head -c 3000000 /dev/urandom > noise")
        digest = python(made, "alice", DIGEST)
        made.ok("backup", "create", "--output", str(file))
        made.stop()
        away(made.home)
    with home("killed") as place:
        other = Installation(place)
        for step in STEPS:
            for after in (False, True):
                if (step, after) == ("_synced", True):
                    continue  # it is there by then
                killed_at(other, file, step, after=after)
                whole = (step, after) in (("_named", True), ("_synced", False))  # the rename is the last that counts
                assert place.exists() == whole, (step, after)
                if not whole:
                    continue
                with at(place) as server:
                    assert python(server, "alice", DIGEST) == digest
                    for user in ("alice", "bob"):
                        server.ok("box", "stop", user)
                if step == "_named":
                    away(place)
        # Over what is there: until its name changes hands, that is what is there.
        before = (place / "installation.json").read_text()
        for step in ("_made", "jobs.done"):
            killed_forced(other, file, step)
            assert (place / "installation.json").read_text() == before
        other.ok("backup", "restore", str(file), "--home", str(place), "--force")
        assert not list(place.parent.glob(f"{place.name}.restoring"))
        with at(place) as server:
            assert python(server, "alice", DIGEST) == digest
        left = [
            line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"{place.name}.restoring" in line
        ]
        assert left == []
        assert place in accounts.homes()


def killed_forced(made: Installation, file: Path, step: str) -> None:
    code = f"""
import os, signal
from pathlib import Path
from ringfence.host.install import jobs, whole_restore
module = jobs if {step!r} == "jobs.done" else whole_restore
real = getattr(module, {step.rpartition(".")[2]!r})
def step(*words):
    real(*words)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(module, {step.rpartition(".")[2]!r}, step)
whole_restore.restore(os.environ, whole_restore.Wish(Path({str(file)!r}), force=True))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=made.environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_a_job_that_dies_leaves_no_installation(tmp_path: Path) -> None:
    """The process that puts everything in its place, killed while it does."""
    file = tmp_path / "b.tar"
    with installation() as made:
        made.ok("user", "add", "alice")
        made.ok("exec", "alice", "--", "sh", "-c", "head -c 200000000 /dev/urandom > noise")
        made.ok("backup", "create", "--output", str(file))
        made.stop()
        away(made.home)
    with home("job") as place:
        other = Installation(place)
        process = other.popen("backup", "restore", str(file), "--home", str(place))
        built = place.with_name(f"{place.name}.restoring")
        eventually(lambda: list(built.glob("boxes/*")), what="the first box")
        [job] = [int(pid.name) for pid in Path("/proc").glob("[0-9]*") if f"{built}/run/job.json" in cmdline(pid)]
        os.kill(job, signal.SIGKILL)
        said = process.communicate()[1].decode()
        assert process.returncode == 1, said
        assert not place.exists()
        assert not built.exists()
        other.ok("backup", "restore", str(file), "--home", str(place))


def cmdline(pid: Path) -> str:
    try:
        return (pid / "cmdline").read_text()
    except OSError:
        return ""
