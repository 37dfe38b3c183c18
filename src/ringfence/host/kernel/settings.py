"""What a server runs with. Pure. settings_file.py makes one of a file's text."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from ringfence.host.kernel.boxes import Limits, LimitsAll, Rates
from ringfence.host.kernel.declared import Webhook, rule_from_json
from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.life.rests import Rests
from ringfence.host.kernel.models.upstreams import RESERVED, Upstream, budgets_from_json, upstream_from_json
from ringfence.host.kernel.models.usage import BudgetLimits
from ringfence.host.kernel.policy import Rule
from ringfence.host.kernel.retention import Keep
from ringfence.host.kernel.settings_egress import EgressSettings
from ringfence.host.kernel.settings_life import Boxes
from ringfence.host.kernel.vault_keys import VaultKeys

MODES = ("auto", "root", "subuid", "shared")
DISKS = ("auto", "image", "quota", "accounting")
# What a host may be unable to enforce, and what accepting that means. Beside these, `accept` takes the id of a row of
# `ringfence prove` that is open.
ACCEPT = {
    "no-cgroup": "no memory, pids or CPU limits for each box, and no freeze: pause means stop",
    "shared-uid": "every box has the same host id: the walls between boxes are namespaces alone, with no second wall",
    "no-landlock": "a command can signal the agent loop of the same box",
    "no-landlock-scope": "this kernel's Landlock scopes no signals: a command can end the agent loop of the same box",
    "no-pidfs": "a box's PID 1 is known by pid and start time alone",
    "no-disk-quota": "nothing bounds the bytes and inodes of a box's tree: they are counted, but for deleted files that are "
    "still open, and a box above is stopped",
    "no-cpu-limit": "no CPU limit: the server was given cgroups without the cpu controller",
    "no-swap-limit": "the kernel counts no swap: a box's memory limit holds for RAM, and it may swap beyond it",
    "no-nft": "no redirect and no reject in a box's network namespace: it has a loopback only",
    "no-freezer": "no freeze: pause means stop, and a box is stopped for a copy of its files",
    "unproved": "production, a wider listener or a second tenant on walls that `ringfence prove` has not tried as they are",
}

_ROW = re.compile(r"[A-Z][A-Z0-9]{0,7}(-[A-Za-z0-9]{1,24})?\Z")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a server runs with. The first three and `socket` are known only once there is a state directory (`at`)."""

    home: str = ""
    installation: str = ""  # 16 base32 characters
    socket: str = ""  # of operators
    database: str = ""  # SQLAlchemy URL without a driver; "" = SQLite below home
    listen: tuple[str, int] | None = ("127.0.0.1", 8377)
    domain: str = ""
    model: str = RESERVED  # of the native loop: that, or an alias of model_upstream
    script: str = ""  # path of the scripted provider's file; "" = none
    model_window: int = 200_000  # tokens
    model_timeout_seconds: int = 600
    model_upstream: tuple[Upstream, ...] = ()
    model_budget: BudgetLimits = field(default_factory=BudgetLimits)
    run_soft_seconds: int = 10_800  # 3 h; 0 = none
    run_hard_seconds: int = 14_400  # 4 h: an hour to come to an end; 0 = none
    mode: str = "auto"
    max_runs: int = 8
    max_user_runs: int = 6  # user_runs(8)
    accept: tuple[str, ...] = ()
    accept_reason: str = ""  # why what stands open in the last prove is accepted
    accepted_by: str = ""  # who started the server; found, not set
    open: tuple[str, ...] = ()  # of `accept`: what stands open in the last prove, or `unproved`; found, not set
    gate: str = ""  # why this host may not serve more than one tenant; found, not set. "" = it may
    gate_remedy: str = ""  # the command that opens it; found, not set
    bwrap: str = "/usr/bin/bwrap"
    python: str = "/usr/bin/python3"
    cgroup_parent: str = ""
    disk: str = "auto"
    limits: Limits = field(default_factory=Limits)
    limits_all: LimitsAll = field(default_factory=LimitsAll)
    rates: Rates = field(default_factory=Rates)
    rest: Rests = field(default_factory=Rests)
    boxes: Boxes = field(default_factory=Boxes)
    retention: Keep = field(default_factory=Keep)
    vault: VaultKeys = field(default_factory=VaultKeys)
    egress: EgressSettings = field(default_factory=EgressSettings)
    handed: str = ""  # where the keys are that `serve` read for us; found, not set
    webhook: tuple[Webhook, ...] = ()
    policy: tuple[Rule, ...] = ()

    def at(self, home: str, installation: str, mode: str) -> Settings:
        """These settings for one installation, its open ends filled in."""
        return replace(
            self,
            home=home,
            installation=installation,
            socket=f"{home}/run/api.sock",
            database=self.database or f"sqlite:///{home}/db/ringfence.db",
            mode=mode,
        )

    @property
    def loopback_only(self) -> bool:
        return self.listen is None or ipaddress.ip_address(self.listen[0]).is_loopback

    def to_json(self) -> dict[str, Any]:
        """`from_json` gives the same settings back."""
        raw = asdict(self)
        raw["listen"] = list(self.listen) if self.listen else None
        raw["accept"], raw["open"] = list(self.accept), list(self.open)
        raw["model_upstream"] = list(raw["model_upstream"])
        raw["webhook"], raw["policy"] = list(raw["webhook"]), [rule.to_json() for rule in self.policy]
        return raw

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Settings:
        """Settings that `to_json` wrote. Invalid: anything else, an unknown field included."""
        try:
            unknown = raw.keys() - {f.name for f in fields(cls)}
            if unknown:
                raise Invalid(f"settings have no field {min(unknown)!r}", remedy="start the server again")
            known = dict(raw)
            if known.get("listen") is not None:
                host, port = known["listen"]
                known["listen"] = (str(host), int(port))
            known["accept"], known["open"] = tuple(known.get("accept", ())), tuple(known.get("open", ()))
            known["limits"] = Limits(**known.get("limits", {}))
            known["limits_all"] = LimitsAll(**known.get("limits_all", {}))
            known["rates"] = Rates(**known.get("rates", {}))
            known["rest"], known["boxes"] = Rests(**known.get("rest", {})), Boxes(**known.get("boxes", {}))
            known["model_upstream"] = tuple(upstream_from_json(each) for each in known.get("model_upstream", ()))
            known["model_budget"] = budgets_from_json(known.get("model_budget", {}))
            known["webhook"] = tuple(Webhook(**each) for each in known.get("webhook", ()))
            known["policy"] = tuple(rule_from_json(each) for each in known.get("policy", ()))
            known["retention"] = Keep(**known.get("retention", {}))
            known["egress"] = EgressSettings.from_json(known.get("egress", {}))
            known["vault"] = VaultKeys.from_json(known.get("vault", {}))
            return cls(**known)
        except (AttributeError, TypeError, ValueError) as error:
            raise Invalid(f"these are no settings: {error}", remedy="start the server again") from error


def user_runs(most: int) -> int:
    """How many of `most` runs may be one user's: whoever says a word finds room though somebody else has thousands waiting."""
    return min(6, max(1, most - 1))


def is_row(name: str) -> bool:
    """Whether it has the form of a row's id of `ringfence prove`: C06, D-1."""
    return _ROW.match(name) is not None
