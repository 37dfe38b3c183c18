"""Group L: the way out, tried from a shell: where to, with what, and by whose wires. The world says what arrived."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ringfence.prove.attacks.trying import DONE, attempt
from ringfence.prove.outward_stage import CAP, holding, left, program, traveller, workers
from ringfence.prove.row import Row, Tries, ran
from ringfence.prove.stage import ATTACKER, VICTIM, Stage
from ringfence.prove.world import API, DENIED, INSIDE, LOOKALIKES, LOOPBACK, MINE, OTHER, Arrival

WALLED = "walter"  # whose worker is killed
QUIET = "quinn"  # in whose box no other command has a port
TRICKS = (
    f"{API}.{DENIED}",
    f"{API}@{DENIED}",
    f"{API}@{DENIED}:443",
    f"{API}:443@{DENIED}:443",
    f"{DENIED}\0.{API}",
    f"{DENIED}#.{API}",
    f"{DENIED}?.{API}",
    f"{DENIED}/.{API}",
    f"{DENIED}\\.{API}",
    f"{DENIED}%00.{API}",
    f"{DENIED}.",
    DENIED.upper(),
    DENIED.replace("e", "\u0435", 1),
    *LOOKALIKES,
)


def _literals(stage: Stage) -> list[str]:
    """The world's own port at every spelling of its address, what stands for metadata, and the worker's listeners."""
    spelled = ("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0")
    elsewhere = (
        "169.254.169.254:80",
        "169.254.169.254:443",
        "10.0.0.1:443",
        "127.0.0.1:1022",
        "metadata.google.internal",
    )
    return [*(f"{each}:{stage.world.port}" for each in spelled), f"{INSIDE}:{stage.world.port}", *elsewhere]


def _outside(stage: Stage, tries: Tries, wrong: Callable[[Arrival], bool], since: int) -> Tries:
    """With what the world has since then that it must not have."""
    bad = [f"{each.host} {each.line}" for each in stage.world.arrivals[since:] if wrong(each)]
    return Tries({**tries.outcomes, "at the server": f"{DONE} {bad[:3]}" if bad else "nothing of it"})


def _tried(
    name: str, arguments: Callable[[Stage], Iterable[str]], wrong: Callable[[Stage, Arrival], bool]
) -> Callable[[Stage, str], Tries]:
    def attack(stage: Stage, _runner: str) -> Tries:
        traveller(stage, ATTACKER)
        since = len(stage.world.arrivals)
        tries = program(stage, ATTACKER, name, *arguments(stage))
        return _outside(stage, tries, lambda each: wrong(stage, each), since)

    return attack


def _meant(stage: Stage) -> Tries:
    """The control: where a rule says so, both ways lead to that server, which says so itself."""
    since = len(stage.world.at(API))
    tries = program(stage, ATTACKER, "reached", API)
    came = len(stage.world.at(API)) - since
    return Tries({**tries.outcomes, "at the server": f"{DONE} {came}" if came >= 2 else "nothing"})


def _used(stage: Stage) -> Tries:
    """The control: the placeholder as it is meant is the value at the server."""
    path = f"{MINE}/used-{secrets.token_hex(4)}"
    program(stage, ATTACKER, "used", API, path)
    value = stage.world.secret(ATTACKER)
    got = [each for each in stage.world.at(API) if path in each.line]
    return Tries({"used": f"{DONE} exchanged" if got and got[-1].holds(value) else f"not exchanged: {got}"})


def _stray(stage: Stage, arrival: Arrival) -> bool:
    """A value anywhere but where it is bound."""
    value = stage.world.secret(ATTACKER)
    meant = f"authorization: bearer {value.decode()}" in arrival.head.lower()
    bound = arrival.host == API and f" {MINE}/" in arrival.line and meant
    return arrival.holds(value) and not (bound and arrival.line.split(" ")[0] in ("GET", "POST"))


def _no_label_leaves(stage: Stage, _runner: str) -> Tries:
    """L05. A rule lets INSIDE through, and nothing below DENIED or of nobody."""
    mark = secrets.token_hex(8)
    names = [f"{mark}.{DENIED}", f"{mark}.{INSIDE}", f"{mark}.example.com"]
    tries = program(stage, ATTACKER, "resolved", *names)
    asked = [name for name in stage.world.asked if mark in name]
    return Tries({**tries.outcomes, "at the nameserver": f"{DONE} {asked}" if asked else "nothing of it"})


def _asked_for(stage: Stage) -> Tries:
    """The control: a name that a rule lets through is asked for there."""
    program(stage, ATTACKER, "named", f"{INSIDE}:443")
    return Tries({INSIDE: f"{DONE} asked for" if INSIDE in stage.world.asked else "not asked for"})


# --- other people's wires and placeholders ----------------------------------------------------------------------------


def _ports(stage: Stage, _runner: str) -> Tries:
    """L06: by the ports of two commands of the victim's, from a box where no other command has any."""
    traveller(stage, QUIET)
    with holding(stage, VICTIM) as one:
        two = program(stage, VICTIM, "told").outcomes["port"]
        found = program(stage, QUIET, "by_port", API, str(one.port), two, str(one.port + 40)).outcomes
        return Tries({**found, "from the host": attempt(lambda: _connect(one.port))})


def _connect(port: int) -> None:
    socket.create_connection((LOOPBACK, port), 5).close()


def _own_port(stage: Stage) -> Tries:
    """The control: in the box whose it is, that port leads out."""
    with holding(stage, VICTIM) as held:
        return Tries(
            {"in its own box": next(iter(program(stage, VICTIM, "by_port", API, str(held.port)).outcomes.values()))}
        )


def _expired(stage: Stage, _runner: str) -> Tries:
    """L09: of a command of the same box that has ended by itself, and of one whose client left."""
    token = program(stage, ATTACKER, "told").outcomes["token"]
    return _stolen(stage, token, left(stage, ATTACKER).token)


def _anothers(stage: Stage, _runner: str) -> Tries:
    """L10: the victim's, whose command lives, and one that was made up."""
    with holding(stage, VICTIM) as held:
        return _stolen(stage, held.token, f"EXAMPLE{'a' * 26}", held.token[:-1])


def _stolen(stage: Stage, *tokens: str) -> Tries:
    traveller(stage, ATTACKER)
    since, path = len(stage.world.arrivals), f"{MINE}/stolen"
    tries = program(stage, ATTACKER, "stolen", API, path, *tokens)
    return _outside(stage, tries, lambda each: path in each.line, since)


def _within_its_life(stage: Stage) -> Tries:
    """The control: while that command lives, in its own box, the same text is worth something."""
    path = f"{MINE}/own-{secrets.token_hex(4)}"
    with holding(stage, ATTACKER) as held:
        found = program(stage, ATTACKER, "stolen", API, path, held.token).outcomes
    value = stage.world.secret(ATTACKER)
    at_server = any(path in each.line and each.holds(value) for each in stage.world.at(API))
    return Tries({"its own": found["1: transparent"], "at the server": f"{DONE} exchanged" if at_server else "nothing"})


# --- the worker's end, and a large body -------------------------------------------------------------------------------


def _killed(stage: Stage, _runner: str) -> Tries:
    """L07: in the middle of a request, and while requests come."""
    user, late = traveller(stage, WALLED), f"{MINE}/late-{secrets.token_hex(4)}"
    workers(stage, user)  # NotHere, before a request waits for its end
    since = len(stage.world.arrivals)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(program, stage, user, "used", API, late)
        _await(lambda: any(late in each.line for each in stage.world.arrivals[since:]))
        _kill(workers(stage, user))
        asked = dict(program(stage, user, "named", DENIED, f"{LOOPBACK}:{stage.world.port}", *LOOKALIKES).outcomes)
        _kill(workers(stage, user))
        asked |= {f"{name} again": word for name, word in program(stage, user, "named", DENIED).outcomes.items()}
        stage.world.late(late).set()
        begun = waiting.result().outcomes["used"]
    tries = Tries({"the request on its way": begun, **asked})
    return _outside(stage, tries, lambda each: each.host != API, since)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _replaced(stage: Stage) -> Tries:
    """The control: what a rule lets through goes out again once the next one is there."""
    word = ""

    def out() -> bool:
        nonlocal word
        word = program(stage, traveller(stage, WALLED), "reached", API).outcomes["explicit"]
        return word == DONE

    _await(out)
    return Tries({"another worker": word})


def _await(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 20.0
    while not true() and time.monotonic() < until:
        time.sleep(0.1)


def _large(stage: Stage, _runner: str) -> Tries:
    since = len(stage.world.arrivals)
    tries = program(stage, ATTACKER, "upload", API, "/capped/x", str(CAP + (1 << 20)))
    return _outside(
        stage, tries, lambda each: "/capped/x" in each.line and f"Content-Length: {CAP}" in each.head, since
    )


def _row(row_id: str, attempt: str, expected: str, wall: str, attack: Callable[[Stage, str], Tries],
         control: Callable[[Stage], Tries]) -> Row:  # fmt: skip
    return Row(row_id, attempt, expected, wall, attack, ran(control))


def _disagreeing(stage: Stage, runner: str) -> Tries:
    """L03."""
    differ = _tried("mismatched", lambda _: (API, DENIED), lambda _, each: each.host == DENIED)
    smuggle = _tried("smuggled", lambda _: (API, "/smuggled"), lambda _, each: "/smuggled" in each.line)
    named, within = differ(stage, runner).outcomes, smuggle(stage, runner).outcomes
    return Tries({**named, **within, "at the server": f"{named['at the server']}; {within['at the server']}"})


ROWS: tuple[Row, ...] = (
    _row(
        "L01", "a host that no rule names, spelled like one that is allowed", "denied or malformed",
        "one canonicaliser for rules, tunnels and dialling; labels are compared",
        _tried("named", lambda _: TRICKS, lambda _, each: each.host not in (API, OTHER)), _meant,
    ),
    _row(
        "L02", "addresses of the host, of metadata services and of the worker; a name that leads to one", "address_denied",
        "the judged address is the one that is dialled, and its kind is looked at",
        _tried("named", _literals, lambda stage, each: each.host not in (API, OTHER)), _meant,
    ),
    _row(
        "L03", "CONNECT, SNI and Host that differ, HTTP/2, and requests within requests", "refused",
        "one authority for a connection; a strict parser before the parser",
        _disagreeing, _meant,
    ),
    _row(
        "L04", "have the credential sent to another host, path, method or place, after a redirect, in clear",
        "placeholder_misplaced", "a credential is bound to host, port, method, path and place; no redirect is followed",
        _tried("misused", lambda _: (API, f"{MINE}/x", OTHER, f"{MINE}/moved"), _stray), _used,
    ),
    _row(
        "L05", "tell somebody outside by names that are looked up", "nothing is asked outside",
        "answers are made up in the box; policy before any question", _no_label_leaves, _asked_for,
    ),
    _row("L06", "speak to the proxy of another's command", "ECONNREFUSED", "it listens in its own box's network only",
         _ports, _own_port),
    _row("L07", "kill the worker in the middle of a request, and ask again", "no answer, nothing goes out",
         "fail closed: there is no other way out", _killed, _replaced),
    _row("L08", "a body above what the rule allows", "too_large", "a bound in each rule, counted as it passes",
         _large, lambda stage: program(stage, ATTACKER, "upload", API, "/capped/y", str(CAP))),
    _row("L09", "replay the placeholder of a command that has ended, by itself or because its client left",
         "placeholder_expired",
         "a placeholder ends with its command", _expired, _within_its_life),
    _row("L10", "use another user's placeholder, or one that was made up", "placeholder_unknown",
         "a worker knows the digests of its own box's commands only", _anothers, _within_its_life),
    _row("L11", "reach a host that no rule names", "denied", "deny by default, before anything is looked up",
         _tried("reached", lambda _: (DENIED,), lambda _, each: each.host == DENIED), _meant),
)  # fmt: skip
