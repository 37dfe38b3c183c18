"""What `bench walls` says of its samples, and what its sides leave out."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from ringfence.bench import bombs, walls, walls_inside, walls_sides
from ringfence.bench.throwaway import CommandFailed
from ringfence.bench.walls_sides import BARE, JAIL, WHOLE
from ringfence.spawner import limits
from ringfence.spawner.limits import Whole
from ringfence.spawner.seccomp import AUDIT_ARCH, RET_ALLOW, RET_ERRNO
from tests.support import bpf

CPU = frozenset({"cpu", "pids"})
ALL_BOXES = Whole(1 << 30, 750, 180_000)


def found(warm: float = 1.0, cold: float = 40.0, freeze: float = 1.0) -> dict[str, dict[str, list[float]]]:
    """Of a host where the plain jail takes 1 ms and 40 ms, and namespaces alone half of that."""
    return {
        "warm": {WHOLE: [warm], JAIL: [1.0], BARE: [0.5]},
        "cold": {WHOLE: [cold], JAIL: [40.0], BARE: [20.0]},
        "made": {WHOLE: [25.0], JAIL: [9.0], BARE: [9.0]},
        "frozen": {"freeze": [freeze], "thaw": [1.0]},
        "killed": {"kill": [70.0]},
    }


def test_the_walls_are_held_against_the_plain_jail_and_not_against_namespaces_alone() -> None:
    assert all(row.holds for row in walls.rows(found(warm=1.25, cold=55.0)))


@pytest.mark.parametrize(
    ("samples", "missed"),
    [(found(warm=1.26), "warm command"), (found(cold=55.1), "first command"), (found(freeze=5.1), "freeze")],
)
def test_a_promise_that_is_missed_is_said(samples: dict[str, dict[str, list[float]]], missed: str) -> None:
    [row] = [row for row in walls.rows(samples) if not row.holds]
    assert row.name.startswith(missed)


def test_what_has_no_promise_is_said_beside_the_rows() -> None:
    against, made = walls.asides(found(warm=0.75, cold=41.0))
    assert "1.50x" in against and "+21.0 ms" in against
    assert "25.0 ms" in made and "9.0 ms" in made


@pytest.mark.parametrize(("load", "said"), [(0.2, 0), (1.0, 0), (1.1, 1)])
def test_a_busy_host_is_said(load: float, said: int) -> None:
    assert len(walls.busy(load, 2)) == said


def test_sides_take_turns_in_both_orders_and_the_first_round_is_told_apart() -> None:
    sides = dict.fromkeys(walls_sides.SIDES)
    seen = [(number, name) for number, name, _ in walls_inside.turns(sides, 2)]  # type: ignore[arg-type]
    assert seen == [
        (0, BARE),
        (0, JAIL),
        (0, WHOLE),
        (1, WHOLE),
        (1, JAIL),
        (1, BARE),
        (2, BARE),
        (2, JAIL),
        (2, WHOLE),
    ]


def test_the_filter_of_the_bare_side_denies_landlock_alone() -> None:
    code = bpf.decode(walls_sides.no_landlock())
    answers = {nr: bpf.run(_jgt(code), AUDIT_ARCH["x86_64"], nr, (0,) * 6) for nr in (0, 272, 443, 444, 445, 446, 447)}
    assert [nr for nr, answer in answers.items() if answer == RET_ERRNO | errno.ENOSYS] == [444, 445, 446]
    assert {answer for nr, answer in answers.items() if not 444 <= nr <= 446} == {RET_ALLOW}


def _jgt(code: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """The machine of the tests has no `jgt k`, which is `jge k + 1`."""
    return [(0x35, jt, jf, k + 1) if op == 0x25 else (op, jt, jf, k) for op, jt, jf, k in code]


def test_other_sides_share_no_cpu_limit_and_the_product_keeps_its_own() -> None:
    def files() -> set[str]:
        return {knob.file for knob in limits.parent_knobs(2, CPU, ALL_BOXES)}

    product = files()
    assert product == {"pids.max", "cpu.max", "cpu.weight"}
    with walls_sides.opening(WHOLE):
        assert files() == product
    for side in (JAIL, BARE):
        with pytest.raises(OSError, match="refused"), walls_sides.opening(side):
            assert files() == {"pids.max"}
            raise OSError("refused")
        assert files() == product


def test_a_server_that_does_not_answer_ends_the_watch(tmp_path: Path) -> None:
    path = str(tmp_path / "gone.sock")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path)
    with pytest.raises(CommandFailed, match="did not answer"):
        bombs.Watcher(path).ask()


def test_processes_are_counted_by_their_id() -> None:
    assert bombs.processes_of(os.getuid()) >= 1
    assert bombs.processes_of(4_000_000_000) == 0
