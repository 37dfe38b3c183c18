"""ports.Egress: the way out of every running home of this server.

Joins the store's rules, bindings and invocations, the vault and the driver's sockets and workers, one Outpost for each box.
Whose box it is comes from the engine, which has proven it. Must never give one user's rule, binding, CA or value to another
user's worker, nor hold a value longer than it takes to hand it on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ringfence.host.egress.attendant import Counters, Gateway
from ringfence.host.egress.chores import Chores
from ringfence.host.egress.configuration import Configuration
from ringfence.host.egress.following import Following
from ringfence.host.egress.given import Giving
from ringfence.host.egress.holds import OpenHolds
from ringfence.host.egress.ledger import Ledger
from ringfence.host.egress.outpost import Live, Outpost, facts
from ringfence.host.egress.site import Home, Site, configuration
from ringfence.host.egress.standins import Group, StandIns
from ringfence.host.kernel.errors import Conflict, Failed, RingfenceError, Unavailable
from ringfence.host.kernel.ids import BoxId, TenantId, UserId
from ringfence.host.kernel.outward.credentials import Binding
from ringfence.host.kernel.outward.ports import Authorities, Authority, Invocation, Invoker, Outlets, Releases
from ringfence.host.kernel.outward.rules import EgressRule
from ringfence.host.kernel.ports import Clock, Ids, Store

# A stand-in is worth nothing when its command ends; this is for one whose end nobody sees: the longest time-out of a command,
# and a day.
LIFE = timedelta(days=8)
_OPENING_SECONDS = 4.0  # of the ten in which a server ends; a box needs some milliseconds


@dataclass(frozen=True, slots=True)
class Sources:
    """What the way out is made of. `key`: of placeholders, 32 bytes, never in the database."""

    store: Store
    outlets: Outlets
    releases: Releases
    authorities: Authorities
    clock: Clock
    ids: Ids
    site: Site
    key: bytes = field(repr=False)
    gateway: Gateway | None = None


class WayOut:
    def __init__(self, sources: Sources) -> None:
        self._sources, store = sources, sources.store
        self._chores = Chores()
        self._holds = OpenHolds(
            store.egress_rules, store.audit, sources.clock, sources.ids, sources.site.bounds.hold, self._rules_added
        )
        self._counters = Counters(sources.releases, store.audit, self._holds, self._chores, sources.gateway)
        self._ledger = Ledger(store.invocations, self._chores)
        self._giving = Giving(sources.key, sources.releases, gateway=sources.gateway is not None)
        self._outposts: dict[BoxId, Outpost] = {}
        self._opening: dict[Outpost, asyncio.Event] = {}  # with what is set when it has opened, or failed
        self._stopped = False
        self._following = Following(
            store.rolls,
            store.audit,
            self._chores,
            sources.clock.monotonic,
            shared=store.shared,
            people=lambda tenant: {each.home.user for each in self._of(None) if each.home.tenant == tenant},
            reload=self.reload,
            revoke=self.revoke,
            cut=self._cut,
        )
        self._trusting: dict[BoxId, str] = {}  # the certificate that the box has
        self._log = logging.getLogger("ringfence.egress")

    @property
    def holds(self) -> OpenHolds:
        return self._holds

    @property
    def settings_rules(self) -> Sequence[EgressRule]:
        return self._sources.site.rules

    # --- boxes -------------------------------------------------------------------------------------------------------

    async def prepare(self, box: BoxId, tenant: TenantId, user: UserId) -> None:
        try:
            authority = await self._sources.authorities.authority(tenant, user)
        except (
            Unavailable,
            Failed,
        ) as error:  # a box whose user has no way out is of use; one that does not start is of none
            self._log.error("box %s starts without its user's CA: %s; %s", box, error.message, error.remedy)
            if isinstance(error, Failed):
                with suppress(RingfenceError):  # the log has it
                    await self._sources.store.audit.record(None, "egress.no_ca", f"user:{user}", {"why": error.message})
            return
        if self._trusting.get(box) != authority.certificate:
            await self._sources.outlets.trust(box, authority.certificate)
            self._trusting[box] = authority.certificate

    async def open(self, box: BoxId, tenant: TenantId, user: UserId, keys: Collection[str]) -> None:
        if (there := self._outposts.get(box)) is not None:
            if there.suspended:
                self.keep(box, keys)
                await there.resume()
            return
        await self._following.begin()
        store = self._sources.store
        outpost = Outpost(
            Home(box, tenant, user),
            self._sources.outlets,
            self._counters,
            self._sources.clock.monotonic,
            store.credentials.bindings,
            self._configuration,
            self._stand_ins,
            self._giving.model_digest,
        )
        over = self._opening[outpost] = asyncio.Event()  # before it reads: what changes meanwhile is told to it too
        try:
            _, rows = await asyncio.gather(outpost.reconfigure(), store.invocations.of_box(box))
            await self._opened(outpost, keys, rows)
        except BaseException:
            await outpost.close()
            raise
        finally:
            del self._opening[outpost]
            over.set()

    async def _opened(self, outpost: Outpost, keys: Collection[str], rows: Sequence[tuple[str, Invoker, int]]) -> None:
        home = outpost.home
        running = {name: (who, port) for name, who, port in rows if who.key in keys and who.user == home.user}
        had = set(await outpost.open([port for _, port in running.values()]))
        if self._stopped:
            raise Unavailable("the server is stopping", remedy="try again when it is back")
        for identifier, who, port in rows:
            self._ledger.known(identifier)
            if identifier in running and port in had:
                outpost.add(Live(identifier, who, port, outpost.given(identifier)))
            else:
                self._ledger.close(identifier)
        self._outposts[home.box] = outpost

    async def suspend(self, box: BoxId) -> None:
        if (outpost := self._outposts.get(box)) is not None:
            await outpost.suspend()

    async def close(self, box: BoxId) -> None:
        outpost = self._outposts.pop(box, None)
        if outpost is not None:
            for identifier in outpost.live:
                self._ledger.close(identifier)
            await outpost.close()

    # --- commands ----------------------------------------------------------------------------------------------------

    async def begin(self, who: Invoker) -> Invocation:
        outpost = self._outposts.get(who.box)
        if outpost is None or outpost.suspended or outpost.home.user != who.user:
            raise Unavailable(f"the way out of box {who.box} is not open", remedy="try again")
        found = next((each for each in outpost.live.values() if each.who.key == who.key), None)
        if found is None:
            listener = await outpost.sockets.take()
            identifier = self._sources.ids.new("inv")
            found = Live(identifier, who, listener.port, outpost.given(identifier))
            if self._outposts.get(who.box) is not outpost:
                raise Conflict("the box was stopped meanwhile", remedy="try again")
            outpost.add(found)
            self._ledger.open(identifier, who, listener.port)
        environment = await self._giving.environment(outpost.home, found, outpost.bindings.values())
        return Invocation(found.id, who, found.port, environment)

    def end(self, box: BoxId, key: str) -> None:
        outpost = self._outposts.get(box)
        if outpost is not None:
            self._end(outpost, [each.id for each in outpost.live.values() if each.who.key == key])

    def keep(self, box: BoxId, keys: Collection[str]) -> None:
        outpost = self._outposts.get(box)
        if outpost is not None:
            self._end(outpost, [each.id for each in outpost.live.values() if each.who.key not in keys])

    def _end(self, outpost: Outpost, over: Sequence[str]) -> None:
        for identifier in over:
            outpost.remove(identifier)
            self._ledger.close(identifier)

    # --- what changes ------------------------------------------------------------------------------------------------

    async def reload(self, users: Collection[UserId] | None) -> None:
        """All at once: one box whose bindings cannot be read, or whose worker says nothing, keeps no other from the change. It
        comes into force whether or not who asked for it stays."""
        await self._chores.through(_together([each.reconfigure() for each in self._of(users)]), "reload")

    async def revoke(self, credential: str) -> None:
        await self._chores.through(_together([each.revoke(credential) for each in self._of(None)]), "revocation")

    async def forget_authority(self, tenant: TenantId, user: UserId) -> None:
        await self._sources.authorities.forget(tenant, user)
        await self.reload([user])

    def facts(self, box: BoxId) -> Mapping[str, Any]:
        outpost = self._outposts.get(box)
        return facts(outpost, len(self._holds.of([outpost.home.user])) if outpost is not None else 0)

    async def stop(self) -> None:
        """What is being opened closes by itself, and is waited for."""
        self._stopped = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_OPENING_SECONDS):
                await asyncio.gather(*(each.wait() for each in self._opening.values()))
        await self._ledger.flush()
        outposts, self._outposts = self._outposts, {}
        await asyncio.gather(*(each.close() for each in outposts.values()), return_exceptions=True)
        await self._chores.close()

    def _cut(self, why: str) -> None:
        for outpost in self._of(None):
            outpost.cut(why)

    def _of(self, users: Collection[UserId] | None) -> list[Outpost]:
        there = (*self._outposts.values(), *self._opening)
        return [each for each in there if users is None or each.home.user in users]

    # --- what outposts ask -------------------------------------------------------------------------------------------

    async def _configuration(self, home: Home, bindings: Sequence[Binding]) -> Configuration:
        sources = self._sources
        rules = await sources.store.egress_rules.of(home.tenant, home.user)
        gateway = sources.gateway is not None
        return configuration(sources.site, home, rules, bindings, await self._authority(home), gateway=gateway)

    async def _authority(self, home: Home) -> Authority | None:
        """None: it cannot be read now. What needs none of it goes on, and the rest is told why."""
        try:
            return await self._sources.authorities.authority(home.tenant, home.user)
        except (Unavailable, Failed) as error:
            self._log.warning("box %s goes on without its user's CA: %s", home.box, error.message)
            return None

    def _stand_ins(self, identifier: str, groups: Sequence[Group]) -> StandIns:
        expires = (self._sources.clock.now() + LIFE).timestamp()
        return self._giving.stand_ins(identifier, groups, expires)

    async def _rules_added(self, user: UserId) -> None:
        try:
            await self.reload([user])
        except RingfenceError as error:
            self._log.warning("rules of %s are not in force yet: %s", user, error.message)


async def _together(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """The first error, when all have ended."""
    for said in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(said, BaseException):
            raise said
