"""Values that a worker keeps: asked once, forgotten in time, and never given on after a revocation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ringfence.host.egress.holding import IDLE, MOST, Holding, Reason
from ringfence.host.egress.needs import Withheld
from ringfence.host.kernel.outward.credentials import Binding
from ringfence.host.kernel.outward.ports import Lent
from ringfence.host.kernel.outward.secret import Secret

ONE = Reason("crd_1", "bnd_1", "inv_1")


class Server:
    def __init__(self) -> None:
        self.asked = 0
        self.keep: float | None = None
        self.refused: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> Lent:
        self.asked += 1
        asked = self.asked
        await self.gate.wait()
        return Lent(Secret(b"v%d" % asked), asked, self.keep)

    async def another(self, version: int) -> Lent:
        self.refused.append(version)
        return await self()


async def test_two_that_want_the_same_ask_once() -> None:
    server, holding = Server(), Holding(lambda: 0.0)
    server.gate.clear()
    both = [asyncio.ensure_future(holding.get(ONE, server)) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    server.gate.set()
    assert [value.reveal() for value in await asyncio.gather(*both)] == [b"v1", b"v1"]
    assert (await holding.get(ONE, server)).reveal() == b"v1" and server.asked == 1


async def test_revoked_ended_and_idle_are_asked_anew() -> None:
    now = [0.0]
    server, holding = Server(), Holding(lambda: now[0])
    forgets: list[Callable[[], None]] = [
        lambda: holding.revoke("crd_1"),
        lambda: holding.ended("inv_1"),
        holding.tidy,
    ]
    for forget in forgets:
        before = server.asked
        await holding.get(ONE, server)
        assert server.asked == before + 1
        now[0] += IDLE + 1
        forget()
        assert len(holding) == 0


async def test_what_was_used_is_not_idle_and_others_are_left_alone() -> None:
    now = [0.0]
    server, holding = Server(), Holding(lambda: now[0])
    await holding.get(ONE, server)
    now[0] = IDLE - 1
    await holding.get(ONE, server)
    now[0] = IDLE + 1
    holding.tidy()
    holding.revoke("crd_2")
    holding.ended("inv_2")
    assert len(holding) == 1


async def test_a_value_that_was_revoked_on_its_way_is_not_given() -> None:
    server, holding = Server(), Holding(lambda: 0.0)
    server.gate.clear()
    asked = asyncio.ensure_future(holding.get(ONE, server))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    holding.revoke("crd_1")
    server.gate.set()
    with pytest.raises(Withheld, match="taken back"):
        await asked
    assert len(holding) == 0


async def test_it_keeps_so_many_and_the_oldest_goes() -> None:
    now = [0.0]
    server, holding = Server(), Holding(lambda: now[0])
    for n in range(MOST + 1):
        now[0] = float(n)
        await holding.get(Reason("crd_1", "bnd_1", f"inv_{n}"), server)
    assert len(holding) == MOST
    before = server.asked
    await holding.get(Reason("crd_1", "bnd_1", f"inv_{MOST}"), server)
    assert server.asked == before
    await holding.get(Reason("crd_1", "bnd_1", "inv_0"), server)
    assert server.asked == before + 1


async def test_what_lands_after_its_command_is_neither_given_nor_kept() -> None:
    server, holding = Server(), Holding(lambda: 0.0)
    server.gate.clear()
    asked = asyncio.ensure_future(holding.get(ONE, server))
    await asyncio.sleep(0.01)
    holding.ended("inv_1")
    server.gate.set()
    with pytest.raises(Withheld):
        await asked
    assert len(holding) == 0


async def test_what_is_not_bound_any_more_is_forgotten() -> None:
    server, holding = Server(), Holding(lambda: 0.0)
    await holding.get(ONE, server)
    holding.bound([Binding("bnd_1", "crd_1", "api.test")])
    assert len(holding) == 1
    holding.bound([Binding("bnd_1", "crd_2", "api.test")])
    assert len(holding) == 0
    server.gate.clear()
    asked = asyncio.ensure_future(holding.get(ONE, server))
    await asyncio.sleep(0.01)
    holding.bound([])
    holding.bound([Binding("bnd_1", "crd_1", "api.test")])
    later = asyncio.ensure_future(holding.get(ONE, server))  # bound anew: a question of its own
    server.gate.set()
    with pytest.raises(Withheld):
        await asked
    assert (await later).reveal() == b"v3"


async def test_a_value_of_so_many_uses_is_asked_for_each_time() -> None:
    server, holding = Server(), Holding(lambda: 0.0)
    await holding.get(ONE, server)
    holding.bound([Binding("bnd_1", "crd_1", "api.test", uses=3)])
    await asyncio.gather(*(holding.get(ONE, server) for _ in range(3)))
    assert server.asked == 4 and len(holding) == 0


# --- access tokens ---------------------------------------------------------------------------------------------------


def renewing(now: list[float] | None = None) -> tuple[Server, Holding]:
    at = now if now is not None else [0.0]
    server = Server()
    server.keep = 60.0
    return server, Holding(lambda: at[0])


async def test_an_access_token_is_kept_for_as_long_as_the_server_says() -> None:
    now = [0.0]
    server, holding = renewing(now)
    for at, wanted in ((0.0, b"v1"), (59.9, b"v1"), (60.0, b"v2"), (119.0, b"v2"), (120.0, b"v3")):
        now[0] = at
        assert (await holding.get(ONE, server)).reveal() == wanted, at


async def test_another_in_place_of_one_that_was_refused() -> None:
    server, holding = renewing()
    other = Reason("crd_1", "bnd_1", "inv_2")
    old = await holding.get(ONE, server)
    fresh = await holding.another(ONE, old, server.another)
    assert fresh is not None and fresh.reveal() == b"v2" and server.refused == [1]
    assert (await holding.get(ONE, server)).reveal() == b"v2"
    again = await holding.another(ONE, old, server.another)
    assert again == fresh and server.refused == [1], "who comes later with the old one is given what is there"
    assert (await holding.get(other, server)).reveal() == b"v3"


async def test_all_who_hold_the_refused_one_ask_anew() -> None:
    server, holding = renewing()
    other = Reason("crd_1", "bnd_1", "inv_2")

    async def same() -> Lent:
        return Lent(Secret(b"v1"), 1, 60.0)

    old = await holding.get(ONE, same)
    await holding.get(other, same)
    await holding.another(ONE, old, server.another)
    assert (await holding.get(other, server)).reveal() == b"v2" and server.asked == 2


async def test_several_with_the_refused_one_ask_once() -> None:
    server, holding = renewing()
    old = await holding.get(ONE, server)
    server.gate.clear()
    asking = [asyncio.ensure_future(holding.another(ONE, old, server.another)) for _ in range(3)]
    await asyncio.sleep(0.01)
    server.gate.set()
    assert {value.reveal() for value in await asyncio.gather(*asking) if value is not None} == {b"v2"}
    assert server.refused == [1]


async def test_the_server_has_no_other() -> None:
    holding = Holding(lambda: 0.0)

    async def same(_: int = 0) -> Lent:
        return Lent(Secret(b"v1"), 1, 60.0)

    old = await holding.get(ONE, same)
    assert await holding.another(ONE, old, same) is None
    assert await holding.get(ONE, same) == old


async def test_of_what_is_one_value_no_other_is_asked_for() -> None:
    server, holding = renewing()
    server.keep = None
    old = await holding.get(ONE, server)
    assert await holding.another(ONE, old, server.another) is None
    assert await holding.another(Reason("crd_2", "bnd_2", "inv_1"), old, server.another) is None
    assert server.refused == [] and server.asked == 1


async def test_taken_back_while_another_is_on_its_way() -> None:
    server, holding = renewing()
    old = await holding.get(ONE, server)
    server.gate.clear()
    asking = asyncio.ensure_future(holding.another(ONE, old, server.another))
    await asyncio.sleep(0.01)
    holding.revoke("crd_1")
    server.gate.set()
    with pytest.raises(Withheld):
        await asking
    assert len(holding) == 0
