"""An actor that was made of one credential is refused over a connection that showed another, and so is an edited one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from ringfence.host.engine.homes import belongs
from ringfence.host.engine.seals import Seals
from ringfence.host.kernel.boxes import Box, BoxKind, Desired, Limits, Observed
from ringfence.host.kernel.errors import Unauthenticated
from ringfence.host.kernel.ids import BoxId, TenantId, UserId
from ringfence.host.kernel.people import Actor, Scope, User, UserKind

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def user(name: str) -> User:
    return User(UserId(f"usr_{name}"), TenantId("ten_1"), "default", name, UserKind.PERSON, None, False, NOW)


def seals() -> Seals:
    return Seals(lambda: "key" * 20)


async def shown(made: Seals, credential: str, actor: Actor) -> None:
    """As a request of its own task does it."""

    async def request() -> None:
        made.present(credential)
        made.check(actor)

    async with asyncio.TaskGroup() as group:
        await group.create_task(request())


async def made_of(seals: Seals, credential: str, actor: Actor) -> Actor:
    async def login() -> Actor:
        seals.present(credential)
        return seals.sealed(actor, credential)

    async with asyncio.TaskGroup() as group:
        return await group.create_task(login())


async def test_the_credential_that_it_was_made_of_is_good() -> None:
    made = seals()
    await shown(made, "token:a", await made_of(made, "token:a", Actor(user("alice"), False, "token:1")))


async def test_an_actor_of_another_connection_is_refused() -> None:
    made = seals()
    alice = await made_of(made, "token:a", Actor(user("alice"), False, "token:1"))
    with pytest.raises(ExceptionGroup) as raised:
        await shown(made, "token:b", alice)
    assert raised.group_contains(Unauthenticated)


@pytest.mark.parametrize(
    "edit",
    [
        {"user": user("alice")},
        {"user": None},
        {"user": replace(user("bob"), tenant=TenantId("ten_2"))},
        {"user": replace(user("bob"), owner=UserId("usr_alice"))},
        {"user": replace(user("bob"), kind=UserKind.AGENT)},
        {"user": replace(user("bob"), disabled=True)},
        {"operator": True},
        {"via": "token:9"},
        {"scopes": frozenset(Scope)},
        {"expires_at": NOW},
        {"impersonated": True},
        {"seal": b""},
    ],
    ids=lambda edit: next(iter(edit)),
)
async def test_an_edited_actor_is_refused(edit: dict[str, object]) -> None:
    made = seals()
    bob = await made_of(made, "token:b", Actor(user("bob"), False, "token:1"))
    with pytest.raises(ExceptionGroup) as raised:
        await shown(made, "token:b", replace(bob, **edit))  # type: ignore[arg-type]
    assert raised.group_contains(Unauthenticated)


async def test_a_task_without_a_connection_is_not_checked() -> None:
    seals().check(Actor(user("alice"), False, "token:1"))


def box(owner: User, **fields: object) -> Box:
    made = Box(
        id=BoxId("a" * 16), tenant=owner.tenant, user=owner.id, kind=BoxKind.HOME, driver="d", desired=Desired.STOPPED,
        observed=Observed.STOPPED, uid=1, identity=None, limits=Limits(), image="", generation=0, created_at=NOW,
        started_at=None, last_active_at=None,
    )  # fmt: skip
    return replace(made, **fields)  # type: ignore[arg-type]


def test_a_box_belongs_to_its_owner_alone() -> None:
    alice = user("alice")
    assert belongs(box(alice), alice)
    assert not belongs(box(user("bob")), alice)
    assert not belongs(box(alice, tenant=TenantId("ten_2")), alice)
    assert not belongs(box(alice, kind=BoxKind.SCRATCH), alice)


def test_nobody_owns_no_box() -> None:
    nobody = replace(user("x"), id=UserId(""))
    assert not belongs(box(nobody), nobody)
