"""Shell steps: the host runs them in the actor's box under the key (run, step), once.

The same key attaches to the running command or gets the kept outcome. A step that was begun and whose key the guest does
not know (its box was restarted, or the wire broke before the guest heard of it) is interrupted and is never run again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringfence.host.engine.crew import Crew
from ringfence.host.engine.links import Links, Slot
from ringfence.host.engine.outward import Outward
from ringfence.host.engine.results import interrupted, invalid, shell_result
from ringfence.host.engine.watch import Watched, unknown
from ringfence.host.kernel.environment import HOME, command_environment
from ringfence.host.kernel.errors import BoxLost, Invalid, RingfenceError, StaleEpoch
from ringfence.host.kernel.ids import BoxId, RunId
from ringfence.host.kernel.ports import Clock, Command, CommandSpec, Driver, Link

DEFAULT_SECONDS = 3600.0  # of a step that names no timeout: a forgotten server must not hold its lane for ever
MAX_SECONDS = 7 * 24 * 3600.0
STOP_GRACE = 2.0
_COMMAND_BYTES = 128 * 1024  # one argument above this is E2BIG for every kernel; the text would only say so later


@dataclass(frozen=True, slots=True)
class ShellEnd:
    result: dict[str, Any]
    interrupted: bool


def key_of(run: RunId, n: int) -> str:
    return f"s/{run}/{n}"


def run_of(key: str) -> RunId | None:
    """Whose step it is the key of; None: of a command that no run asked for."""
    kind, _, rest = key.partition("/")
    run, _, n = rest.rpartition("/")
    return RunId(run) if kind == "s" and run and n.isdecimal() else None


def spec_of(arguments: Mapping[str, Any]) -> CommandSpec:
    """Arguments {"command": str, "cwd"?: absolute path, "timeout"?: seconds}. Invalid, in words for the model."""
    unknown = set(arguments) - {"command", "cwd", "timeout"}
    if unknown:
        raise Invalid(f"shell takes command, cwd and timeout, not {', '.join(sorted(unknown))[:200]}")
    command = arguments.get("command")
    cwd, timeout = arguments.get("cwd"), arguments.get("timeout")
    if not isinstance(command, str) or not command.strip() or "\0" in command:
        raise Invalid("command must be a text that is not empty")
    raw = command.encode("utf-8", "replace")
    if len(raw) > _COMMAND_BYTES - 1:
        raise Invalid(f"command has {len(raw)} bytes; the limit is {_COMMAND_BYTES - 1}: write a script and run that")
    if cwd is not None and not (isinstance(cwd, str) and cwd.startswith("/") and "\0" not in cwd and len(cwd) < 4096):
        raise Invalid("cwd must be an absolute path in the box")
    if timeout is not None and not (
        isinstance(timeout, int | float) and not isinstance(timeout, bool) and 0 < timeout <= MAX_SECONDS
    ):
        raise Invalid(f"timeout must be a number of seconds above 0 and at most {MAX_SECONDS:.0f}")
    seconds = DEFAULT_SECONDS if timeout is None or not math.isfinite(timeout) else float(timeout)
    return _spec([b"/bin/bash", b"-c", raw], cwd or HOME, seconds)


def _spec(argv: list[bytes], cwd: str, timeout: float) -> CommandSpec:
    environment = command_environment({})
    return CommandSpec(argv, environment, cwd, stdin="null", output="keep", timeout=timeout, grace=STOP_GRACE)


class ShellSteps:
    def __init__(self, crew: Crew, links: Links, driver: Driver, clock: Clock, outward: Outward) -> None:
        self._crew, self._links, self._driver, self._clock, self._outward = crew, links, driver, clock, outward
        self._flights: dict[str, asyncio.Future[ShellEnd]] = {}
        self._commands: dict[str, Command] = {}

    async def run(
        self, box: BoxId, run: RunId, n: int, arguments: Mapping[str, Any], new: bool, epoch: int = 0
    ) -> ShellEnd:
        """The step's end. `new`: the journal had no begin of it before. BoxLost: ask again on the next wire."""
        key, slot = key_of(run, n), self._links.slot(box)
        flight = self._flights.get(key)
        if flight is None:
            try:
                spec = spec_of(arguments)
            except Invalid as error:
                return ShellEnd(invalid(error.message), False)
            if not new and key not in slot.keys:
                why = "the box was restarted or the connection lost while this command ran; it is not run again"
                return ShellEnd(interrupted(f"interrupted: {why}"), True)
            flight = self._crew.begin(self._carry_out(slot, key, spec, run, epoch), f"step {key}")
            self._flights[key] = flight
        try:
            return await asyncio.shield(flight)
        except RingfenceError:
            self._flights.pop(key, None)
            raise

    async def _carry_out(self, slot: Slot, key: str, spec: CommandSpec, run: RunId, epoch: int) -> ShellEnd:
        link = (
            slot.wire()
        )  # of before it has a way out: a hello that comes later, which cannot name it, ends this wire too
        if link is None:
            raise BoxLost(f"box {slot.box} has no wire", box=slot.box)
        if key in slot.keys:  # it runs since before this server, with the way out that it was given then
            return await self._done(slot, link, key, spec)
        try:
            with slot.beginning():
                equipped = await self._outward.equipped(slot.box, key, spec, run, epoch)
            return await self._done(slot, link, key, equipped)
        except RingfenceError:
            self._outward.over(slot.box, key)
            raise

    async def _done(self, slot: Slot, link: Link, key: str, spec: CommandSpec) -> ShellEnd:
        began = self._clock.monotonic()
        slot.active_at = began
        with slot.beginning():
            started = await link.spawn(key, spec)
            self._outward.attend(slot.box, key, started)
            slot.occupied(key, started)
        if key not in self._flights:  # the run was over before this began
            await _put_away(started)
            raise StaleEpoch(f"the run of step {key} is over")
        command = Watched(started, slot, self._driver, self._clock, began, spec.timeout)
        slot.keys.add(key)
        self._commands[key] = command
        outcome = await command.outcome()
        slot.active_at = self._clock.monotonic()
        return ShellEnd(shell_result(outcome), unknown(outcome))

    async def recorded(self, box: BoxId, run: RunId, n: int) -> None:
        """The result is in the journal: the guest may forget it."""
        key = key_of(run, n)
        self._flights.pop(key, None)
        if (slot := self._links.find(box)) is not None:
            slot.keys.discard(key)
        command = self._commands.pop(key, None)
        if command is not None:
            with contextlib.suppress(RingfenceError):
                await command.release()

    async def discard(self, box: BoxId, run: RunId) -> None:
        """The run is over or to be stopped: its commands are ended and forgotten, also those of a former kernel."""
        slot, prefix = self._links.find(box), key_of(run, 0)[:-1]
        keys = slot.keys if slot is not None else set()
        known = keys | self._flights.keys() | self._commands.keys()  # the last two of a box that was restarted too
        for key in [key for key in known if key.startswith(prefix)]:
            command = self._commands.get(key)
            link = slot.wire() if slot is not None else None
            try:
                if command is None and link is not None and key in keys:
                    # Attaches; should the key be gone by now, this ends at once.
                    command = await link.spawn(key, _spec([b"/bin/true"], "/", 1.0))
                if command is not None:
                    await _put_away(command)
            except RingfenceError:
                pass  # the box is gone, and the command with it
            self._outward.over(box, key)  # of a former kernel's no flight of ours does it
            keys.discard(key)
            self._commands.pop(key, None)
            self._flights.pop(key, None)


async def _put_away(command: Command) -> None:
    await command.stop(STOP_GRACE)
    await command.outcome()
    await command.release()
