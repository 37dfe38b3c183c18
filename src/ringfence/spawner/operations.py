"""What each request does. One method a request; slow ones are steps. Must never use a value of a request for anything but
choosing a box that exists and limits within protocol.BOUNDS."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ringfence.spawner import files_helper, paths, protocol, sources, sweep
from ringfence.spawner.children import Children
from ringfence.spawner.errors import Busy, NotFound, Refused, SpawnerError, of_os_error
from ringfence.spawner.limits import share
from ringfence.spawner.registry import Entry, Registry
from ringfence.spawner.sources import Host
from ringfence.spawner.start import Starter
from ringfence.spawner.tasks import Steps
from ringfence.spawner.warmer import Warmer

FILES_EACH = 8  # helpers of one box at once; each ends after 10 s idle
FILES_ALL = 64
LIST_PAGE = 500


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply and the descriptors that go with it; the server closes them once sent."""

    body: object
    fds: tuple[int, ...] = ()


class Operations:
    def __init__(self, host: Host, children: Children, warmer: Warmer) -> None:
        self._host = host
        self._children = children
        self._registry = Registry(host.config, host.state)
        self._starter = Starter(host, children, warmer)
        self._helpers: dict[int, str] = {}  # pid -> box
        self._table: dict[type, Callable[[Any], Answer | Steps[Answer]]] = {
            protocol.Greet: self._greet,
            protocol.Provision: self._provision,
            protocol.Start: self._start,
            protocol.Stop: self._stop,
            protocol.Observe: self._observe,
            protocol.SetLimits: self._set_limits,
            protocol.Files: self._files,
            protocol.Remove: self._remove,
            protocol.ListBoxes: self._list,
        }

    def begin(self, request: protocol.Request) -> Answer | Steps[Answer]:
        """The answer, or the steps to it. Raises SpawnerError or OSError, also from the steps."""
        return self._table[type(request)](request)

    def _greet(self, request: protocol.Greet) -> Answer:
        if request.version != protocol.VERSION:
            raise Refused(
                f"the spawner speaks version {protocol.VERSION}, not {request.version}",
                "restart the server: ringfence serve",
            )
        host = self._host
        return Answer(
            protocol.Greeting(
                version=protocol.VERSION,
                installation=host.config.installation,
                mode=host.config.mode,
                cgroups=host.cgroups.kind,
                boot_id=self._starter.identifier.boot_id,
                weak=list(host.weak),
                guest_digest=host.config.guest_digest,
                bwrap=host.bwrap_version,
            )
        )

    def _provision(self, request: protocol.Provision) -> Answer:
        entry, created = self._registry.provision(request.box, request.kind)
        return Answer(protocol.Provisioned(entry.uid, entry.ids, created))

    def _start(self, request: protocol.Start) -> Steps[Answer]:
        entry = self._registry.get(request.box)
        started = yield from self._starter.start(entry, request.limits)
        return Answer(started)

    def _stop(self, request: protocol.Stop) -> Steps[Answer]:
        yield from self._starter.end(self._registry.get(request.box))
        return Answer(None)

    def _observe(self, request: protocol.Observe) -> Answer:
        try:
            entry = self._registry.get(request.box)
        except NotFound:
            return Answer(protocol.Observed("absent", None, 0, 0, 0, 0, 0, 0))
        live = self._starter.alive(entry.box)
        if live is None:
            return Answer(protocol.Observed("stopped", None, entry.uid, 0, 0, 0, 0, 0))
        used = self._host.cgroups.usage(entry.box)
        return Answer(
            protocol.Observed(
                "running", live.identity, entry.uid, used.pids, used.memory, used.peak, used.limit, used.oom_kills
            )
        )

    def _set_limits(self, request: protocol.SetLimits) -> Answer:
        entry = self._registry.get(request.box)
        if self._starter.alive(entry.box) is not None:
            try:
                self._host.cgroups.set_limits(entry.box, share(request.limits))
            except OSError as error:  # EBUSY on v1: more is in use than the new limit allows
                raise of_os_error(error, "setting the box's limits") from error
        return Answer(None)

    def _files(self, request: protocol.Files) -> Answer:
        entry = self._registry.get(request.box)
        self._helpers = {pid: box for pid, box in self._helpers.items() if self._children.running(pid)}
        if len(self._helpers) >= FILES_ALL or list(self._helpers.values()).count(entry.box) >= FILES_EACH:
            raise Busy("too many file transfers at once", "wait until one has ended")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with paths.box_directory(self._host.state, entry.box) as box, sources.Opened() as opened, theirs:
            tree = opened.keep(paths.open_tree(box, entry.uid))
            pid = sweep.as_account(
                entry.uid,
                lambda: files_helper.serve(theirs, tree),
                keep=(theirs.fileno(), tree),
                report=2,
                groups=self._host.config.mode != "shared",
                root=tree,
            )
        self._children.add(pid, watched=True)
        self._helpers[pid] = entry.box
        return Answer(None, (ours.detach(),))

    def _remove(self, request: protocol.Remove) -> Steps[Answer]:
        try:
            entry = self._registry.get(request.box)
        except NotFound:
            self._registry.clear(request.box)
            return Answer(None)
        yield from self._starter.end(entry)
        for pid in [pid for pid, box in self._helpers.items() if box == entry.box]:
            if self._children.running(pid):
                os.kill(pid, signal.SIGKILL)
                yield from self._children.wait(pid, 5.0)
        clean = yield from self._empty(entry)
        self._registry.forget(entry, clean=clean)
        return Answer(None)

    def _empty(self, entry: Entry) -> Steps[bool]:
        """Deletes the tree's content as the box; True when nothing at all is left of its ids."""
        shared = self._host.config.mode == "shared"
        uids = range(entry.uid, entry.uid + entry.ids)
        gone = shared or (yield from sweep.kill_processes(uids, 5.0))
        with paths.box_directory(self._host.state, entry.box) as box, sources.Opened() as opened:
            try:
                tree = opened.keep(paths.open_tree(box, entry.uid))
            except SpawnerError:
                tree = -1  # half made or half removed: what is there has no content of the box
            if tree >= 0:
                yield from sweep.empty(tree, entry.uid, self._children, groups=not shared)
        return not shared and gone and not self._host.cgroups.processes(entry.box) and not sweep.has_keys(uids)

    def _list(self, request: protocol.ListBoxes) -> Answer:
        names = [name for name in self._registry.names() if name > request.after]
        boxes, running = [], []
        for name in names[:LIST_PAGE]:
            try:
                self._registry.get(name)
                if self._starter.alive(name) is not None:
                    running.append(name)
            except (SpawnerError, OSError):  # damaged or foreign: not ours to speak of
                continue
            boxes.append(name)
        return Answer(protocol.Listed(boxes, running, len(names) > LIST_PAGE))
