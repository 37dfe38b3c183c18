"""Pure parts of the engine: oom."""

from __future__ import annotations

from ringfence.host.engine.oom import Kills, suspicious
from ringfence.host.kernel.ports import Outcome


def ended(code: int | None, signal: int | None, reason: str = "exit") -> Outcome:
    return Outcome(code, signal, reason, "", (), 0)  # type: ignore[arg-type]


def test_growth_in_a_commands_life() -> None:
    kills = Kills()
    kills.reset(10.0)
    assert kills.grew(began=11.0, now=12.0, count=1)
    assert not kills.grew(began=13.0, now=14.0, count=1)  # began after that look
    assert kills.grew(began=11.5, now=15.0, count=1)  # ran all the time: it may have been the one
    assert kills.grew(began=14.5, now=16.0, count=3)


def test_a_command_older_than_every_look_is_measured_from_the_first() -> None:
    kills = Kills()
    kills.reset(100.0, count=5)
    assert not kills.grew(began=50.0, now=101.0, count=5)
    assert kills.grew(began=50.0, now=102.0, count=6)


def test_many_looks_are_bounded() -> None:
    kills = Kills()
    kills.reset(0.0)
    for n in range(1000):
        kills.grew(began=float(n), now=float(n), count=1)
    assert len(kills._looks) <= 64
    assert not kills.grew(began=2000.0, now=2001.0, count=1)


def test_what_is_worth_a_look() -> None:
    assert suspicious(ended(None, 9), asked=False)
    assert suspicious(ended(137, None), asked=False)
    for outcome in (
        ended(0, None),
        ended(1, None),
        ended(None, 15),
        ended(None, 9, "timeout"),
        ended(None, None, "box_lost"),
    ):
        assert not suspicious(outcome, asked=False)
    assert not suspicious(ended(None, 9), asked=True)
