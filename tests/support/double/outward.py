"""Vault and way out of the double: none. tests/contract/test_cli_outward.py asks a real engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from ringfence.host.engine.egress_log import LogView
from ringfence.host.engine.egress_rules import RulesView, Tried
from ringfence.host.engine.secrets import SecretView
from ringfence.host.kernel.errors import Unavailable
from ringfence.host.kernel.outward.credentials import Binding, Credential
from ringfence.host.kernel.outward.rules import EgressRule
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.wishes import BindingWish, RuleWish
from ringfence.host.kernel.people import Actor


def _none() -> NoReturn:
    raise Unavailable("the double has no vault and no way out", remedy="ask a real engine")


class Secrets:
    async def ls(self, actor: Actor, tenant: str, user: str) -> Sequence[SecretView]:
        _none()

    async def all(self, actor: Actor, tenant: str) -> Sequence[SecretView]:
        _none()

    async def set(
        self,
        actor: Actor,
        tenant: str,
        user: str,
        name: str,
        value: Secret,
        *,
        shared: bool | None = None,
        wish: BindingWish | None = None,
        oauth: bool = False,
    ) -> SecretView:
        _none()

    async def set_tenant(
        self,
        actor: Actor,
        tenant: str,
        name: str,
        value: Secret,
        *,
        user: str = "",
        wish: BindingWish | None = None,
        oauth: bool = False,
    ) -> SecretView:
        _none()

    async def revoke(self, actor: Actor, tenant: str, user: str, name: str) -> Credential:
        _none()

    async def revoke_tenant(self, actor: Actor, tenant: str, name: str) -> Credential:
        _none()

    async def grant(self, actor: Actor, tenant: str, user: str, name: str, to: str, *, granted: bool) -> None:
        _none()

    async def reach(self, actor: Actor, tenant: str, user: str, name: str, wish: BindingWish | None) -> SecretView:
        _none()

    async def reach_tenant(self, actor: Actor, tenant: str, name: str, wish: BindingWish | None) -> SecretView:
        _none()

    async def bind(self, actor: Actor, tenant: str, user: str, name: str, wish: BindingWish) -> Sequence[Binding]:
        _none()

    async def unbind(self, actor: Actor, tenant: str, user: str, which: str) -> Sequence[str]:
        _none()


class VaultKeeper:
    async def status(self, actor: Actor) -> Mapping[str, Any]:
        _none()

    async def rotate(self, actor: Actor) -> Mapping[str, int]:
        _none()

    async def restored(self, actor: Actor) -> int:
        _none()

    async def forget_ca(self, actor: Actor, tenant: str, user: str) -> None:
        _none()


class EgressKeeper:
    async def ls(self, actor: Actor, tenant: str, user: str) -> RulesView:
        _none()

    async def add(self, actor: Actor, tenant: str, user: str, wish: RuleWish) -> RulesView:
        _none()

    async def remove(self, actor: Actor, tenant: str, user: str, rule: str) -> EgressRule:
        _none()

    async def test(self, actor: Actor, tenant: str, user: str, method: str, url: str) -> Tried:
        _none()


class EgressLog:
    async def read(self, actor: Actor, tenant: str, user: str, since: datetime | None, limit: int) -> LogView:
        _none()
