"""What each request does. One method a request; slow ones are steps. Must never use a value of a request for anything
but choosing a box that exists and limits within protocol.BOUNDS."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

from ringfence.spawner import files_helper, images, paths, protocol, sources, sweep
from ringfence.spawner.answers import Answer, observed
from ringfence.spawner.cgroups import Usage
from ringfence.spawner.children import Children
from ringfence.spawner.copying import Copies
from ringfence.spawner.debris import Debris
from ringfence.spawner.disks import Disks
from ringfence.spawner.errors import Busy, NotFound, Refused, SpawnerError, out_of_cgroups
from ringfence.spawner.hearing import Hearing
from ringfence.spawner.limits import share
from ringfence.spawner.outward import Outward
from ringfence.spawner.registry import Entry, Registry
from ringfence.spawner.sources import Host
from ringfence.spawner.start import Starter
from ringfence.spawner.tasks import Steps, while_named
from ringfence.spawner.template import Template
from ringfence.spawner.warmer import Warmer
from ringfence.spawner.workers import Workers

FILES_EACH = 8  # helpers of one box at once; each ends after 10 s idle
FILES_ALL = 64
LIST_PAGE = 500


class Operations:
    def __init__(self, host: Host, children: Children, warmer: Warmer, template: Template | None = None) -> None:
        """Also lets go of what a removal that was cut short left mounted."""
        self._host = host
        self._children = children
        self._registry = Registry(host.config, host.state)
        self._disks = Disks(host, children)
        self._disks.tidy(self._registry)
        self._starter = Starter(host, children, warmer, self._disks)
        self._outward = Outward(host, self._registry, self._starter, template)
        self._copies = Copies(host, children, self._registry, self._starter, self._disks, self._end_helpers)
        self._helpers: dict[int, str] = {}  # pid -> box
        self._busy: set[str] = set()  # boxes that something is being done with
        workers, copies = self._outward.workers, self._copies
        self._debris = Debris(host, children, self._registry, self._disks, self._starter, workers, copies, self._busy)
        self._table: dict[type, Callable[[Any], Answer | Steps[Answer]]] = {
            protocol.Greet: self._greet,
            protocol.Provision: self._provision,
            protocol.Start: self._start,
            protocol.FindImage: lambda r: Answer(protocol.FoundImage(images.find(host.state, r.image))),
            protocol.Stop: self._stop,
            protocol.Freeze: self._freeze,
            protocol.Thaw: self._freeze,
            protocol.Observe: self._observe,
            protocol.SetLimits: self._set_limits,
            protocol.Files: self._files,
            protocol.Remove: self._remove,
            protocol.ListBoxes: self._list,
            protocol.Listen: self._outward.listen,
            protocol.Worker: self._outward.worker,
            protocol.EndWorker: self._outward.end_worker,
            protocol.Trust: self._outward.trust,
            protocol.Pack: self._copies.pack,
            protocol.Unpack: self._copies.unpack,
            protocol.Settle: self._copies.settle,
            protocol.Reset: self._copies.reset,
            protocol.Repair: self._copies.repair,
            protocol.Said: Hearing(host, children, self._registry, self._starter.identifier).said,
            protocol.Debris: self._debris.look,
            protocol.Clear: self._debris.clear,
        }

    @property
    def workers(self) -> Workers:
        return self._outward.workers

    def tend(self) -> None:
        """Some child has ended."""
        self.workers.tend()

    def begin(self, request: protocol.Request) -> Answer | Steps[Answer]:
        """The answer, or the steps to it. Raises SpawnerError or OSError, also from the steps."""
        answer = self._table[type(request)](request)
        box = "" if isinstance(request, protocol.Clear) else getattr(request, "box", "")
        return answer if isinstance(answer, Answer) or not box else while_named(self._busy, box, answer)

    def _greet(self, request: protocol.Greet) -> Answer:
        if request.version != protocol.VERSION:
            raise Refused(
                f"the spawner speaks version {protocol.VERSION}, not {request.version}",
                "restart the server: ringfence serve",
            )
        host, volume = self._host, self._disks.volume()
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
                disk=host.disk,
                disk_free=volume.free,
                disk_promised=volume.promised,
                disk_reserve=volume.reserve,
                disk_broken=volume.broken,
                limits_all=host.cgroups.limits(),
                limits_unmet=host.cgroups.unmet(),
                runtime=os.path.basename(host.config.runtime),
                image=images.of_host(),
            )
        )

    def _provision(self, request: protocol.Provision) -> Steps[Answer]:
        entry, created = self._registry.record(request.box, request.kind)
        yield from self._disks.prepare(entry, request.limits)
        self._registry.furnish(entry)
        return Answer(protocol.Provisioned(entry.uid, entry.ids, created))

    def _start(self, request: protocol.Start) -> Steps[Answer]:
        entry = self._registry.get(request.box)
        if self._starter.held(entry.box) is None:  # else it is asked what runs already
            yield from self.workers.end(entry.box)
        started = yield from self._starter.start(entry, request.limits, request.image)
        return Answer(started)

    def _stop(self, request: protocol.Stop) -> Steps[Answer]:
        entry = self._registry.get(request.box)
        yield from self.workers.end(entry.box)
        yield from self._starter.end(entry)
        return Answer(None)

    def _freeze(self, request: protocol.Freeze | protocol.Thaw) -> Steps[Answer]:
        entry = self._registry.get(request.box)
        if (live := self._starter.alive(entry.box)) is None:
            raise Refused("the box does not run", "start it first")
        if not self._host.cgroups.holds(entry.box, live.identity.pid):
            raise out_of_cgroups()
        wanted = isinstance(request, protocol.Freeze)
        if wanted:
            yield from self.workers.end(entry.box)
        yield from self._host.cgroups.freeze(entry.box, frozen=wanted)
        return Answer(None)

    def _observe(self, request: protocol.Observe) -> Answer:
        try:
            entry = self._registry.get(request.box)
        except NotFound:
            return Answer(
                protocol.Observed(
                    state="absent", identity=None, uid=0, pids=0, memory=0, memory_peak=0, memory_limit=0, oom_kills=0
                )
            )
        disk = self._disks.use(entry)
        live = self._starter.alive(entry.box)
        if live is None:
            return Answer(observed(entry, disk, "stopped", None, Usage(), frozen=False))
        used = self._host.cgroups.usage(entry.box)
        frozen = self._host.cgroups.frozen(entry.box)
        return Answer(observed(entry, disk, "running", live.identity, used, frozen=frozen))

    def _set_limits(self, request: protocol.SetLimits) -> Steps[Answer]:
        entry = self._registry.get(request.box)
        running = self._starter.alive(entry.box) is not None
        cgroups = self._host.cgroups
        with cgroups.changed_limits(entry.box, share(request.limits)) if running else contextlib.nullcontext():
            yield from self._disks.resize(entry, request.limits, running=running)
        return Answer(None)

    def _files(self, request: protocol.Files) -> Answer:
        entry = self._registry.get(request.box)
        self._helpers = {pid: box for pid, box in self._helpers.items() if self._children.running(pid)}
        if len(self._helpers) >= FILES_ALL or list(self._helpers.values()).count(entry.box) >= FILES_EACH:
            raise Busy("too many file transfers at once", "wait until one has ended")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with paths.box_directory(self._host.state, entry.box) as box, sources.Opened() as opened, theirs:
            self._disks.attach(box)
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
        yield from self.workers.end(entry.box)
        yield from self._starter.end(entry, for_good=True)
        yield from self._end_helpers(entry.box)
        yield from self._copies.removed(entry)
        clean = yield from self._empty(entry)
        self._registry.forget(entry, clean=clean)
        return Answer(None)

    def _end_helpers(self, box: str) -> Steps[None]:
        """Whoever has a descriptor of its tree would go on in the old one, or keep its image."""
        for pid in [pid for pid, of in self._helpers.items() if of == box]:
            if self._children.running(pid):
                os.kill(pid, signal.SIGKILL)
                yield from self._children.wait(pid, 5.0)

    def _empty(self, entry: Entry) -> Steps[bool]:
        """Deletes the tree's content as the box, or takes its image away; True when nothing at all is left of its
        ids."""
        shared = self._host.config.mode == "shared"
        uids = range(entry.uid, entry.uid + entry.ids)
        gone = shared or (yield from sweep.kill_processes(uids, 5.0))
        apart = self._disks.apart(entry)
        with paths.box_directory(self._host.state, entry.box) as box, sources.Opened() as opened:
            try:
                tree = -1 if apart else opened.keep(paths.open_tree(box, entry.uid))
            except SpawnerError:
                tree = -1  # half made or half removed: what is there has no content of the box
            if tree >= 0:
                yield from sweep.empty(tree, entry.uid, self._children, groups=not shared)
        return not shared and gone and not self._host.cgroups.processes(entry.box) and not sweep.has_keys(uids)

    def _list(self, request: protocol.ListBoxes) -> Answer:
        names = [name for name in self._registry.names() if name > request.after]
        boxes, running, jails = [], [], []
        for name in names[:LIST_PAGE]:
            try:
                entry = self._registry.get(name)
                if self._starter.alive(name) is not None:
                    running.append(name)
            except (SpawnerError, OSError):  # damaged or foreign: not ours to speak of
                continue
            boxes.append(name)
            if entry.kind == "skill":
                jails.append(name)
        return Answer(protocol.Listed(boxes, running, len(names) > LIST_PAGE, jails))
