"""The production gate: no server for several tenants, or for others than this host, on walls that nothing has tried.

Decides by the record of the last `ringfence prove` (prove_record.py) and by what was accepted by name. It must never
take an acceptance without a reason: name and reason go into the audit.
"""

from __future__ import annotations

import difflib
import os
import pwd
import shlex
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from ringfence.host.install.prove_record import Verdict
from ringfence.host.kernel.errors import Invalid, Unavailable
from ringfence.host.kernel.settings import ACCEPT, Settings
from ringfence.host.kernel.settings_egress import loopback_pins

_LOGIN = Path("/proc/self/loginuid")
_NOBODY_LOGGED_IN = 0xFFFFFFFF


def needed(settings: Settings, *, production: bool) -> str:
    """What asks for proven walls; empty: nothing does yet (a second tenant will)."""
    if production:
        return "profile production"
    return "" if settings.loopback_only else "a listener beyond loopback"


def check_pins(settings: Settings, *, production: bool) -> None:
    """Invalid: a pin of a test would let every box reach what listens on this host alone."""
    if production and (pins := loopback_pins(settings.egress)):
        raise Invalid(
            f"egress.pins leads to this host itself: {', '.join(pins)}",
            remedy="take it out of [egress] pins, or start without --profile production",
        )


def objection(settings: Settings, verdict: Verdict, config: Path | None = None) -> tuple[str, str]:
    """(why this host may not serve others, remedy); empty when it may. `config`: the file of the settings, when it was
    named."""
    if verdict.beyond(settings.accept):
        accept = ",".join(verdict.open)  # all: --accept is said anew at each start
        prove = "ringfence prove" + (f" --config {shlex.quote(str(config))}" if config is not None else "")
        return verdict.why, f"{prove}; or accept it by name: ringfence serve --accept {accept} --reason WHY"
    if verdict.open and not settings.accept_reason:
        return (
            f"{', '.join(verdict.open)} is accepted without a reason",
            'say why: ringfence serve --reason WHY, or accept_reason = "WHY"',
        )
    return "", ""


def check_rows(accept: Collection[str], rows: Callable[[], Collection[str]]) -> None:
    """Invalid: an accepted id that no row of `prove` has. `rows` gives all ids; asked only when there is one to look for."""
    named = [one for one in accept if one not in ACCEPT]
    known = rows() if named else ()
    for one in named:
        if one not in known:
            near = difflib.get_close_matches(one, known, 1, 0.5)
            hint = f"did you mean {near[0]}? " if near else ""
            raise Invalid(
                f"accept: {one} is the id of no row of `ringfence prove`",
                remedy=f"{hint}take it out of accept; docs/threats.md has every id, `ringfence config show` those of hosts",
            )


def recorded(settings: Settings, verdict: Verdict) -> Settings:
    """The settings with what is accepted though it stands open. Without a reason it is not: then nobody has accepted it,
    and the audit is told nothing."""
    accepted = tuple(one for one in verdict.open if one in settings.accept)
    if accepted and not settings.accept_reason:
        return replace(settings, accept=tuple(one for one in settings.accept if one not in accepted), open=())
    return replace(settings, open=accepted)


def check(settings: Settings, verdict: Verdict, *, production: bool, config: Path | None = None) -> tuple[str, str]:
    """(why a second tenant is to be refused, remedy), empty when it need not be. Unavailable: what is asked for is refused
    now."""
    why, remedy = objection(settings, verdict, config)
    what = needed(settings, production=production)
    if what and why:
        raise Unavailable(f"{what} needs proven walls: {why}", remedy=remedy)
    return why, remedy


def who() -> str:
    """Who starts the server, for the audit: the account that logged in if the host knows it, else the effective one."""
    try:
        login = int(_LOGIN.read_text())
    except (OSError, ValueError):
        login = _NOBODY_LOGGED_IN
    uid = os.geteuid() if login == _NOBODY_LOGGED_IN else login
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
