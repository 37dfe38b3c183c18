"""Parts that the settings alone decide. Reads the files that they name; opens nothing that lasts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ringfence.host.capabilities.keys import secret_in, secret_of
from ringfence.host.capabilities.webhook import Place, WebhookTool
from ringfence.host.engine.parts import Config
from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.ports import Clock, Model
from ringfence.host.kernel.script import Rule, parse_script
from ringfence.host.kernel.settings import Settings
from ringfence.host.kernel.version import VERSION
from ringfence.host.models.scripted import Scripted
from ringfence.host.store.audit_keys import Signer, vault_signer


def config_of(settings: Settings) -> Config:
    return Config(
        installation=settings.installation,
        version=VERSION,
        mode=settings.mode,
        model=settings.model,
        limits=settings.limits,
        accepted=settings.accept,
        open=settings.open,
        gate=settings.gate,
        gate_remedy=settings.gate_remedy,
        max_runs=settings.max_runs,
        max_user_runs=settings.max_user_runs,
        soft_seconds=float(settings.run_soft_seconds),
        hard_seconds=float(settings.run_hard_seconds),
        model_timeout_seconds=float(settings.model_timeout_seconds),
        keep=settings.retention,
        rests=settings.rest,
        caps=settings.boxes,
        image=settings.boxes.image,
        model_keys=frozenset(each.key for each in settings.model_upstream if each.key),
    )


def models_of(settings: Settings) -> Mapping[str, Model]:
    """The providers that need no key, by name. Reads the script's file. Invalid."""
    rules: tuple[Rule, ...] = ()
    if settings.script:
        try:
            rules = parse_script(Path(settings.script).read_text(), source=settings.script)
        except (OSError, UnicodeDecodeError) as error:
            raise Invalid(f"script: {settings.script} cannot be read: {error}", remedy='script = ""') from error
    return {"scripted": Scripted(rules, settings.model_window)}


def webhooks_of(settings: Settings, clock: Clock) -> list[WebhookTool]:
    """What the host may send to, with the keys. Reads files. Invalid."""
    places = [Place(one, secret_of(one.secret_file, f"webhook {one.name}")) for one in settings.webhook]
    return [WebhookTool(places, clock, secret_in)] if places else []


def signer_of(settings: Settings, worker: str) -> Signer:
    """Whose chain of the audit the process `worker` writes. Blocks. Unavailable: no key."""
    return vault_signer(Path(settings.home) / "vault", worker)
