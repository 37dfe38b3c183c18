"""Commands that people and programs ask for, in the user's box. Streams pass through; nothing is kept here.

The hot path touches neither store nor driver: the actor's own user is in the request, the box of a user is remembered,
and the wire is at hand.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ringfence.host.engine.bringup import BringUp
from ringfence.host.engine.crew import Crew
from ringfence.host.engine.doors import Doors
from ringfence.host.engine.homes import home_of, proven
from ringfence.host.engine.links import Links, Slot
from ringfence.host.engine.outward import Outward
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.watch import Watched
from ringfence.host.kernel.access import Action
from ringfence.host.kernel.boxes import Box
from ringfence.host.kernel.environment import HOME, command_environment
from ringfence.host.kernel.errors import Invalid, RingfenceError, TooLarge
from ringfence.host.kernel.ids import UserId
from ringfence.host.kernel.people import Actor, User
from ringfence.host.kernel.ports import Command, CommandSpec, Link, Outcome

MAX_SECONDS = 7 * 24 * 3600.0
# A frame of the wire is 1 MiB and base64 makes 4 bytes of 3: 720 KiB + a share for names and quotes stays below it.
MAX_BYTES = 720 * 1024
MAX_ARGUMENTS = 4096
_MAX_CWD = 4095  # PATH_MAX without its NUL (path_resolution(7))


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """One command. `timeout` in seconds; `output` keep: the outcome carries head and tail of both streams."""

    argv: Sequence[bytes]
    env: Mapping[str, bytes]
    cwd: str | None = None
    timeout: float | None = None
    stdin: Literal["null", "pipe"] = "null"
    output: Literal["stream", "keep"] = "stream"


class Commands:
    def __init__(
        self, parts: Parts, crew: Crew, doors: Doors, links: Links, bringup: BringUp, outward: Outward
    ) -> None:
        self._outward = outward
        self._parts, self._crew, self._doors, self._links, self._bringup = parts, crew, doors, links, bringup
        self._homes: dict[UserId, Box] = {}  # a user keeps its home box for as long as it lives
        self._mine: set[str] = set()  # keys whose command somebody of this server has
        self._log = logging.getLogger("ringfence.engine")

    async def run(self, actor: Actor, tenant: str, user: str, request: Any) -> Command:
        """A started command in the user's box, which is started when needed. `request`: the fields of ExecRequest."""
        spec = checked(request)
        target = await self._doors.user(Action.EXEC, actor, tenant, user)
        box = (await self._home(target)).id
        slot = self._links.slot(box)
        while (link := slot.wire()) is None:  # else nothing is waited for between this and what begins the command
            await self._bringup.ensure(box)
        began = slot.active_at = self._parts.clock.monotonic()
        key = f"x/{self._parts.ids.new('cmd')}"
        self._mine.add(key)
        with slot.beginning():
            try:
                spec = await self._outward.equipped(box, key, spec, own=request.env)
                inner = await link.spawn(key, spec)
            except BaseException:
                self._mine.discard(key)
                self._outward.over(box, key)
                raise
            self._outward.attend(box, key, inner)
            slot.occupied(key, inner)
        return _Executed(inner, slot, self._parts, (began, spec.timeout), self._mine, key)

    async def _home(self, target: User) -> Box:
        """Remembered or not, its row says that it is the target's; of the rest of a remembered row nothing is used."""
        box = self._homes.get(target.id)
        if box is None:
            # NotFound for a user that was removed since its token was read: it starts no box.
            box = self._homes[target.id] = await home_of(self._parts, target)
        return await proven(self._parts, box, target)

    def forget(self, user: UserId) -> None:
        """The user is removed."""
        self._homes.pop(user, None)

    def take_over(self, slot: Slot, link: Link) -> None:
        """Commands of a former server: nobody waits for them, so their output is read to the end and dropped, lest
        they stand still on a full pipe for ever."""
        for key in link.hello.commands:
            if key.startswith("x/") and key not in self._mine:
                self._mine.add(key)
                self._crew.go(self._drain(slot, link, key), f"drain {key[:80]}")

    async def _drain(self, slot: Slot, link: Link, key: str) -> None:
        try:
            command = await link.spawn(key, _NOTHING)  # attaches to the command that has this key
            self._outward.attend(slot.box, key, command)
            slot.occupied(key, command)
            await command.close_stdin()
            async for _ in command.output():
                slot.active_at = self._parts.clock.monotonic()
            await command.outcome()
            await command.release()
        except RingfenceError as error:
            self._log.info("command %.80s of a former server: %s", key, error)
        finally:
            self._mine.discard(key)


class _Executed(Watched):
    """A command of `run`: once its outcome is taken the guest may forget it."""

    __slots__ = ("_key", "_mine")

    def __init__(
        self,
        inner: Command,
        slot: Slot,
        parts: Parts,
        time: tuple[float, float | None],
        mine: set[str],
        key: str,
    ) -> None:
        """`time`: when it began (monotonic), its time-out in seconds."""
        super().__init__(inner, slot, parts.driver, parts.clock, *time)
        self._mine, self._key = mine, key

    async def outcome(self) -> Outcome:
        taken = await super().outcome()
        self._slot.active_at = self._clock.monotonic()
        await self.release()
        return taken

    async def release(self) -> None:
        self._mine.discard(self._key)
        await self._inner.release()

    async def output(self) -> AsyncIterator[tuple[Literal[1, 2], bytes]]:
        async for chunk in self._inner.output():
            self._slot.active_at = self._clock.monotonic()
            yield chunk


_NOTHING = CommandSpec(
    argv=(b"/bin/true",), env=command_environment({}), cwd="/", stdin="null", output="stream", timeout=1.0
)


def checked(request: Any) -> CommandSpec:
    """The request with the base environment. Invalid, TooLarge."""
    argv = list(request.argv)
    if not argv or not argv[0]:
        raise Invalid("no command was given", remedy="ringfence exec USER -- COMMAND [ARGUMENT]...")
    if len(argv) > MAX_ARGUMENTS:
        raise TooLarge(f"{len(argv)} arguments; the limit is {MAX_ARGUMENTS}", remedy="send them on stdin (xargs)")
    if any(b"\0" in argument for argument in argv):
        raise Invalid("an argument has a NUL byte, which no program can be given", remedy="send it on stdin")
    environment = command_environment(_environment(request.env))
    # What base64 makes of it, with quotes and commas: 4 bytes for each 3.
    size = sum(len(argument) + 4 for argument in argv) + sum(len(n) + len(v) + 8 for n, v in environment.items())
    if size > MAX_BYTES:
        raise TooLarge(
            f"arguments and environment have {size} bytes; the limit is {MAX_BYTES}",
            remedy="put the data into a file of the box (ringfence files put) or send it on stdin",
        )
    return CommandSpec(
        argv=argv,
        env=environment,
        cwd=_cwd(request.cwd),
        stdin=request.stdin,
        output=request.output,
        timeout=_timeout(request.timeout),
    )


def _environment(env: Mapping[str, bytes]) -> Mapping[str, bytes]:
    for name, value in env.items():
        if not name or "=" in name or "\0" in name or b"\0" in value or not _encodable(name):
            raise Invalid(
                f"{name[:80]!r} cannot be an environment variable",
                remedy="names have no =, names and values no NUL byte: --env NAME=VALUE",
            )
    return env


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _cwd(cwd: str | None) -> str:
    if cwd is None:
        return HOME
    if not cwd.startswith("/") or "\0" in cwd or not _encodable(cwd) or len(cwd.encode()) > _MAX_CWD:
        raise Invalid(f"the working directory {cwd[:200]!r} is no absolute path of a box", remedy=f"--cwd {HOME}/...")
    return cwd


def _timeout(timeout: float | None) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not math.isfinite(timeout) or not 0 < timeout <= MAX_SECONDS:
        raise Invalid(
            f"a time-out of {timeout!r} seconds is not allowed",
            remedy=f"give more than 0 and at most {MAX_SECONDS:.0f} seconds (7 days), or none",
        )
    return float(timeout)
