"""What the operator and the host say of every worker, and the configuration of one user. Nouns, and what makes one of them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ringfence.host.egress.configuration import Bounds, Configuration, Pin
from ringfence.host.kernel.ids import BoxId, TenantId, UserId
from ringfence.host.kernel.outward.credentials import Binding
from ringfence.host.kernel.outward.ports import Authority
from ringfence.host.kernel.outward.rules import EgressRule
from ringfence.host.kernel.outward.secret import Secret


@dataclass(frozen=True, slots=True)
class Home:
    """Whose box it is, as the store says."""

    box: BoxId
    tenant: TenantId
    user: UserId


@dataclass(frozen=True, slots=True)
class Site:
    roots: str  # PEM
    nameservers: tuple[tuple[str, int], ...] = ()
    pins: tuple[Pin, ...] = ()
    own_addresses: tuple[str, ...] = ()
    internal: tuple[tuple[str, str], ...] = ()
    upstream_proxy: tuple[str, int] | None = None
    rules: tuple[EgressRule, ...] = ()  # of the installation, from the file of settings
    bounds: Bounds = field(default_factory=Bounds)


def configuration(
    site: Site,
    home: Home,
    rules: Sequence[EgressRule],
    bindings: Sequence[Binding],
    ca: Authority | None,
    *,
    gateway: bool,
) -> Configuration:
    """`ca` None: it cannot be read."""
    return replace(
        of_nobody(site),
        user=home.user,
        rules=(*site.rules, *rules),
        bindings=tuple(bindings),
        ca_certificate=ca.certificate if ca is not None else "",
        ca_key=ca.key if ca is not None else Secret(secrets.token_hex(32).encode()),
        gateway=gateway,
    )


def of_nobody(site: Site) -> Configuration:
    """What a dialler reads of one: no rule, no binding, no CA."""
    return Configuration(
        user="",
        rules=(),
        bindings=(),
        ca_certificate="",
        ca_key=Secret(b""),
        roots=site.roots,
        nameservers=site.nameservers,
        pins=site.pins,
        own_addresses=site.own_addresses,
        internal=site.internal,
        upstream_proxy=site.upstream_proxy,
        gateway=False,
        bounds=site.bounds,
    )
