"""The guest tree: what is in it, that it is the same each time, and that its digest tells."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ringfence.host.install.guest_tree import LATE, PACKAGE, build, bundled, digest, sources

PYTHON = "/usr/bin/python3"


def test_the_tree_holds_compiled_code_of_two_rooms_and_nothing_else(tmp_path: Path) -> None:
    build(tmp_path / "t", PYTHON)
    files = {str(p.relative_to(tmp_path / "t")) for p in (tmp_path / "t").rglob("*") if not p.is_dir()}
    assert {"init.pyc", "bin/python", "bundle", "lib/ringfence/guest/loop.pyc"} <= files
    assert files == set(sources()) | {"bundle", "bin/python", "bin/no-root", "bin/apt", "bin/apt-get", "bin/sudo"}
    whole = {str(p.relative_to(PACKAGE)) for room in ("wire", "guest") for p in (PACKAGE / room).glob("*.py")}
    held = [str(p.relative_to(PACKAGE)) for p in (*sources().values(), *bundled().values())]
    assert sorted(held) == sorted(whole | {"__init__.py"})  # each module once, in the bundle or beside it
    assert os.readlink(tmp_path / "t/bin/python") == PYTHON
    assert {p.stat().st_mode & 0o777 for p in (tmp_path / "t").rglob("*.pyc")} | {
        (tmp_path / "t/bundle").stat().st_mode & 0o777
    } == {0o444}


def test_the_same_sources_give_the_same_digest_anywhere_and_at_any_time(tmp_path: Path) -> None:
    os.umask(0o077)
    try:
        first = build(tmp_path / "a", PYTHON)
    finally:
        os.umask(0o022)
    second = build(tmp_path / "another/place", PYTHON)
    assert first == second == digest(tmp_path / "a")
    assert len(first) == 64


def test_the_digest_tells_of_a_changed_byte_name_or_link(tmp_path: Path) -> None:
    tree = tmp_path / "t"
    found = {build(tree, PYTHON)}
    code = tree / "init.pyc"
    code.chmod(0o644)
    code.write_bytes(code.read_bytes() + b"x")
    found.add(digest(tree))
    code.rename(tree / "other.pyc")
    found.add(digest(tree))
    (tree / "bin/python").unlink()
    (tree / "bin/python").symlink_to("/tmp/python")
    found.add(digest(tree))
    assert len(found) == 4


def loaded(tree: Path, imports: str) -> subprocess.CompletedProcess[str]:
    """What PID 1's own finder has after `imports`: new modules, what is left in the bundle, where each came from."""
    code = (
        "import sys; before = set(sys.modules)\n"
        f"names = {{'__name__': 'init'}}; exec(__import__('marshal').loads(open({str(tree / 'init.pyc')!r}, 'rb').read()[16:]), names)\n"
        f"bundle = names['Bundle']({str(tree)!r}); sys.meta_path.insert(0, bundle)\n"
        f"{imports}\n"
        "print(' '.join(sorted(set(sys.modules) - before)))\n"
        "print(' '.join(bundle._codes))\n"
        "print(' '.join(n for n in sys.modules if n.startswith('ringfence') and sys.modules[n].__loader__ is not bundle))"
    )
    return subprocess.run([PYTHON, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)


PID_1 = "import ringfence.guest.forks, ringfence.guest.syscalls, ringfence.guest.pid1, ringfence.guest.zygote"


def test_the_guest_starts_without_the_modules_that_cost(tmp_path: Path) -> None:
    """PID 1 must be up within twice a bare start: nothing that takes milliseconds to import."""
    build(tmp_path / "t", PYTHON)
    done = loaded(tmp_path / "t", PID_1)
    names = {name for name in done.stdout.splitlines()[0].split() if not name.startswith("ringfence")}
    assert names <= {"_ctypes", "_heapq", "_json", "_socket", "_struct", "binascii", "fcntl", "gc", "select"}


def test_the_bundle_is_what_pid_1_loads_and_the_rest_is_found_beside_it(tmp_path: Path) -> None:
    build(tmp_path / "t", PYTHON)
    _, left, elsewhere = loaded(tmp_path / "t", PID_1).stdout.split("\n")[:3]
    assert (left, elsewhere) == ("", "")
    late = loaded(
        tmp_path / "t", f"{PID_1}\nimport ringfence.guest.loop, ringfence.guest.native, ringfence.guest.tools"
    )
    assert set(late.stdout.split("\n")[2].split()) == {f"ringfence.{name.replace('/', '.')}" for name in LATE} - {
        "ringfence.wire.messages"
    }


def test_a_loop_costs_each_turn_little_more_than_its_own_code(tmp_path: Path) -> None:
    """No package `json`, no patterns, no types, no OpenSSL, no paths: they take longer than all that the loop is."""
    build(tmp_path / "t", PYTHON)
    before = loaded(tmp_path / "t", PID_1).stdout.split("\n")[0].split()
    names = (
        loaded(tmp_path / "t", f"{PID_1}\nimport ringfence.guest.loop, ringfence.guest.native")
        .stdout.split("\n")[0]
        .split()
    )
    more = {name for name in set(names) - set(before) if not name.startswith("ringfence.")}
    assert "ringfence.guest.history" in names
    assert "ringfence.guest.tools" not in names
    assert more <= {"time", "_sha256", "_sha2"}
