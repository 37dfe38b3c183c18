"""A command of a box that has said hello and whose way out is not open yet."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ringfence.host.engine import outward
from ringfence.host.engine.outward import Outward
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.boxes import Box, BoxKind
from ringfence.host.kernel.errors import Unavailable
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.ports import CommandSpec

BOX = BoxId("b" * 16)
SPEC = CommandSpec([b"true"], {}, "/", "null", "keep", None)


@dataclass
class Egress:
    """Opens when it is told to."""

    may: asyncio.Event = field(default_factory=asyncio.Event)
    is_open: bool = False

    async def open(self, *_: Any) -> None:
        await self.may.wait()
        self.is_open = True

    async def suspend(self, *_: Any) -> None:
        self.is_open = False

    async def close(self, *_: Any) -> None: ...
    async def begin(self, who: Any) -> Any:
        if not self.is_open:
            raise Unavailable("the way out is not open")
        environment: Mapping[str, str] = {"HTTPS_PROXY": "http://127.0.0.1:200"}
        return SimpleNamespace(environment=environment)

    def keep(self, *_: Any) -> None: ...
    def end(self, *_: Any) -> None: ...


def _made(egress: Egress) -> Outward:
    return Outward(cast(Parts, SimpleNamespace(egress=egress)))


def _box(kind: BoxKind = BoxKind.HOME) -> Box:
    return cast(Box, SimpleNamespace(id=BOX, kind=kind, tenant="tnt", user="usr"))


async def test_it_waits_until_the_box_is_open() -> None:
    egress = Egress()
    out = _made(egress)
    out.greeted(BOX, ())
    command = asyncio.create_task(out.equipped(BOX, "r/1", SPEC))
    opening = asyncio.create_task(out.opened(_box(), (), fresh=False))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not command.done()
    egress.may.set()
    assert (await command).env == {"HTTPS_PROXY": b"http://127.0.0.1:200"}
    await opening


async def test_it_waits_also_when_the_hello_comes_while_it_is_opened() -> None:
    """As at a first start: who dials, and who opens, at once."""
    egress = Egress()
    out = _made(egress)
    opening = asyncio.create_task(out.opened(_box(), (), fresh=False))
    await asyncio.sleep(0)
    out.greeted(BOX, ())
    command = asyncio.create_task(out.equipped(BOX, "x/1", SPEC))
    await asyncio.sleep(0)
    assert not command.done()
    egress.may.set()
    assert (await command).env == {"HTTPS_PROXY": b"http://127.0.0.1:200"}
    await opening


@pytest.mark.parametrize("fresh", [True, False])
async def test_a_box_without_one_keeps_nobody_whose_hello_comes_after(fresh: bool) -> None:
    """As at a first start of a run's box, and each time its wire is dialled again."""
    out = _made(Egress())
    await out.opened(_box(BoxKind.RUN), (), fresh=fresh)
    for _ in range(2):
        out.greeted(BOX, ())
        assert (await asyncio.wait_for(out.equipped(BOX, "r/1", SPEC), 5)).env == {}
    await out.closed(BOX)


async def test_a_box_that_has_none_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    out = _made(Egress())
    out.greeted(BOX, ())
    command = asyncio.create_task(out.equipped(BOX, "r/1", SPEC))
    await out.opened(_box(BoxKind.RUN), (), fresh=False)
    assert (await command).env == {}
    out.greeted(BOX, ())
    command = asyncio.create_task(out.equipped(BOX, "r/1", SPEC))
    await asyncio.sleep(0)
    await out.closed(BOX)
    assert (await command).env == {}
    out.greeted(BOX, ())
    monkeypatch.setattr(outward, "OPENED_SECONDS", 0.01)
    with pytest.raises(Unavailable, match="does not open"):
        await out.equipped(BOX, "r/1", SPEC)


@pytest.mark.parametrize("ends", ["opened", "closed"])
async def test_it_waits_while_its_box_stands_still(ends: str) -> None:
    egress = Egress()
    egress.may.set()
    out = _made(egress)
    await out.paused(BOX)  # it is not open yet: nothing is suspended, and nobody is to wait
    assert (await out.equipped(BOX, "r/0", SPEC)).env == {}
    await out.opened(_box(), (), fresh=False)
    await out.paused(BOX)
    assert not egress.is_open
    command = asyncio.create_task(out.equipped(BOX, "r/1", SPEC))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not command.done()
    if ends == "opened":
        await out.opened(_box(), (), fresh=False)
        assert (await command).env == {"HTTPS_PROXY": b"http://127.0.0.1:200"}
    else:
        await out.closed(BOX)
        assert (await command).env == {}
