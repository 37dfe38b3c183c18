"""What the requests about a box's way out do: listeners, worker, trust. Must never keep what it opens for the server."""

from __future__ import annotations

from ringfence.spawner import listeners, paths, protocol, trust, workers
from ringfence.spawner.answers import Answer
from ringfence.spawner.errors import Refused
from ringfence.spawner.identity import Live
from ringfence.spawner.registry import Entry, Registry
from ringfence.spawner.sources import Host
from ringfence.spawner.start import Starter
from ringfence.spawner.tasks import Steps
from ringfence.spawner.template import Template
from ringfence.spawner.workers import Workers


class Outward:
    def __init__(self, host: Host, registry: Registry, starter: Starter, template: Template | None) -> None:
        self._host = host
        self._registry = registry
        self._starter = starter
        self.workers = Workers(host.config, template)

    def listen(self, request: protocol.Listen) -> Answer:
        _, live = self._running_home(request.box)
        returns = self._host.config.mode == "root"
        kinds, fds = listeners.open_all(live, self._starter.identifier, request.port, returns=returns)
        return Answer(protocol.Listening(kinds), fds)

    def worker(self, request: protocol.Worker) -> Steps[Answer]:
        entry, _ = self._running_home(request.box)
        if self._host.cgroups.frozen(entry.box):
            raise Refused("the box is frozen", "thaw it first")
        pid, ours = yield from self.workers.begin(entry)
        return Answer(protocol.Working(pid, workers.egress_uid(self._host.config, entry)), (ours.detach(),))

    def end_worker(self, request: protocol.EndWorker) -> Steps[Answer]:
        entry = self._registry.get(request.box)
        yield from self.workers.end(entry.box)
        return Answer(None)

    def trust(self, request: protocol.Trust) -> Answer:
        entry = self._registry.get(request.box)
        workers.egress_uid(self._host.config, entry)  # Refused: no way out, so no CA
        with paths.box_directory(self._host.state, entry.box) as box:
            trust.keep(box, request.certificate)
        return Answer(None)

    def _running_home(self, box: str) -> tuple[Entry, Live]:
        """Refused: another kind of box, or not running."""
        entry = self._registry.get(box)
        workers.egress_uid(self._host.config, entry)
        live = self._starter.alive(entry.box)
        if live is None:
            raise Refused(listeners.GONE, "start it first")
        return entry, live
