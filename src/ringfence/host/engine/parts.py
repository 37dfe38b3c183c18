"""What the engine is made of and told, handed down by app.py. Nouns only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ringfence.host.engine.questions import Pen
from ringfence.host.kernel.boxes import Limits
from ringfence.host.kernel.capabilities import Tool
from ringfence.host.kernel.failpoints import Failpoints, Quiet
from ringfence.host.kernel.images import HOST
from ringfence.host.kernel.life.backups import State
from ringfence.host.kernel.life.caps import Caps, Load
from ringfence.host.kernel.life.copies import Shelf
from ringfence.host.kernel.life.logs import BoxLogs
from ringfence.host.kernel.life.logs import Quiet as NoLogs
from ringfence.host.kernel.life.rests import Rests
from ringfence.host.kernel.models.ports import Spending
from ringfence.host.kernel.onward import Onward
from ringfence.host.kernel.outward.ports import Egress, Vault
from ringfence.host.kernel.policy import Policy
from ringfence.host.kernel.ports import Broker, Clock, Driver, Ids, Model, ModelFor, Store
from ringfence.host.kernel.retention import Keep


@dataclass(frozen=True, slots=True)
class Config:
    """Of the settings, what the engine decides by."""

    installation: str
    version: str
    mode: str
    model: str  # a key of Parts.models
    limits: Limits  # of a new box
    accepted: tuple[str, ...] = ()
    open: tuple[str, ...] = ()  # of accepted: rows of the last prove that are open, or `unproved`
    gate: str = ""  # why a second tenant is refused; "" = it is not
    gate_remedy: str = ""  # the command that opens it, at the next start
    max_runs: int = 8  # at work at once
    max_user_runs: int = 0  # of them of one user; 0 = as many as there are
    adopt_seconds: float = 10.0  # kernel.runs.HELLO_SECONDS; how long a run of a former kernel may take to show itself
    sweep_seconds: float = 1.0
    heartbeat_seconds: float = 5.0  # kernel.runs.HEARTBEAT_SECONDS
    active_seconds: float = 10.0  # between two writes of a box's last_active_at
    soft_seconds: float = 10_800.0  # of work, then a run is told to come to an end; 0 = never
    hard_seconds: float = 14_400.0  # of work, then it is ended; 0 = never
    model_timeout_seconds: float = 600.0  # one answer of the model, from its first byte to its last
    watch_seconds: float = 1.0  # between two looks at deadlines and at loops whose run is over
    usage_seconds: float = 30.0  # between two counts of what boxes use
    disk_seconds: float = 5.0  # between two walks of a tree whose size nothing bounds
    sign_seconds: float = 60.0  # so much of a chain of the audit can be cut off and show in no other and no witness
    debris_seconds: float = 3600.0  # between two looks at what was left behind on the host
    upkeep_seconds: float = 5.0  # how soon a volume that was full is found to have room again
    leave_seconds: float = 5.0  # how long a loop may stay when its run is over
    rests: Rests = field(default_factory=Rests)
    caps: Caps = field(default_factory=Caps)
    image: str = HOST  # what a box has as its /usr that was given none: a name, an id
    rest_seconds: float = 2.0  # between two looks at which boxes are to rest
    keep: Keep = field(default_factory=Keep)  # how long what is over is kept
    model_keys: frozenset[str] = frozenset()  # names of credentials that providers of models are given


@dataclass(frozen=True, slots=True)
class Parts:
    store: Store
    driver: Driver
    broker: Broker
    models: Mapping[str, Model | ModelFor]
    clock: Clock
    ids: Ids
    config: Config
    worker: str  # id of this kernel process, new at each start
    facts: dict[str, object] = field(default_factory=dict)  # the driver's, read once at start
    capabilities: Mapping[str, Tool] = field(default_factory=dict)  # what the host itself carries out, by name
    policy: Policy = field(default_factory=Policy)  # in force
    gate_key: bytes = field(default=b"", repr=False)  # of the macs of gates; never in the database
    failpoints: Failpoints = field(default_factory=Quiet)  # tests hand in others
    egress: Egress | None = None  # None: boxes have no way out, and commands are told of none
    vault: Vault | None = None  # None: nothing can be stored in it
    spending: Spending | None = None  # None: calls of models are not counted
    load: Callable[[], Load] = Load  # of the host, now
    shelf: Shelf | None = None  # None: no copies of trees are kept
    logs: BoxLogs = field(default_factory=NoLogs)
    whole: State | None = None  # what a backup of the installation has besides trees; None: none is made
    withdraw: Callable[[str], None] | None = None  # a credential, from calls of models that have not begun

    @property
    def onward(self) -> Onward:
        """For what expires: the store's, so that both judge alike."""
        return self.store.onward

    @property
    def pen(self) -> Pen:
        return Pen(self.gate_key)


def weak(parts: Parts) -> list[str]:
    """Ids of what this host cannot enforce, and of what is accepted though no attack suite has seen it hold."""
    found = parts.facts.get("weak", ())
    return [*(map(str, found) if isinstance(found, list | tuple) else ()), *parts.config.open]


def together(parts: Parts) -> dict[str, int]:
    """What all boxes together may use, as far as the driver bounds it: memory, pids, cpu_milli."""
    found = parts.facts.get("limits_all", {})
    return {str(name): int(value) for name, value in found.items()} if isinstance(found, dict) else {}


def guest_digest(parts: Parts) -> str | None:
    """Of the guest tree that a newly started box runs."""
    found = parts.facts.get("guest_digest")
    return str(found) if found else None
