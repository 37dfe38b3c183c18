"""What people and operators ask of a box's life: pause, resume, quarantine, release. Whoever may is decided here, and told in words."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from ringfence.host.engine.boxes import BoxKeeper, BoxView
from ringfence.host.engine.bringup import BringUp
from ringfence.host.engine.doors import Doors
from ringfence.host.engine.homes import home_of
from ringfence.host.engine.life.resting import Resting
from ringfence.host.engine.life.standing import Standing, check_drain
from ringfence.host.engine.live import LiveRuns
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.redrive import Redriver
from ringfence.host.kernel.access import Action
from ringfence.host.kernel.boxes import Box, Desired, Observed, Rest
from ringfence.host.kernel.errors import BoxLost, Failed, Invalid, NotFound, RingfenceError, Unavailable
from ringfence.host.kernel.images import HOST
from ringfence.host.kernel.life.drift import drift, is_known
from ringfence.host.kernel.life.logs import Source
from ringfence.host.kernel.life.states import State, Verb, check_quarantine, state_of, step
from ringfence.host.kernel.people import Actor, User

MAX_REASON = 500  # characters


class LifeVerbs:
    def __init__(
        self,
        parts: Parts,
        doors: Doors,
        bringup: BringUp,
        resting: Resting,
        keeper: BoxKeeper,
        live: LiveRuns,
        redriver: Redriver,
        standing: Standing,
        wake: Callable[[], None],
    ) -> None:
        """`wake`: there may be work to claim."""
        self._parts, self._doors, self._bringup, self._resting = parts, doors, bringup, resting
        self._keeper, self._live, self._redriver, self._standing = keeper, live, redriver, standing
        self._wake = wake
        self._log = logging.getLogger("ringfence.engine")

    async def pause(self, actor: Actor, tenant: str, user: str, *, force: bool = False) -> BoxView:
        """Idempotent. Conflict: it does not run, or a run is at work in it and it is not forced. Unavailable: this host cannot
        freeze."""
        target, box = await self._found(Action.BOX_PAUSE, actor, tenant, user, verb="pause", force=force)
        try:
            paused = await self._resting.pause(box.id, force=force)
        except Unavailable as error:
            remedy = error.remedy or "stop it: ringfence box stop U"
            raise Unavailable(error.message, remedy=remedy, **error.details) from error
        return await self._keeper.seen(actor, target, paused)

    async def resume(self, actor: Actor, tenant: str, user: str) -> BoxView:
        """Idempotent. Conflict: it is neither paused nor running; its next start makes the same box of it."""
        target, box = await self._found(Action.BOX_PAUSE, actor, tenant, user, verb="resume")
        step(box, Verb.RESUME)
        await self._bringup.ensure(box.id)
        self._wake()
        return await self._keeper.seen(actor, target, await self._parts.store.boxes.get(box.id))

    async def quarantine(self, actor: Actor, tenant: str, user: str, why: str) -> BoxView:
        """It stands still, or is stopped where the host cannot freeze; nothing of it runs, and its user may only look at it, until it
        is released. Its runs wait. Idempotent; another reason takes the place of the first. Conflict: from now on nothing begins in
        it, and what ran does so still, for something else is being done with it: to be asked again."""
        if not why.strip() or len(why) > MAX_REASON or not why.isprintable():
            raise Invalid("a quarantine has a reason", remedy=f"one line of at most {MAX_REASON} characters: --reason")
        box = await self._of(Action.BOX_QUARANTINE, actor, tenant, user, verb="quarantine", reason=why.strip())
        slot = self._bringup.slot(box.id)
        await self._parts.store.boxes.quarantine(
            box.id, why.strip()
        )  # first: whatever fails after it, nothing is started
        slot.quarantined = True
        self._parts.logs.tell(box.id, Source.LIFE, f"put into quarantine: {why.strip()}")
        for held in self._live.on(box.id):
            self._redriver.lost_soon(held, "quarantined", "its box was put into quarantine")
        await self._still(box)
        return await self._keeper.show(actor, tenant, user)

    async def release(self, actor: Actor, tenant: str, user: str) -> BoxView:
        """What was frozen stays paused, and is resumed by its next use. Idempotent."""
        box = await self._of(Action.BOX_QUARANTINE, actor, tenant, user, verb="release")
        await self._parts.store.boxes.quarantine(box.id, None)
        self._bringup.slot(box.id).quarantined = False
        self._parts.logs.tell(box.id, Source.LIFE, "released from quarantine")
        self._wake()
        return await self._keeper.show(actor, tenant, user)

    async def upgrade(
        self,
        actor: Actor,
        tenant: str,
        user: str,
        *,
        force: bool = False,
        drain: float = 0.0,
        image: str | None = None,
    ) -> tuple[BoxView, list[str]]:
        """(the box, what had drifted). Started anew with what a box is made of now, if that is something else than it has; one that
        does not run is so at its next start anyhow. Conflict: it is at work; `drain`: seconds to wait for the end of that. `image`:
        which it is to have from now on; None: what its image's name stands for now. Failed: it does not come up with that, and has
        what it had."""
        check_drain(drain)
        box = await self._of(Action.BOX_UPGRADE, actor, tenant, user, image=image or "", force=force, drain=drain)
        step(box, Verb.UPGRADE)
        self._parts.facts.update(await self._parts.driver.facts())
        choice = await self._bringup.images.chosen(box, image)
        async with self._bringup.slot(box.id).hold(
            "its image is being chosen"
        ):  # not while it is being started with another
            box = await self._parts.store.boxes.get(box.id)
            up = state_of(box) in (State.RUNNING, State.PAUSED)
            drifted = drift(replace(box, image_bound=choice[1]), self._parts.facts)
            if up and not is_known(box):
                drifted = ["start"]  # by a release that did not say what boxes are made of
            anew = up and bool(drifted)
            if not anew:
                await self._bringup.images.bind(box, choice)
        if anew:
            await self._anew(box, force, drain, choice)
        return await self._keeper.show(actor, tenant, user), drifted

    async def _anew(self, box: Box, force: bool, drain: float, choice: tuple[str, str]) -> None:
        async with self._standing.down(box, Verb.UPGRADE, force=force, drain=drain):
            await self._bringup.images.bind(box, choice)
        try:
            await self._bringup.ensure(box.id)
        except RingfenceError as error:
            if choice[1] == (box.image_bound or HOST) or not _of_image(error):
                raise
            raise await self._back(box, choice[1], error) from error

    async def _back(self, box: Box, image: str, error: RingfenceError) -> Failed:
        """Of a box that does not come up on `image`: it has again what it had, and goes on with that if it can."""
        before = box.image_bound or HOST
        self._log.warning("box %s does not come up on image %s and goes back to %s: %s", box.id, image, before, error)
        await self._bringup.images.bind(await self._parts.store.boxes.get(box.id), (box.image_wanted, before))
        says = f"the box does not come up on image {image}: {error.message}"
        try:
            await self._bringup.ensure(box.id)
        except RingfenceError as again:
            return Failed(
                f"{says}; it is bound to {before} again, and does not come up on that either: {again.message}",
                remedy=again.remedy or "ringfence box start USER",
            )
        return Failed(
            f"{says}; it goes on with {before}, as before", remedy=error.remedy or "ringfence image build NAME"
        )

    async def _still(self, box: Box) -> None:
        """By what the driver sees once nobody else has it under way: a start or resume that was begun before is over then."""
        slot = self._bringup.slot(box.id)
        async with slot.hold("it is put into quarantine"):
            try:
                sight = await self._parts.driver.observe(box.id)
            except NotFound:  # never provisioned
                return
            if sight.state is not Observed.RUNNING:
                if (
                    slot.link is not None and slot.link.alive
                ):  # it runs all the same: what says so was taken away by hand
                    await self._bringup.down_locked(slot, Desired.STOPPED)
                return
            if sight.frozen and slot.paused:
                await self._parts.store.boxes.update(
                    box.id, rest=Rest.PAUSED
                )  # also when it stood still for another reason
                return
            try:
                await self._resting.pause_locked(slot, force=True)
            except RingfenceError as error:  # whatever it is: it must not go on
                self._log.warning("box %s cannot stand still and is stopped: %s", box.id, error)
                await self._bringup.down_locked(slot, Desired.STOPPED)

    async def _of(self, action: Action, actor: Actor, tenant: str, user: str, **details: str | float) -> Box:
        return (await self._found(action, actor, tenant, user, **details))[1]

    async def _found(
        self, action: Action, actor: Actor, tenant: str, user: str, **details: str | float
    ) -> tuple[User, Box]:
        """`details`: of the audit row, so that it says which act it was; one permission is for several."""
        target = await self._doors.user(action, actor, tenant, user, details)
        box = await home_of(self._parts, target)
        check_quarantine(box, operator=actor.operator)
        return target, box


def _of_image(error: RingfenceError) -> bool:
    """Whether a start may have failed for the box's image: not for want of room, nor because something else has the box."""
    if isinstance(error, Unavailable) and not isinstance(error, BoxLost):
        return "image" in error.message
    return isinstance(error, Failed | BoxLost)
