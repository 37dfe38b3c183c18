"""What the requests about a box's whole tree do: pack, unpack beside it, settle, reset, repair. The content is touched by
children with the box's uid alone, locked into the tree. Must never change the tree of a box that runs."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from ringfence.spawner import packing, paths, protocol, sources, sweep, unpacking
from ringfence.spawner.answers import Answer
from ringfence.spawner.beside import Beside
from ringfence.spawner.children import Children
from ringfence.spawner.disks import Disks
from ringfence.spawner.errors import Busy, Refused
from ringfence.spawner.registry import Entry, Registry
from ringfence.spawner.sources import Host
from ringfence.spawner.start import Starter
from ringfence.spawner.tasks import Steps, pause

LEAVE_SECONDS = 0.2
END_SECONDS = 10.0  # of a child that has been killed, or has said its last word


@dataclass(frozen=True, slots=True)
class Work:
    pid: int
    unpacks: bool


def kept_parts(kind: protocol.BoxKind) -> tuple[str, ...]:
    """Of a tree. /tmp is emptied with each stop and is in no archive."""
    return tuple(part for part in paths.parts(kind) if part != "tmp")


class Copies:
    def __init__(
        self,
        host: Host,
        children: Children,
        registry: Registry,
        starter: Starter,
        disks: Disks,
        helpers: Callable[[str], Steps[None]],
    ) -> None:
        """`helpers`: ends the files helpers of a box. Also takes away what an unpacking that was cut short left mounted."""
        self._end_helpers = helpers
        self._host = host
        self._children = children
        self._registry = registry
        self._starter = starter
        self._disks = disks
        self._beside = Beside(host, children, disks)
        self._beside.tidy(registry)
        self._works: dict[str, Work] = {}

    def pack(self, request: protocol.Pack) -> Steps[Answer]:
        entry = self._registry.get(request.box)
        yield from self._standing(entry)
        with paths.box_directory(self._host.state, entry.box) as box, sources.Opened() as opened:
            self._disks.attach(box)
            tree = opened.keep(paths.open_tree(box, entry.uid))
            parts = kept_parts(entry.kind)
            for part in parts:  # with the rights of its owner
                opened.keep(paths.open_part(tree, part, entry.uid))
            fd = self._begin(entry, tree, lambda end: packing.serve(end, tree, parts), unpacks=False)
        return Answer(None, (fd,))

    def unpack(self, request: protocol.Unpack) -> Steps[Answer]:
        entry = self._registry.get(request.box)
        yield from self._down(entry)
        yield from self.end(entry.box)  # one of before that nobody settled
        parts = kept_parts(entry.kind)
        with paths.box_directory(self._host.state, entry.box) as box, sources.Opened() as opened:
            yield from self._beside.make(box, entry, request.limits, filled=True)
            tree = opened.keep(self._beside.open(box, entry))
            work = lambda end: unpacking.serve(end, tree, parts, request.limits)  # noqa: E731 - a child's whole work
            fd = self._begin(entry, tree, work, unpacks=True)
        return Answer(None, (fd,))

    def settle(self, request: protocol.Settle) -> Steps[Answer]:
        entry = self._registry.get(request.box)
        if request.whole:
            self._stopped(entry)
            yield from self._finished(entry)
            yield from self._end_helpers(entry.box)
        yield from self.end(entry.box)
        with paths.box_directory(self._host.state, entry.box) as box:
            if request.whole:
                yield from self._beside.swap(box, entry, request.limits)
            else:
                yield from self._beside.discard(box, entry, request.limits)
        return Answer(None)

    def reset(self, request: protocol.Reset) -> Steps[Answer]:
        entry = self._registry.get(request.box)
        yield from self._down(entry)
        yield from self._end_helpers(entry.box)
        yield from self._starter.end(entry)  # what a box that ended by itself has left
        with paths.box_directory(self._host.state, entry.box) as box:
            yield from self._beside.make(box, entry, request.limits, filled=False)
            yield from self._beside.swap(box, entry, request.limits)
        return Answer(None)

    def repair(self, request: protocol.Repair) -> Steps[Answer]:
        entry = self._registry.get(request.box)
        yield from self._down(entry)
        yield from self._end_helpers(entry.box)
        found = yield from self._disks.repair(entry, request.limits)
        return Answer(protocol.Repaired(found))

    def under_way(self, box: str) -> bool:
        """Until it is settled."""
        return box in self._works

    def throw_away(self, entry: Entry) -> Steps[None]:
        """What is beside a tree although nothing is under way."""
        with paths.box_directory(self._host.state, entry.box) as box:
            yield from self._beside.discard(box, entry)

    def end(self, box: str) -> Steps[None]:
        """Whoever packs or unpacks it is killed. Idempotent."""
        work = self._works.pop(box, None)
        if work is not None:
            if self._children.running(work.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(work.pid, signal.SIGKILL)
            yield from self._children.wait(work.pid, END_SECONDS)

    def removed(self, entry: Entry) -> Steps[None]:
        """Before the box's own tree goes."""
        yield from self.end(entry.box)
        with paths.box_directory(self._host.state, entry.box) as box:
            yield from self._beside.discard(box, entry)

    def _begin(self, entry: Entry, tree: int, work: Callable[[socket.socket], None], *, unpacks: bool) -> int:
        """The server's end of the child's socket."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            groups = self._host.config.mode != "shared"
            pid = sweep.as_account(
                entry.uid, lambda: work(theirs), keep=(theirs.fileno(), tree), report=2, groups=groups, root=tree
            )
        self._children.add(pid, watched=not unpacks)  # a packer's last word says how it ended
        self._works[entry.box] = Work(pid, unpacks)
        return ours.detach()

    def _finished(self, entry: Entry) -> Steps[None]:
        """Refused: no unpacking of this box has come to its end well."""
        work = self._works.get(entry.box)
        status: int | None = None
        if work is not None and work.unpacks:
            status = yield from self._children.wait(work.pid, END_SECONDS)
            if status is not None:
                del self._works[entry.box]
        if status != 0:
            raise Refused("nothing whole was unpacked beside the box's tree", "unpack it again")

    def _standing(self, entry: Entry) -> Steps[None]:
        """Refused: it runs and is not frozen. Busy."""
        if self._starter.alive(entry.box) is not None and not self._host.cgroups.frozen(entry.box):
            raise Refused("the box runs, and its files may change meanwhile", "freeze or stop it first")
        yield from self._free(entry)

    def _down(self, entry: Entry) -> Steps[None]:
        """Refused: it runs. Busy."""
        self._stopped(entry)
        yield from self._free(entry)

    def _stopped(self, entry: Entry) -> None:
        if self._starter.alive(entry.box) is not None:
            raise Refused("the box runs", "stop it first")

    def _free(self, entry: Entry) -> Steps[None]:
        """One that has said its last word is gone in a moment."""
        work = self._works.get(entry.box)
        until = time.monotonic() + LEAVE_SECONDS
        while work is not None and self._children.running(work.pid):
            if time.monotonic() < until:
                yield from pause(0.002)
                continue
            raise Busy("the box's files are being copied", "wait until that is over")
