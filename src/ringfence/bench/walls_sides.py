"""Three launches of the same command: with every wall, as a plain jail, and in namespaces alone.

What a side lacks is left out here, in the memory of its forked spawner or of its engine. No configuration of the product
can say that. Must never run on a state that a server uses (the spawner's lock sees to it).

    whole    as the product does it: an image for each box's disk, the CPU limit of all boxes, the seal of whoever asks,
             the owner of the box compared with the user
    jail     without those four: namespaces, ids, binds, seccomp, Landlock, the box's cgroups and limits, remounts
    bare     namespaces, ids and binds
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringfence.bench.inside import TENANT, timed
from ringfence.spawner import limits, profile, seccomp
from ringfence.spawner import main as spawner
from ringfence.spawner.cgroups import Cgroups
from ringfence.spawner.children import Children
from ringfence.spawner.disk_use import Use
from ringfence.spawner.disks import Disks
from ringfence.spawner.limits import Knob, Whole
from ringfence.spawner.sources import Host

if TYPE_CHECKING:  # as in inside.py: the spawners are forked before these are loaded
    from ringfence.host.engine.engine import Engine
    from ringfence.host.kernel.boxes import Box
    from ringfence.host.kernel.people import Actor, User

WHOLE, JAIL, BARE = SIDES = ("whole", "jail", "bare")
USER = "walls"
_LD_NR, _JGE, _JGT, _RET = 0x20, 0x35, 0x25, 0x06  # linux/filter.h: BPF_LD|W|ABS, BPF_JMP|JGE|K, |JGT|K, BPF_RET|K
_LANDLOCK = (444, 446)  # first and last of its calls, on every architecture
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000  # linux/seccomp.h


# --- the spawner's part -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def opening(side: str) -> Iterator[None]:
    """While a side's host is opened: all boxes of any but `whole` share memory and pids, and no CPU."""
    product = limits.parent_knobs

    def without_cpu(version: int, controllers: frozenset[str], whole: Whole) -> list[Knob]:
        return product(version, controllers - {"cpu"}, whole)

    try:
        if side != WHOLE:
            setattr(limits, "parent_knobs", without_cpu)  # noqa: B010  a plain assignment to a function is none to mypy
        yield
    finally:
        setattr(limits, "parent_knobs", product)  # noqa: B010


def forked(host: Host, side: str, *, close: Sequence[int]) -> int:
    """The kernel's end of a new spawner's pair."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        theirs.close()
        for fd in close:
            os.close(fd)
        spawner.run(_left_out(host, side), ours, Children())
        os._exit(0)
    ours.close()
    return theirs.detach()


def _left_out(host: Host, side: str) -> Host:
    """The host of a side's spawner. Changes the calling process for good."""
    if side == WHOLE:
        return host
    setattr(Disks, "attach", lambda disks, box: None)  # noqa: B010
    # Said to be bounded, so that the engine does not walk the tree every few seconds.
    setattr(Disks, "use", lambda disks, entry: Use("image", 0, 1 << 30, 0, 1 << 20))  # noqa: B010
    host = dataclasses.replace(host, disk="accounting")
    return host if side == JAIL else _bare(host)


def _bare(host: Host) -> Host:
    whole = profile.plan

    def plan(*given: Any) -> list[profile.Operation]:
        return [one for one in whole(*given) if not isinstance(one, profile.ReadOnly)]

    setattr(profile, "plan", plan)  # noqa: B010
    setattr(seccomp, "program", no_landlock)  # noqa: B010
    return dataclasses.replace(host, cgroups=Cgroups("none", ()))


def no_landlock() -> bytes:
    """A filter that allows everything but Landlock, which it says is not there."""
    first, last = _LANDLOCK
    code = ((_LD_NR, 0, 0, 0), (_JGE, 0, 2, first), (_JGT, 1, 0, last), (_RET, 0, 0, _ERRNO | errno.ENOSYS))
    return b"".join(struct.pack("=HBBI", *line) for line in (*code, (_RET, 0, 0, _ALLOW)))


# --- the engine's part ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Side:
    """One of the installations, with one person whose commands are measured. `secret`: the person's credential, which is
    shown before each act as a connection would; "" where nothing is sealed."""

    engine: Engine
    operator: Actor
    actor: Actor
    secret: str

    def as_operator(self) -> None:
        if self.secret:
            self.engine.people.presents(uid=os.getuid())

    def as_person(self) -> None:
        if self.secret:
            self.engine.people.presents(token=self.secret)

    async def command(self) -> float:
        """Milliseconds."""
        self.as_person()
        return await timed(self.engine, self.actor, USER)

    async def stop(self) -> None:
        self.as_operator()
        await self.engine.boxes.stop(self.operator, TENANT, USER)

    async def made(self, user: str) -> float:
        """Milliseconds that a new user takes, with ids and tree and no process."""
        self.as_operator()
        begun = time.perf_counter()
        await self.engine.people.user_add(self.operator, TENANT, user)
        return (time.perf_counter() - begun) * 1e3


async def joined(engine: Engine, side: str) -> Side:
    """With its box running, and its first command over."""
    if side == WHOLE:
        engine.people.presents(uid=os.getuid())
    else:
        setattr(engine.commands, "_home", _remembered(engine))  # noqa: B010
    operator = engine.people.operator(os.getuid(), os.getgid(), os.getpid())
    await engine.people.user_add(operator, TENANT, USER)
    _, secret = await engine.people.token_add(operator, TENANT, USER, ["user"], "", None)
    if side == WHOLE:
        engine.people.presents(token=secret)
    actor = await engine.people.authenticate(secret)
    made = Side(engine, operator, actor, secret if side == WHOLE else "")
    if bool(actor.seal) != (side == WHOLE):
        raise RuntimeError("the seal of this side is not as it should be")
    await made.command()
    return made


def _remembered(engine: Engine) -> Any:
    """The way from a user to its box, without a look at whose it is."""
    parts, homes = engine.commands._parts, dict[str, "Box"]()

    async def home(target: User) -> Box:
        if target.id not in homes:
            homes[target.id] = await parts.store.boxes.home_of(target, parts.driver.name, parts.config.limits)
        return homes[target.id]

    return home
