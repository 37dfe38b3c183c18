"""What all parts of the double share. Authorises in the simplest way that the access tests can tell from none."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from ringfence.host.kernel.errors import NotFound, Refused
from ringfence.host.kernel.people import Actor, Tenant, Token, User


def now() -> datetime:
    return datetime.now(UTC)


@dataclass
class World:
    """What all parts share."""

    folder: Path
    tenants: dict[str, Tenant] = field(default_factory=dict)
    users: dict[tuple[str, str], User] = field(default_factory=dict)
    tokens: dict[str, tuple[Token, User]] = field(default_factory=dict)  # by the secret's hash
    audit: list[tuple[str, str]] = field(default_factory=list)
    counter: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def id(self, prefix: str) -> str:
        return f"{prefix}_{next(self.counter):020d}"

    def user(self, actor: Actor, tenant: str, name: str) -> User:
        """NotFound for everybody but operators and the user."""
        found = self.users.get((tenant, name))
        if found is None or not (actor.operator or actor.user == found):
            raise NotFound(f"no such user: {name!r} in tenant {tenant!r}", remedy="ringfence user ls")
        return found

    def operator(self, actor: Actor) -> None:
        if not actor.operator:
            raise Refused("only an operator may do this", remedy="ask one")

    def home(self, tenant: str, user: str) -> Path:
        home = self.folder / hashlib.sha256(f"{tenant}/{user}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
        home.mkdir(exist_ok=True)
        return home
