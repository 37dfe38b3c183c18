"""`ringfence bench life`: what it costs that a box rests, and comes back; in one run against the bare floor and, where there is one,
against a Docker engine."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator

from ringfence.bench.docker import Docker
from ringfence.bench.figures import Row, Series, at_least, at_most, ratio
from ringfence.bench.throwaway import CommandFailed, Installation, installation, measured
from ringfence.client.sync import SyncClient

ADOPTED = 100
ROUNDS = 41
LINES = 15  # of the command line
SETTINGS = "[rest]\npause_after = 0\nstop_after = 0\n"


def run(say: Callable[[str], None], image: str) -> tuple[list[Row], list[str]]:
    """(rows, notes). `image`: of a Docker engine that runs on this host; "": it is not measured. CommandFailed."""
    notes: list[str] = []
    say("resume, start, fifty at once, in one process")
    with installation(name="bench", settings=SETTINGS) as made:
        made.stop()  # a first start writes the configuration that the measuring process takes
        rows = _inside(made)
    with installation(name="bench", settings=SETTINGS) as made:
        say(f"{ADOPTED} boxes adopted")
        rows.append(_adopted(made))
    with installation(name="bench", settings=SETTINGS) as made:
        rows += _against_docker(made, image, say, notes)
    return rows, notes


def _inside(made: Installation) -> list[Row]:
    found = measured("ringfence.bench.life_inside", made)
    resume, pause = Series(tuple(found["resume"])), Series(tuple(found["pause"]))
    ours, floor = (Series(tuple(found["stopped"][side])) for side in ("ours", "floor"))
    crowd = sorted(found["crowd"])
    return [
        at_most("resume from pause until the box takes a command, p50", resume.p50, "ms", 5, **resume.as_json()),
        at_most("resume from pause, p99", resume.p99, "ms", 25, pause_p50_ms=round(pause.p50, 3)),
        ratio("start from stopped and first command (floor: bwrap + python3 -I -S -c pass)", ours, floor, times=3),
        at_most("50 new users' first commands at once, p95", crowd[int(len(crowd) * 0.95)] / 1e3, "s", 2.5),
    ]


def _adopted(made: Installation) -> Row:
    for number in range(ADOPTED):
        made.ok("user", "add", f"u{number}")
        made.ok("box", "start", f"u{number}")
    for number in range(0, ADOPTED, 4):
        made.ok("box", "pause", f"u{number}")
    made.kill()
    made.start(wait=False)
    made.await_line(" starting")
    begun = time.perf_counter()
    line = made.await_line(" serving at ")
    took = time.perf_counter() - begun
    if f"{ADOPTED} boxes adopted" not in line:
        raise CommandFailed(f"not all of {ADOPTED} boxes were adopted: {line}")
    return at_most(f"{ADOPTED} boxes, a quarter of them paused, adopted after a kill", took, "s", 2)


def _against_docker(made: Installation, image: str, say: Callable[[str], None], notes: list[str]) -> list[Row]:
    names = {"warm": 20.0, "cold": 5.0, "pause": 10.0}
    titles = {
        "warm": "warm command against docker exec",
        "cold": "cold start and first command against create, start and exec",
        "pause": "pause and resume against docker pause and unpause",
    }
    if not image:
        notes.append("Docker is not measured: bench life --docker IMAGE")
        return [
            Row(f"{titles[name]}, API to API", "not measured", f">= {times:g}x", None, {})
            for name, times in names.items()
        ]
    say("against Docker, API to API")
    with _docker(image) as docker, SyncClient(socket=made.socket) as client:
        notes.append(f"Docker {docker.version}")
        taken = _both(made, client, docker)
        rows = [
            at_least(
                f"{titles[name]}, API to API",
                theirs.p50 / ours.p50,
                "x",
                names[name],
                ours=ours.as_json(),
                docker=theirs.as_json(),
            )
            for name, (ours, theirs) in taken.items()
        ]
        say("against Docker, command line to command line")
        for what, (ours, theirs) in _command_lines(made, docker).items():
            notes.append(
                f"{what}, command line to command line: ours p50 {ours.p50:.0f} ms, Docker's {theirs.p50:.0f} ms"
            )
        return rows


def _both(made: Installation, client: SyncClient, docker: Docker) -> dict[str, tuple[Series, Series]]:
    """In turn: what slows the host slows both."""
    made.ok("user", "add", "warm")
    client.start_box("warm")
    container = docker.start("ringfence-bench-warm")
    for number in range(ROUNDS):
        made.ok("user", "add", f"cold{number}")
    cold = iter(range(ROUNDS))

    def ours_cold() -> None:
        client.exec(f"cold{next(cold)}", ["/bin/true"])

    def theirs_cold() -> None:
        docker.command(docker.start(f"ringfence-bench-{time.monotonic_ns()}"))

    def ours_pause() -> None:
        client.pause_box("warm")
        client.resume_box("warm")

    def theirs_pause() -> None:
        docker.pause(container)
        docker.resume(container)

    return {
        "warm": _turns(lambda: client.exec("warm", ["/bin/true"]), lambda: docker.command(container)),
        "cold": _turns(ours_cold, theirs_cold),
        "pause": _turns(ours_pause, theirs_pause),
    }


def _command_lines(made: Installation, docker: Docker) -> dict[str, tuple[Series, Series]]:
    container = docker.start("ringfence-bench-line")
    for number in range(LINES):
        made.ok("user", "add", f"line{number}")
    cold = iter(range(LINES))
    return {
        "warm command": _turns(
            lambda: made.ok("exec", "warm", "--", "true"), lambda: docker.command_line(container), LINES
        ),
        "cold start": _turns(
            lambda: made.ok("exec", f"line{next(cold)}", "--", "true"), docker.command_line_cold, LINES
        ),
    }


def _turns(ours: Callable[[], object], theirs: Callable[[], object], rounds: int = ROUNDS) -> tuple[Series, Series]:
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for side, work in zip(taken, (ours, theirs), strict=True):
            begun = time.perf_counter()
            work()
            side.append((time.perf_counter() - begun) * 1e3)
    return Series(tuple(taken[0][1:])), Series(tuple(taken[1][1:]))


@contextlib.contextmanager
def _docker(image: str) -> Iterator[Docker]:
    try:
        made = Docker(image)
    except (OSError, RuntimeError) as error:
        raise CommandFailed(f"the Docker engine cannot be asked: {error}") from error
    try:
        yield made
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        raise CommandFailed(f"Docker: {error}") from error
    finally:
        made.close()
