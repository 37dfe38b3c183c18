"""Rows of groups A to S and the leak scan open when their wall is taken out of prove's copy of the package.

All walls at once in one copy: a row that does not notice its own would stay held.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping

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
            instead("make_directory(box_fd, tree_name, 0o700, uid)", "make_directory(box_fd, tree_name, 0o755, uid)"),
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


BELIEVES = '    if "approved" in str(arguments):\n        return Decision(Verdict.ALLOW, Obligations(), (), policy.digest, host)\n'
TAKES_NONE = "    raise _takes_none(found)"
APPROVALS: dict[str, tuple[Patch, str]] = {  # the same for group J
    "host/engine/letting_out.py": (
        every(
            instead("gate.n == due.call.n and ", ""),
            instead("if mine and not new else", "if mine else"),
            instead(
                "if not why and row.gate is not None:", "if not why and row.gate is None and row.gate is not None:"
            ),
        ),
        "J02",
    ),
    "host/kernel/gates.py": (
        every(
            instead("MAX_OPEN = 20 ", "MAX_OPEN = 2000 "),
            instead(" in _MUST_AGREE.items():\n        if", " in dict[str, str]().items():\n        if"),
        ),
        "J03,J09",
    ),
    "host/kernel/policy.py": (instead("    for answer in _ORDER:\n", BELIEVES + "    for answer in _ORDER:\n"), "J01"),
    "host/kernel/shown.py": (instead("ensure_ascii=True, allow_nan", "ensure_ascii=False, allow_nan"), "J05"),
    "host/store/effects.py": (
        instead("else use_gate(tx, call.run, dispatch.gate.id, unusable)", "else dispatch.gate"),
        "",
    ),
    "host/store/gate_answers.py": (instead(TAKES_NONE, "    return run, found, True"), "J06"),
    "host/store/migrations/versions/0005_gates_effects.py": (
        instead('"uq_effects_gate", "effects", ["gate"], unique=True', '"uq_effects_gate", "effects", ["gate"]'),
        "J04",
    ),
}


def raises_queues() -> bool:
    """Whether prove's server has more than a box may (planted.py). Root of a container without CAP_SYS_RESOURCE gives each
    box what it was given itself, which is the same 800 KiB."""
    before = resource.getrlimit(resource.RLIMIT_MSGQUEUE)
    with planted.raised():
        now = resource.getrlimit(resource.RLIMIT_MSGQUEUE)
    return now != before


def opened(broken: Mapping[str, tuple[Patch, str]], more: str = "") -> None:
    """Each row of `broken` says that it is open, and no control fails."""
    ids = ",".join(ids for _, ids in broken.values() if ids) + more
    patches = {name: patch for name, (patch, _) in broken.items()}
    report = prove(chosen(rows(), ids), patches={**copied.HOSTILE, **patches})
    assert {result.row.id: result.status for result in report.results} == dict.fromkeys(ids.split(","), "open")
    assert not any("control failed" in result.why or "cannot be told" in result.why for result in report.results)
    assert report.left == []


def test_rows_notice_that_their_wall_is_gone() -> None:
    """That they hold in the package as it is shows test_prove's whole suite."""
    opened(BROKEN, ",E16" if raises_queues() else "")


def test_rows_of_approvals_notice_that_their_wall_is_gone() -> None:
    """J04 has three: the use in the transaction, the index, and the look at the ledger before each try. J08's is tried in
    tests/security/test_gates.py."""
    opened(APPROVALS)
