"""Rows of groups A to S and the leak scan open when their wall is taken out of prove's copy of the package.

All walls at once in one copy: a row that does not notice its own would stay held.
"""

from __future__ import annotations

import resource

import pytest

from ringfence.prove import copied, planted
from ringfence.prove.copied import Patch
from ringfence.prove.registry import chosen, rows
from ringfence.prove.suite import prove

pytestmark = pytest.mark.root


def instead(before: str, after: str) -> Patch:
    return lambda source: source.replace(before, after)


def every(*patches: Patch) -> Patch:
    """One after the other; each must change something."""

    def patch(source: str) -> str:
        for each in patches:
            before, source = source, each(source)
            assert source != before
        return source

    return patch


def no_rlimits(source: str) -> str:
    """Without those of file size, message queues, queued signals and locked memory."""
    gone = ("RLIMIT_FSIZE", "RLIMIT_MSGQUEUE", "RLIMIT_SIGPENDING", "RLIMIT_MEMLOCK")
    return "".join(line for line in source.splitlines(True) if not any(name in line for name in gone))


PEER = "def _by_peer(door: Door, connection: HTTPConnection) -> Actor:\n"
TELLS = '    __import__("sys").stderr.write(f"{connection.headers}\\n")\n'
BROKEN: dict[str, tuple[Patch, str]] = {  # file -> what is wrong in it, and the rows that must say so
    "guest/syscalls.py": (instead("    if abi == 0:\n", "    if abi:\n"), "H03"),
    "spawner/launch.py": (
        every(
            no_rlimits,
            instead("    syscalls.join_session_keyring()\n", ""),
            instead("        syscalls.set_attributes(tree,", "        (tree,"),
        ),
        "A13,C10,C25,E09,E17,E18",
    ),
    "spawner/limits.py": (
        every(
            instead("cmds_memory = limits.memory - max(64 * MIB, limits.memory // 16)", "cmds_memory = limits.memory"),
            instead(
                "    knobs = _memory(version, whole.memory) if", "    return []\n    knobs = _memory(version, 1) if"
            ),
        ),
        "E02,E27",
    ),
    "spawner/loop_image.py": (instead("syscalls.MS_NOSUID | syscalls.MS_NODEV", "0"), ""),
    "spawner/operations.py": (instead("                root=tree,\n", ""), "S06"),
    "spawner/paths.py": (
        every(
            instead('return TREES[1:] if kind == "skill" else TREES', "return TREES"),
            instead("    status = os.fstat(fd)\n    if ", "    status = os.fstat(fd)\n    return\n    if "),
            instead('make_directory(box_fd, "tree", 0o700, uid)', 'make_directory(box_fd, "tree", 0o755, uid)'),
        ),
        "A03,A09,S03",
    ),
    "spawner/profile.py": (
        instead('NARROW if kind == "skill" else WHOLE', "WHOLE"),
        "H07",
    ),  # a jail is a box like others
    "spawner/seccomp_table.py": (instead('    Row("adjtimex", 159, 171),\n', ""), "C26"),
    "spawner/server.py": (instead("flags & socket.MSG_CTRUNC", "flags & 0"), "S04"),
    "host/broker/bounds.py": (instead("frame_seconds: float = 10.0", "frame_seconds: float = 1000.0"), "G04"),
    "host/store/steps.py": (
        instead("    if known.state != StepState.BEGUN:\n        return step_of(known)\n    ended", "    ended"),
        "G11",
    ),
    "host/web/login.py": (instead(PEER, PEER + TELLS), "K02,K05"),
}


def raises_queues() -> bool:
    """Whether prove's server has more than a box may (planted.py). Root of a container without CAP_SYS_RESOURCE gives each
    box what it was given itself, which is the same 800 KiB."""
    before = resource.getrlimit(resource.RLIMIT_MSGQUEUE)
    with planted.raised():
        now = resource.getrlimit(resource.RLIMIT_MSGQUEUE)
    return now != before


def test_rows_notice_that_their_wall_is_gone() -> None:
    """That they hold in the package as it is shows test_prove's whole suite."""
    ids = ",".join(ids for _, ids in BROKEN.values() if ids)
    ids += ",E16" if raises_queues() else ""
    patches = {name: patch for name, (patch, _) in BROKEN.items()}
    report = prove(chosen(rows(), ids), patches={**copied.HOSTILE, **patches})
    assert {result.row.id: result.status for result in report.results} == dict.fromkeys(ids.split(","), "open")
    assert not any("control failed" in result.why for result in report.results)
    assert report.left == []
