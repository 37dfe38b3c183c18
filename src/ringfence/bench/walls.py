"""`ringfence bench walls`: what the walls cost against the same launch without them, how fast a box stands still and dies,
and how the server answers while four boxes attack it. Root only: an ordinary account's boxes may have no cgroup."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from ringfence.bench import bombs
from ringfence.bench.figures import Row, Series, at_most, ratio
from ringfence.bench.throwaway import CommandFailed, Installation, installation, measured

WARM_TIMES, COLD_MS = 1.25, 15
FREEZE_MS, KILL_MS = 5, 200
HEALTH_MS, HEALTH_SECONDS, IDLE_SECONDS = 100, 60.0, 10.0
_PLAIN = "without disk images, limit of all boxes, seals and owner checks"
Found = Mapping[str, Mapping[str, list[float]]]


def run(say: Callable[[str], None], seconds: float = HEALTH_SECONDS) -> tuple[list[Row], list[str]]:
    """(rows, notes). Three throw-away installations side by side, then one under attack for `seconds`. CommandFailed."""
    if os.geteuid() != 0:
        raise CommandFailed("bench walls needs root")
    notes = busy(os.getloadavg()[0], os.cpu_count() or 1)
    say("three installations: every wall, a plain jail, namespaces alone")
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(installation(name="bench")) for _ in range(3)]
        for one in made:
            one.stop()  # a first start writes the configuration that the measuring process takes
        found = _measured(made)
    say(f"a server under four bombs, {seconds:.0f} s")
    with installation(settings=bombs.SETTINGS, name="bench") as attacked:
        health = under_attack(attacked, seconds)
    return [*rows(found), health], [*notes, *asides(found)]


def _measured(made: list[Installation]) -> Found:
    found: Found = measured("ringfence.bench.walls_inside", *made)
    return found


def rows(found: Found) -> list[Row]:
    """Of the samples, in milliseconds: warm, cold and made of each side (walls_sides.py), frozen, killed."""
    warm, cold = _sides(found["warm"]), _sides(found["cold"])
    freeze, thaw = (Series(tuple(found["frozen"][name])) for name in ("freeze", "thaw"))
    kill = Series(tuple(found["killed"]["kill"]))
    return [
        ratio(f"warm command (floor: the same jail {_PLAIN})", warm["whole"], warm["jail"], times=WARM_TIMES),
        at_most(
            f"first command of a stopped box, {cold['whole'].p50:.1f} ms, against the same jail, "
            f"{cold['jail'].p50:.1f} ms, p50",
            cold["whole"].p50 - cold["jail"].p50,
            "ms",
            COLD_MS,
            ours=cold["whole"].as_json(),
            floor=cold["jail"].as_json(),
        ),
        at_most("freeze of a box that forks, p50", freeze.p50, "ms", FREEZE_MS, **freeze.as_json()),
        at_most("thaw, p50", thaw.p50, "ms", FREEZE_MS, **thaw.as_json()),
        at_most("cgroup.kill of 500 processes until empty, p50", kill.p50, "ms", KILL_MS, **kill.as_json()),
    ]


def asides(found: Found) -> list[str]:
    """What no promise is held against."""
    warm, cold, made = (_sides(found[name]) for name in ("warm", "cold", "made"))
    return [
        f"against namespaces alone, without seccomp, Landlock, cgroups and remounts: warm command "
        f"{warm['whole'].p50 / warm['bare'].p50:.2f}x ({warm['bare'].p50:.2f} ms), first command of a stopped box "
        f"{cold['whole'].p50 - cold['bare'].p50:+.1f} ms ({cold['bare'].p50:.1f} ms), p50",
        f"a new user, with ids, tree and disk image, takes {made['whole'].p50:.1f} ms; in a folder {made['jail'].p50:.1f} ms, "
        "p50",
    ]


def _sides(samples: Mapping[str, list[float]]) -> dict[str, Series]:
    return {name: Series(tuple(took)) for name, took in samples.items()}


def busy(load: float, cores: int) -> list[str]:
    """A note when other work was under way at the start."""
    if load <= cores / 2:
        return []
    return [f"load average {load:.1f} at the start: what else runs here is in the figures"]


def under_attack(made: Installation, seconds: float) -> Row:
    """The health probe of an idle server, then of the same one at war. CommandFailed: a bomb ended early, or the server
    does not answer."""
    bombs.people(made)
    idle = bombs.Watcher(made.socket).run(IDLE_SECONDS)
    with bombs.at_war(made) as wars:
        series = bombs.Watcher(made.socket).run(seconds)
        if any(war.poll() is not None for war in wars):
            raise CommandFailed("a bomb was over before the probe was")
        details: dict[str, Any] = {"ours": series.as_json(), "floor": idle.as_json()}
    return at_most(
        f"health probe for {seconds:.0f} s under a fork bomb, a memory bomb, a disk filler and four spinners, p99 "
        f"({idle.p99:.1f} ms idle)",
        series.p99,
        "ms",
        HEALTH_MS,
        **details,
    )
