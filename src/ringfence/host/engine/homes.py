"""From a user to the home box, proven to be that user's: the one way there for whatever starts, dials or reads a box.

The row says whose the box is, and that is compared with who asked for it at the last moment before the driver is told a
box id. A query that lost its filter, a cache that answers for somebody else and a user who is nobody end here
(decision 0028). It must never pass a box on whose row it has not seen.
"""

from __future__ import annotations

import logging

from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.boxes import Box, BoxKind
from ringfence.host.kernel.errors import Failed, Unavailable
from ringfence.host.kernel.people import User


async def home_of(parts: Parts, user: User) -> Box:
    """The row, made on first use. NotFound: the user is removed. Failed: the store's answer is not that user's.
    Unavailable: it is on another installation."""
    box = await parts.store.boxes.home_of(user, parts.driver.name, parts.config.limits)
    return await proven(parts, box, user)


def is_here(parts: Parts, box: Box) -> bool:
    """Whether its tree is on this installation: several may share a database, and each has its own boxes."""
    return not parts.store.shared or box.installation in ("", parts.config.installation)


async def proven(parts: Parts, box: Box, user: User) -> Box:
    """The box, if its row names the user as its owner. Failed, logged and in the audit: it does not. Unavailable: it is
    on another installation."""
    if not belongs(box, user):
        logging.getLogger("ringfence.engine").error("box %s was about to serve user %s: refused", box.id, user.id)
        await parts.store.audit.record(None, "scope.broken", f"box:{box.id}", {"user": user.id})
        raise Failed(
            "the box that was found is not this user's: nothing was done",
            remedy="report this: the audit has it as scope.broken, with the box and the user",
        )
    if not is_here(parts, box):
        raise Unavailable(
            f"the box of {user.name} is on installation {box.installation}, and this is {parts.config.installation}",
            remedy="ask the server there: both work on the same database",
        )
    return box


def belongs(box: Box, user: User) -> bool:
    """Pure. A user or a tenant without an id is nobody, and nobody owns no box."""
    named = bool(user.id and user.tenant)
    return named and box.kind is BoxKind.HOME and (box.user, box.tenant) == (user.id, user.tenant)
