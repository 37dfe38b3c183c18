"""Actors that the engine made, tied to the credential that they were made of.

The transport says what its connection showed, once, where it reads the socket (`present`); the engine makes the actor of
a credential and seals both together; every door compares the seal with what this task's connection showed. So a web room
that takes bob for alice, by a cache, a mix-up or an edit of the actor, is refused at the door (decision 0028, drill D-1).
The key lives in this process and is told to nobody. It must never be the only check: it says who asks, not who may.

A task that serves no connection shows nothing, and is not checked: that is the server's own work and whoever holds the
engine as an object.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace

from ringfence.host.kernel.errors import Unauthenticated
from ringfence.host.kernel.people import Actor


class Seals:
    def __init__(self, secret: Callable[[], str]) -> None:
        """`secret`: 256 random bits as text; asked once, when the first credential is shown."""
        self._secret, self._key = secret, b""
        self._shown: ContextVar[str | None] = ContextVar("credential of this task's connection", default=None)

    def present(self, credential: str) -> None:
        """What the connection showed that this task, and what it begins, serves."""
        self._key = self._key or self._secret().encode()
        self._shown.set(credential)

    def sealed(self, actor: Actor, credential: str) -> Actor:
        """Unsealed while no connection has shown anything: then nobody checks."""
        return replace(actor, seal=self._seal(actor, credential)) if self._key else actor

    def resealed(self, actor: Actor) -> Actor:
        """One that was made of another actor of this task's connection, which has been checked."""
        shown = self._shown.get()
        return actor if shown is None else self.sealed(actor, shown)

    def check(self, actor: Actor) -> None:
        """Unauthenticated: the actor was not made of what this connection showed, or was changed since."""
        shown = self._shown.get()
        if shown is not None and not hmac.compare_digest(actor.seal, self._seal(actor, shown)):
            raise Unauthenticated(
                "the actor of this request is not who its connection showed: nothing was done",
                remedy="report this: a part of the server mixes people up",
            )

    def _seal(self, actor: Actor, credential: str) -> bytes:
        user = actor.user
        who = ("",) if user is None else (
            user.id, user.tenant, user.tenant_name, user.name, user.kind.value, str(user.owner), str(user.disabled)
        )  # fmt: skip
        rights = (str(actor.operator), actor.via, str(actor.impersonated), *sorted(actor.scopes), str(actor.expires_at))
        text = "\0".join((credential, str(len(who)), *who, *rights))
        return hmac.digest(self._key, text.encode("utf-8", "surrogatepass"), hashlib.sha256)
