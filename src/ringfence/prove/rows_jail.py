"""Group H, the jail of a skill: what it must not see of its own user, of others, of a second jail, and of the host.

That the jail's view is narrower than a box's is what is tried, so the controls are made in the user's own box. Rows of other
groups are tried from the jail as well (runner `k`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ringfence.prove.attacks.trying import DONE
from ringfence.prove.copied import JAIL, OTHER_JAIL
from ringfence.prove.row import ProgramFailed, Row, Tries, absent, program, ran
from ringfence.prove.rows_a import FOLDERS
from ringfence.prove.rows_f import MAGIC_NAMES, ODD_NAMES, READ_NAMES, canary_words, naive, read
from ringfence.prove.stage import ATTACKER, FLAG, JAIL_PLACE, JAIL_SIZE, VICTIM, Stage

VIEW = "a box of a kind of its own: no HOME, its own small tree; second: an id of its own against mode 0700"
PLACE = f"{JAIL_PLACE}/planted"
OWN = "of-the-jails-user.txt"
PORT = 47_811  # in the box's own network
WORLD = ("169.254.169.254:80", "1.1.1.1:443", "10.0.0.1:22", "2606:4700:4700::1111:443")
SERVER = f"""
import socket
door = socket.create_server(("127.0.0.1", {PORT}))
door.settimeout(20)
while True:
    with door.accept()[0] as wire:
        wire.recv(100)
        wire.sendall(b"here")
"""


def _all(stage: Stage, tries: Mapping[str, tuple[str, str, tuple[str, ...]]]) -> Tries:
    """Several programs of the jail as one; `tries`: what it is -> module, name, arguments."""
    found: dict[str, str] = {}
    for what, (module, name, words) in tries.items():
        outcomes = stage.attack("k", JAIL, module, name, *words).outcomes
        found |= {f"{what} {attempt}": outcome for attempt, outcome in outcomes.items()}
    return Tries(found)


def _readable(stage: Stage) -> None:
    """A file of one name in HOME of the jail's user, and in a second jail, for everybody to read."""
    stage.exec(ATTACKER, ["sh", "-c", f"umask 022; echo own > ~/{OWN}"])
    stage.user(OTHER_JAIL, **JAIL_SIZE)
    stage.exec(OTHER_JAIL, ["sh", "-c", f"umask 022; echo other > {OWN}"], cwd=JAIL_PLACE)


def _paths(stage: Stage) -> tuple[str, ...]:
    trees = {user: stage.directory(user) / "tree" for user in (VICTIM, ATTACKER, OTHER_JAIL)}
    homes = [str(trees[user] / "home" / name) for user, name in ((VICTIM, FLAG), (ATTACKER, OWN))]
    kept = (stage.made.home / "vault" / "master.key", stage.made.home / "db", stage.canaries.host / "secret")
    return (f"/home/user/{OWN}", *homes, str(trees[OTHER_JAIL] / "workspace" / OWN), *map(str, kept))


def files(stage: Stage, _runner: str) -> Tries:
    """H07."""
    _readable(stage)
    places = ("/", "/home", "/home/user", "/usr", "/etc", "/opt/ringfence", str(stage.canaries.host / "open"))
    return _all(
        stage,
        {
            "find in": ("files", "others", (OWN, *FOLDERS)),
            "read": ("files", "reading", _paths(stage)),
            "write": ("kernelfiles", "making", places),
        },
    )


def files_of_a_box(stage: Stage) -> Tries:
    """Its control: in the user's own box HOME is found, and on the host the open folder is written to."""
    _readable(stage)
    found = stage.attack("s", ATTACKER, "files", "others", OWN, "/home").outcomes
    own = stage.attack("s", ATTACKER, "files", "reading", f"/home/user/{OWN}").outcomes
    made = stage.attack("s", ATTACKER, "kernelfiles", "making", "/home/user").outcomes
    return Tries({**{f"find in {name}": word for name, word in found.items()}, **own, **made})


@contextmanager
def _beside(stage: Stage, argv: list[str]) -> Iterator[None]:
    """Runs in the user's own box meanwhile."""
    with stage.acting(ATTACKER).stream(stage.user(ATTACKER), argv):
        yield


@contextmanager
def _served(stage: Stage) -> Iterator[str]:
    """A door that stands open in the user's own box."""
    up = f"for i in $(seq 50); do grep -qi :{PORT:04X} /proc/net/tcp && exit; sleep 0.1; done; exit 1"
    with _beside(stage, ["python3", "-c", SERVER]):
        if stage.shell(ATTACKER, up)["exit_code"] != 0:
            raise ProgramFailed("the door in the user's box did not open")
        yield f"127.0.0.1:{PORT}"


def network(stage: Stage, _runner: str) -> Tries:
    """H08."""
    with _served(stage) as door:
        return stage.attack("k", JAIL, "sockets", "connecting", door, *WORLD, timeout=60)


def network_of_a_box(stage: Stage) -> Tries:
    with _served(stage) as door:
        return stage.attack("s", ATTACKER, "sockets", "connecting", door)


def outer(stage: Stage, _runner: str) -> Tries:
    """H09."""
    mark = f"mark-{secrets.token_hex(8)}"
    words = ",".join((mark, str(stage.root), stage.canaries.secret, stage.installation))
    names = ",".join((ATTACKER, VICTIM, str(stage.box(ATTACKER)["box"])))
    with _beside(stage, ["sh", "-c", f"sleep 20; : {mark}"]):
        return _all(
            stage,
            {
                "of the user's box:": ("files", "processes", (mark,)),
                "of the host:": ("files", "processes", (str(stage.made.home),)),
                "words in": ("files", "words", (words, "/proc/1/environ", "/proc/1/cmdline", "/proc/self/environ")),
                "names in": ("files", "words", (names, "/proc/self/mountinfo", "/proc/self/cgroup")),
            },
        )


def outer_of_a_box(stage: Stage) -> Tries:
    mark = f"mark-{secrets.token_hex(8)}"
    with _beside(stage, ["sh", "-c", f"sleep 20; : {mark}"]):
        return stage.attack("s", ATTACKER, "files", "processes", mark)


def collected(stage: Stage, _runner: str) -> Tries:
    """H12: read by the host from a jail's tree."""
    stage.attack("k", JAIL, "planting", "links", *canary_words(stage, PLACE))
    names = (*READ_NAMES, *MAGIC_NAMES, *ODD_NAMES)
    found = {name: read(stage, JAIL, f"{PLACE}/{name}") for name in names}
    plain = read(stage, JAIL, f"{PLACE}/plain")
    return Tries({**found, "a plain file": plain if plain.startswith("10 bytes") else f"{DONE} not read, {plain}"})


ROWS: tuple[Row, ...] = (
    Row(
        "H07",
        "a skill's jail reads HOME of its own user, of another, a second jail, secrets; writes elsewhere",
        "ENOENT, EROFS",
        VIEW,
        files,
        ran(files_of_a_box),
        "k",
    ),
    Row(
        "H08",
        "a skill's jail connects to its user's box, to the metadata address, to the world",
        "refused, unreachable",
        "a network namespace of its own, without a route",
        network,
        ran(network_of_a_box),
        "k",
    ),
    Row(
        "H09",
        "a skill's jail sees processes, environment and paths of its user's box and the host",
        "none",
        "a pid namespace of its own; an empty environment for its bubblewrap",
        outer,
        ran(outer_of_a_box),
        "k",
    ),
    program(
        "H10",
        "unshare and bubblewrap, for a jail of one's own",
        "EPERM",
        "seccomp: no namespace",
        ("nesting", "jails"),
        ran(lambda stage: stage.bare("nesting", "jails")),
    ),
    absent(
        "H11",
        "a skill writes what a loop will run",
        "not run with more rights",
        "PID 1 and loops run no such code",
        "nothing that a jail makes reaches a HOME before skills are granted one",
    ),
    Row(
        "H12",
        "links in what a skill's jail made, read by the host",
        "as F01",
        "openat2 beneath the tree's descriptor, in a process with the jail's id",
        collected,
        naive("naive_reading"),
        "k",
    ),
)
