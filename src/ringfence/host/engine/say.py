"""Saying something to a thread: what is checked, in which order, before the store takes it; and who is told after.

A message that has been accepted is accepted: nothing that fails afterwards may fail it. What a message says is never
looked at here, and who says it comes from the actor alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Literal

from ringfence.host.engine.attachments import Attachments
from ringfence.host.engine.doors import Doors, no_thread
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.access import Action
from ringfence.host.kernel.errors import Conflict, Invalid, NotFound, Refused, TooLarge
from ringfence.host.kernel.names import check_thread_name
from ringfence.host.kernel.people import Actor, User
from ringfence.host.kernel.ports import Accepted
from ringfence.host.kernel.runs import Run
from ringfence.host.kernel.threads import MAX_MESSAGE_BYTES, Message, Thread

MAX_KEY = 200
# For telling the loop of a steer. A loop that is not told is given the message when it finishes, so this is only speed
# and a guest that does not answer is not worth the speaker's time.
TELL_SECONDS = 2.0

Mode = Literal["queue", "steer", "reject"]
Steered = Callable[[Run, Message], Awaitable[None]]


class Say:
    def __init__(
        self, parts: Parts, doors: Doors, wake: Callable[[], None], steered: Steered, attachments: Attachments
    ) -> None:
        """`wake`: there may be work to claim. `steered`: the message joined the turn of that run, and is durable."""
        self._parts, self._doors, self._wake = parts, doors, wake
        self._steered, self._attachments = steered, attachments
        self._log = logging.getLogger("ringfence.engine")

    async def say(
        self, actor: Actor, tenant: str, thread: str, text: str, mode: str, key: str | None, files: Sequence[str]
    ) -> Accepted:
        """As of Threads.say."""
        user = actor.user
        if user is None:
            raise Refused("an operator who acts for nobody has no box to work in", remedy="--as USER")
        checked_mode = check_mode(mode)
        check_text(text)
        if key is not None and not 1 <= len(key) <= MAX_KEY:
            raise Invalid(f"the key has {len(key)} characters", remedy=f"give 1 to {MAX_KEY}")
        found = await self._known(actor, user, tenant, thread)
        if key is not None and files and found is not None:  # the files of an earlier time need not be there any more
            earlier = await self._parts.store.turns.repeat(found.id, user.id, text, checked_mode, key, files)
            if earlier is not None:
                return earlier
        attached = await self._attachments.checked(user, files)  # before a thread is made that nobody speaks in
        if found is None:
            await self._make(user, thread)
        if found is None or files:  # somebody else may have made it meanwhile; it took a while to look at the files
            found, _ = await self._doors.thread(Action.THREAD_POST, actor, tenant, thread)
        accepted = await self._parts.store.turns.accept(found.id, user.id, text, checked_mode, key, attached)
        self._wake()
        if accepted.steered and not accepted.repeated:
            await self._tell(accepted)
        return accepted

    async def _known(self, actor: Actor, user: User, tenant: str, name: str) -> Thread | None:
        """The thread, or None when the actor may make it."""
        if user.tenant_name != tenant:
            raise no_thread(name)
        try:
            return (await self._doors.thread(Action.THREAD_POST, actor, tenant, name))[0]
        except NotFound:
            if await self._exists(user, name):
                raise
        check_thread_name(name)
        await self._doors.user(Action.THREAD_ADD, actor, user.tenant_name, user.name)
        return None

    async def _exists(self, user: User, name: str) -> bool:
        try:
            await self._parts.store.threads.get(user.tenant, name)
        except NotFound:
            return False
        return True

    async def _make(self, user: User, name: str) -> None:
        """Whoever made it, it is looked at like any other after this: then the audit names it too."""
        with suppress(Conflict):
            await self._parts.store.threads.add(user.tenant, name, [user.id], False)

    async def _tell(self, accepted: Accepted) -> None:
        try:
            async with asyncio.timeout(TELL_SECONDS):
                await self._steered(accepted.run, accepted.message)
        except TimeoutError:
            self._log.info("run %s was not told of a steer in %s s", accepted.run.id, TELL_SECONDS)
        except Exception:  # whatever it is: the message is accepted and is not lost
            self._log.exception("run %s was not told of a steer", accepted.run.id)


def check_mode(mode: str) -> Mode:
    match mode:
        case "queue" | "steer" | "reject":
            return mode
    raise Invalid(f"there is no mode {mode!r}", remedy="--mode queue, --mode steer or --mode reject")


def check_text(text: str) -> None:
    if not text.strip():
        raise Invalid("the message is empty", remedy="write some text")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise Invalid("the message is not valid Unicode text", remedy="send it as UTF-8") from None
    if size > MAX_MESSAGE_BYTES:
        raise TooLarge(
            f"the message has {size} bytes; the limit is {MAX_MESSAGE_BYTES}",
            remedy="put the text into a file of your box (ringfence files put) and name the file",
        )
