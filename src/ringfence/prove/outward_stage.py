"""Users with a way out: rules, a credential of each in the vault, and commands that live while somebody else attacks.

Whether something got out is what the world has, never what a box says. Must never tell a box a value of a credential.
"""

from __future__ import annotations

import json
import secrets
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from ringfence.bench.throwaway import Installation
from ringfence.prove import programs
from ringfence.prove.attacks.outward import HELD, VARIABLE
from ringfence.prove.attacks.trying import DONE
from ringfence.prove.row import NotHere, ProgramFailed, Tries
from ringfence.prove.stage import Stage
from ringfence.prove.world import API, INSIDE, MINE, OTHER, direct

SECRET = "prove"  # the credential's name
CAPPED, CAP = "/capped/**", 1 << 20  # where a body has an upper bound, and which
METHODS = ["GET", "POST"]
HELD_SECONDS = 60.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Held:
    """What a command that lives was given."""

    token: str  # its placeholder
    port: int  # its proxy
    model: str  # its key for the model gateway; empty: there is none


def traveller(stage: Stage, user: str) -> str:
    """The user, with rules and a credential of its own. RingfenceError's code as ApiError: no way out here."""

    def play(stage: Stage) -> dict[str, Tries]:
        stage.user(user)
        acting = stage.acting(user)
        inside = [stage.world.port, 443]
        rules: list[dict[str, object]] = [
            {"answer": "allow", "host": API, "paths": [CAPPED], "up_bytes": CAP},
            {
                "answer": "allow",
                "host": API,
                "paths": ["/", "/front", "/elsewhere", f"{MINE}/**", f"{MINE}", "/open/**"],
            },
            {"answer": "allow", "host": OTHER},
            {"answer": "allow", "host": INSIDE, "ports": inside},
        ]
        rules += [{"answer": "allow", "host": each, "ports": [*inside, 80]} for each in LITERALS]
        for rule in rules:
            acting.add_egress_rule(user, rule)
        acting.set_secret(user, SECRET, stage.world.secret(user), binding=binding())
        return {}

    stage.once(f"traveller {user}", play)
    return user


LITERALS = ("127.0.0.0/8", "169.254.0.0/16", "10.0.0.0/8", "0.0.0.0/8", "::1/128")


def binding() -> dict[str, object]:
    return {
        "host": API,
        "scheme": "bearer",
        "methods": METHODS,
        "paths": [f"{MINE}/**"],
        "environment": [VARIABLE],
    }


def program(stage: Stage, user: str, name: str, *arguments: str, timeout: float = 60.0) -> Tries:
    """Of attacks/outward.py, from a shell of the user's."""
    return stage.attack("s", traveller(stage, user), "outward", name, *arguments, timeout=timeout)


@contextmanager
def holding(stage: Stage, user: str, late: str = "") -> Iterator[Held]:
    """A command of the user's that lives until the end; with `late`, a request of its with the placeholder is at the world and
    waits for that path's answer."""
    place, where = f"{HELD}-{secrets.token_hex(4)}", (API, late) if late else ()
    with ThreadPoolExecutor(1, "prove-held") as pool:
        living = pool.submit(program, stage, user, "hold", str(HELD_SECONDS), place, *where, timeout=HELD_SECONDS + 20)
        try:
            held = _until(lambda: _told(stage, user, place), lambda: living.done() and str(living.result()))
            if late:
                stage.shell(user, f"rm -f {place}")  # what is in it is looked for in files
                _until(lambda: [each for each in stage.world.at(API) if late in each.line], living.done)
            yield held
        finally:
            if late:
                stage.world.late(late).set()
            stage.shell(user, f"rm -f {place}")
        living.result()


def left(stage: Stage, user: str) -> Held:
    """What a command of the user's was given whose client left in its middle, and which has ended of that."""
    place = f"{HELD}-{secrets.token_hex(4)}"
    text, argv = (
        programs.payload("outward", "hold", (str(HELD_SECONDS), place)),
        ["python3", "-I", "-c", programs.COMMAND],
    )
    with stage.client.stream(traveller(stage, user), argv, stdin="pipe") as command:
        command.write(text.encode())
        command.close_stdin()
        pid, held = int(command.pid), _until(lambda: _told(stage, user, place), lambda: None)
    _until(lambda: stage.shell(user, f"! kill -0 {pid}")["exit_code"] == 0, lambda: None)
    stage.shell(user, f"rm -f {place}")
    return held


def _told(stage: Stage, user: str, place: str) -> Held | None:
    text = str(stage.shell(user, f"cat {place} 2>/dev/null").get("stdout") or "")
    if not text:
        return None
    raw = json.loads(text)
    return Held(str(raw["token"]), int(raw["port"]), str(raw["model"]))


def _until(there: Callable[[], T | None], over: Callable[[], object]) -> T:
    end = time.monotonic() + 30.0
    while not (found := there()):
        if time.monotonic() > end or over():
            raise ProgramFailed(f"a command that was to live has ended, or never came to it: {over()}")
        time.sleep(0.05)
    return found


def database(made: Installation) -> Path:
    """The one file of it. NotHere: it is none, but a server's."""
    found = [path for path in sorted((made.home / "db").iterdir()) if path.suffix in (".db", ".sqlite", ".sqlite3")]
    if len(found) != 1:
        raise NotHere(f"no one database to look into: {[path.name for path in found]}")
    return found[0]


def workers(stage: Stage, user: str) -> list[int]:
    """Pids under the box's egress id. NotHere: they have no id of their own."""
    if stage.mode != "root":
        raise NotHere("workers have no ids of their own here")
    uid = int(stage.box(user)["uid"]) + 1
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and _uid(path) == uid]


def _uid(path: Path) -> int:
    with suppress(OSError, StopIteration):
        lines = (path / "status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Uid:"))
    return -1


# --- what the world saw -----------------------------------------------------------------------------------------------


def forms(value: bytes) -> list[bytes]:
    """In which a server that reflects might give it away."""
    spread = [b64encode(b"x" * n + value)[4:-4] for n in range(3)]
    text = value.decode()
    spelled = [json.dumps(text)[1:-1].encode(), quote(text).encode(), quote(text, safe="").encode()]
    return [value, *spelled, value.hex().encode(), value.hex().upper().encode(), *spread]


def leaked(data: bytes, value: bytes) -> str:
    return f"{DONE} the value" if any(form in data for form in forms(value)) else "masked"


def seen_directly(stage: Stage, user: str) -> Tries:
    """The control of what is reflected: asked without a worker in between, the value comes back."""
    value = stage.world.secret(user)
    raw = f"GET {MINE}/echo HTTP/1.1\r\nHost: {API}\r\nAuthorization: Bearer {value.decode()}\r\nConnection: close\r\n\r\n"
    head, _, body = direct(stage.world, API, raw.encode()).partition(b"\r\n\r\n")
    return Tries({"head": leaked(head, value), "body": leaked(body, value)})
