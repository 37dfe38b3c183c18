"""The installation whose host can send something outside, to a receiver that prove keeps: its policy asks before each call,
and PID 1 of every box, which speaks for every loop in it, is hostile. Safe to use from several threads.

What was sent is what the receiver has, never what a box or the server says of it. Must never answer a gate that the row at
hand does not mean to have answered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ringfence.bench.throwaway import Installation
from ringfence.client.errors import ApiError
from ringfence.client.sync import SyncClient
from ringfence.prove import apart, plans, planted
from ringfence.prove.receiving import Receiver, receiver
from ringfence.prove.stage import Stage

PATIENCE = 60.0
EXPIRE_SECONDS = 2  # of an approval for the place `brief`: begun, asked and answered too late on any host
PLACES = ("pay", "moving", "brief")

Asks = list[dict[str, Any]]
Json = dict[str, Any]


@contextmanager
def scene(stage: Stage) -> Iterator[Scene]:
    """CommandFailed: no such server here."""
    with receiver() as outside, apart.installation(stage, apart.hostile_guest) as made:
        for place in PLACES:
            set_key(made, place, f"the key of {place}, of sixteen bytes and more")
        (made.home / "ringfence.toml").write_text(settings(made, outside))
        made.start()
        with closing(Scene(made, outside)) as here:
            yield here


def settings(made: Installation, outside: Receiver) -> str:
    text = ""
    for place in PLACES:
        text += f'[[webhook]]\nname = "{place}"\nurl = "{outside.url(place)}"\nlookup_url = "{outside.url("look")}"\n'
        text += f'secret_file = "{_key_file(made, place)}"\n'
    text += '[[policy]]\ntool = "http.webhook"\nanswer = "ask"\n'
    text += '[[policy]]\ntool = "http.webhook"\nanswer = "ask"\nwhere = { name = "brief" }\n'
    return text + f"expire_seconds = {EXPIRE_SECONDS}\n"


def _key_file(made: Installation, place: str) -> Path:
    return made.home.parent / f"key-{place}"


def set_key(made: Installation, place: str, key: str) -> None:
    """What signs calls to that place from here on."""
    planted.servers_own(made, _key_file(made, place), key)


class Scene:
    """Users with a hostile box each, what their loops ask, and the gates that come of it."""

    def __init__(self, made: Installation, outside: Receiver) -> None:
        self.made, self.outside = made, outside
        self.client = SyncClient(socket=made.socket)  # as operator
        self._actors: dict[str, SyncClient] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        for client in (self.client, *self._actors.values()):
            client.close()

    def user(self, name: str, runs: list[Asks], wires: list[Asks] | None = None) -> None:
        """`runs`: what each start of a loop in the box asks, the first one first."""
        self.client.add_user(name)
        self.plan(name, runs, wires)

    def plan(self, name: str, runs: list[Asks], wires: list[Asks] | None = None) -> None:
        """Anew: what was begun before counts in it."""
        plans.give(self.client, name, {"runs": runs, "wires": wires or []})

    def acting(self, name: str) -> SyncClient:
        with self._lock:
            if name not in self._actors:
                self._actors[name] = SyncClient(socket=self.made.socket, act_as=name)
            return self._actors[name]

    def say(self, name: str, text: str = "go", thread: str = "first") -> None:
        """Into a thread of the user's own."""
        self.acting(name).post_message(f"{name}-{thread}", text)

    def gates(self, name: str, *states: str) -> list[Json]:
        """Newest first."""
        return list(self.acting(name).gates(states=states))

    def gate(self, name: str, but: tuple[str, ...] = (), states: tuple[str, ...] = ("open",)) -> Json:
        """The newest of the user in such a state, whole, once it is there. TimeoutError."""

        def there() -> Json | None:
            return next((each for each in self.gates(name, *states) if each["gate"] not in but), None)

        return dict(self.acting(name).gate(self.until(there, f"a question to {name}")["gate"]))

    def question(self, name: str, who: str) -> str | None:
        """The user's open one, once it is there; None: `who` was paid without any. TimeoutError."""

        def there() -> Json | None:
            gates = self.gates(name, "open")
            return {"gate": gates[0]["gate"]} if gates else {"gate": None} if self.outside.of(who) else None

        gate = self.until(there, f"a question to {name}")["gate"]
        return None if gate is None else str(gate)

    def answer(self, name: str | None, gate: str, said: str = "allow") -> str:
        """What came of it: `answered`, or the error's code. None: as an operator."""
        acting = self.client if name is None else self.acting(name)
        try:
            acting.answer_gate(gate, said)
        except ApiError as error:
            return error.code
        return "answered"

    def asked(self, name: str, label: str) -> Json:
        """The answer to that ask of the user's loop, once it has one. TimeoutError."""

        def there() -> Json | None:
            found = [each for each in self.seen(name) if label in (each.get("ask"), each.get("wire"))]
            return found[-1] if found else None

        return self.until(there, f"{name} to ask {label!r}")

    def seen(self, name: str) -> list[Json]:
        return plans.seen(self.client, name)

    def until(self, there: Callable[[], Json | None], what: str) -> Json:
        end = time.monotonic() + PATIENCE
        while (found := there()) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"waited {PATIENCE:.0f} s for {what}")
            time.sleep(0.1)
        return found


def ask(label: str, method: str, params: Mapping[str, Any], **more: Any) -> Json:
    return {"label": label, "m": method, "p": dict(params), **more}


def pay(
    label: str, who: str, *, n: int = 1, place: str = "pay", effect: str = "host", repeat: int = 1, **body: Any
) -> Json:
    """The call that needs a yes, told apart at the receiver by `who`."""
    arguments = {"name": place, "body": {"who": who, "amount": 5, **body}}
    return ask(
        label, "step.begin", {"n": n, "tool": "http.webhook", "arguments": arguments, "effect": effect}, repeat=repeat
    )


END = ask("end", "run.finish", {"text": "done", "seen": "SEEN"})
