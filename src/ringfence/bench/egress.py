"""`ringfence bench egress`: what the way out costs against the same program straight to the same server, in turn. Root only.

The requests of a box carry a placeholder that is exchanged; every check is on.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ringfence.bench.commits import Probe
from ringfence.bench.egress_sides import FIRSTS, HOST, MODEL, Sides, cpu_seconds, on_host, own_bytes, sides
from ringfence.bench.figures import Line, Row, Series, at_least, at_most
from ringfence.bench.throwaway import CommandFailed

IDLE_MB, KEEP_ALIVE_MS, FIRST_MS, CPU_MS = 8.0, 1.5, 20.0, 1.2
STREAM_SHARE, SSE_MS, TOKEN_MS, MITM_TIMES = 0.25, 5.0, 3.0, 4.0
GROWTH = 64.0  # bytes a request: 100,000 make 6 MiB, less than a worker has
_VALUE = "y" * 40
_WARM = 2000  # requests before memory is looked at: caches fill, arenas grow


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int = 3
    times: int = 500  # requests in a round
    bytes: int = 128 << 20
    events: int = 500
    tokens: int = 60
    requests: int = 5000  # for the memory
    seconds: float = 5.0  # of the rates
    firsts: tuple[str, ...] = FIRSTS
    rests: int = 3  # of half a minute each


WHOLE = Plan()
LONG = Plan(requests=100_000)


def run(say: Callable[[str], None], plan: Plan = WHOLE, mitmdump: str = "") -> tuple[list[Row], list[str]]:
    """(rows, notes). `mitmdump`: that program, of an environment of its own. CommandFailed."""
    with sides() as both:
        both.box("keep_alive", times=50)
        time.sleep(1.0)
        idle = own_bytes(both.worker()) / 1e6  # not at rest yet
        say("requests and connections, in turn")
        first = both.box("first", hosts=list(plan.firsts))["ms"]
        first_direct = both.direct("first", hosts=list(plan.firsts))["ms"]
        kept, kept_direct, cpu = _kept(both, plan)
        say("one stream, events, a model's first token")
        rows = [
            _added("a request on a connection that is kept, p50", kept, kept_direct, KEEP_ALIVE_MS),
            _added("a new connection to a new host, its request included, p50", first, first_direct, FIRST_MS),
            at_most("processor time of the worker a request", cpu, "ms", CPU_MS),
            _streams(both, plan),
            _events(both, plan),
            _tokens(both, plan),
        ]
        commit = _commits(both, plan)
        say("requests a second")
        rows.append(_against(both, plan, mitmdump))
        say(f"{plan.requests} requests")
        rows.append(_growth(both, plan))
        say("at rest")
        rows += _rests(both, plan, first_direct)
    return rows, [
        f"a worker has {idle:.2f} MB to itself a second after its last request; one that is idle ends (decision 0066)",
        f"p50 of a kept request {Series(tuple(kept)).p50:.2f} ms, straight {Series(tuple(kept_direct)).p50:.2f} ms",
        f"a commit of a database beside the server's: p50 {commit.p50:.2f} ms, p99 {commit.p99:.2f}; a model's first token "
        "waits for one",
    ]


def _kept(both: Sides, plan: Plan) -> tuple[list[float], list[float], float]:
    """Milliseconds by the worker and straight, and what the worker's processor time of one was, in ms."""
    ours: list[float] = []
    floor: list[float] = []
    spent = 0.0
    pid = both.worker()
    for _ in range(plan.rounds):
        before = cpu_seconds(pid)
        ours += both.box("keep_alive", times=plan.times)["ms"]
        spent += cpu_seconds(pid) - before
        floor += both.direct("keep_alive", times=plan.times)["ms"]
    return ours, floor, spent * 1e3 / (plan.rounds * plan.times)


def _added(name: str, ours: list[float], floor: list[float], most: float) -> Row:
    by, straight = Series(tuple(ours)), Series(tuple(floor))
    details = {"ours": by.as_json(), "floor": straight.as_json()}
    return at_most(f"added to {name}", by.p50 - straight.p50, "ms", most, **details)


def _streams(both: Sides, plan: Plan) -> Row:
    ours, floor = [], []
    for _ in range(plan.rounds):
        ours.append(both.box("stream", bytes=plan.bytes)["speed"])
        floor.append(both.direct("stream", bytes=plan.bytes)["speed"])
    best, straight = max(ours) / 1e6, max(floor) / 1e6
    details = {"ours_mb_s": round(best, 1), "floor_mb_s": round(straight, 1)}
    return at_least("speed of one TLS stream against straight", best / straight, "x", STREAM_SHARE, **details)


def _events(both: Sides, plan: Plan) -> Row:
    ours = Series(tuple(both.box("events", times=plan.events, apart=5)["ms"]))
    floor = Series(tuple(both.direct("events", times=plan.events, apart=5)["ms"]))
    return at_most(
        "a server's event to who reads it, p99", ours.p99, "ms", SSE_MS, ours=ours.as_json(), floor=floor.as_json()
    )


def _tokens(both: Sides, plan: Plan) -> Row:
    ours = both.box("tokens", times=plan.tokens, model=MODEL)["ms"]
    floor = both.direct("tokens", both.upstream.plain, times=plan.tokens, model="none")["ms"]
    return _added("a model's first token by the gateway, p50", ours, floor, TOKEN_MS)


def _commits(both: Sides, plan: Plan) -> Series:
    """Right after the tokens: what a reservation costs of this disk."""
    probe = Probe(both.made.home.parent / "probe.db")
    try:
        return Series(tuple(probe.commits(plan.tokens)))
    finally:
        probe.close()


def _growth(both: Sides, plan: Plan) -> Row:
    """The slope of the worker's memory over requests, by least squares."""
    both.box("keep_alive", times=_WARM)
    pid, points, step = both.worker(), [], max(1, plan.requests // 20)
    for done in range(0, plan.requests, step):
        both.box("keep_alive", times=step)
        points.append((float(done), float(own_bytes(pid))))
    if both.worker() != pid:
        raise CommandFailed("the worker ended meanwhile")
    line = Line.through(points)
    details = {"requests": plan.requests, "error": round(line.error, 1), "mb": round(points[-1][1] / 1e6, 1)}
    return at_most(
        f"memory that a worker gains by a request, over {plan.requests}", line.slope, "bytes", GROWTH, **details
    )


def _rests(both: Sides, plan: Plan, floor: list[float]) -> list[Row]:
    """What is left of a way out that nobody uses, and what the connection pays that calls for a worker."""
    left: list[int] = []
    ours: list[float] = []
    for _ in range(plan.rests):
        left.append(both.at_rest())
        ours += both.box("first", hosts=[HOST])["ms"]
    return [
        at_most("memory of an idle worker, which no other process has", max(left) / 1e6, "MB", IDLE_MB),
        _added("the first connection after a rest, its request included, p50", ours, floor, FIRST_MS),
    ]


# --- against another proxy --------------------------------------------------------------------------------------------


def _against(both: Sides, plan: Plan, mitmdump: str) -> Row:
    name, promise = "requests a second against mitmdump", f">= {MITM_TIMES:g}x"
    seconds = plan.seconds / plan.rounds
    if not mitmdump:
        ours = both.box("rate", sides=4, seconds=seconds)["rate"]
        measured = f"not measured: --mitmdump names none; {ours:.0f} a second"
        return Row(name, measured, promise, None, {"value": None, "per_second": round(ours)})
    rates: list[tuple[float, float]] = []
    with _mitmdump(mitmdump, both) as (port, ca):
        for _ in range(plan.rounds):  # in turn: what else this machine does meets both
            ask = {"what": "rate", "host": HOST, "ca": ca, "to": ["127.0.0.1", port], "sides": 4, "seconds": seconds}
            rates.append((both.box("rate", sides=4, seconds=seconds)["rate"], on_host(ask)["rate"]))
    ours, theirs = (max(side) for side in zip(*rates, strict=True))  # the quietest of each
    return at_least(name, ours / theirs, "x", MITM_TIMES, per_second=round(ours), theirs_per_second=round(theirs))


@contextlib.contextmanager
def _mitmdump(program: str, both: Sides) -> Iterator[tuple[int, str]]:
    """(its port, the file of its CA): it intercepts TLS for the same server, in its mode that takes no CONNECT, exchanges one
    header of a request for another and looks for that in the answer: what a worker does besides its checks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        words = [program, "-q", "--listen-host", "127.0.0.1", "--listen-port", str(port), "--set", f"confdir={folder}"]
        words += ["--ssl-insecure", "--mode", f"reverse:https://127.0.0.1:{both.upstream.tls}"]
        words += ["--modify-headers", f"/~q/Authorization/Bearer {_VALUE}", "--modify-body", f"/~s/{_VALUE}/{'*' * 40}"]
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            try:
                _await_port(port)
                yield port, f"{folder}/mitmproxy-ca-cert.pem"
            finally:
                process.kill()


def _await_port(port: int) -> None:
    until = time.monotonic() + 30.0
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        time.sleep(0.2)
    raise CommandFailed("mitmdump does not listen")
