"""A path on its way to the server and into its record: judged whole, recorded by its beginning and its digest."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from ringfence.host.egress import hearing
from ringfence.host.egress.evidence import recorded
from ringfence.host.egress.holding import Holding
from ringfence.host.egress.hotline import Hotline
from ringfence.host.egress.needs import Intent
from ringfence.host.egress.packets import Malformed
from ringfence.host.kernel.outward.credentials import Binding
from ringfence.host.kernel.outward.matching import compile_binding
from ringfence.host.kernel.outward.rules import Request
from ringfence.host.kernel.outward.targets import LONGEST

LONG = "/repos/" + "a/" * 4000 + "contents"


async def asked(path: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What a worker says for a secret and for an intent."""
    said: dict[str, Mapping[str, Any]] = {}

    def send(packet: Mapping[str, Any]) -> bool:
        said[packet["t"]] = packet
        return True

    hotline = Hotline(send, Holding(lambda: 0.0), 1.0)
    intent = Intent("inv_1", "crd_1", "bnd_1", "api.test", 443, "POST", path)
    asks = [
        asyncio.ensure_future(hotline.secret("crd_1", "bnd_1", "inv_1", "api.test", "POST", path)),
        asyncio.ensure_future(hotline.intent(intent)),
    ]
    await asyncio.sleep(0.01)
    hotline.gone()
    await asyncio.gather(*asks, return_exceptions=True)
    return said["secret"], said["intent"]


async def test_the_server_judges_the_whole_path() -> None:
    assert len(LONG) <= LONGEST
    cover = compile_binding(Binding("bnd_1", "crd_1", "api.test", paths=("/repos/**/contents",)))
    secret, intent = await asked(LONG)
    for heard in (hearing.secret(secret), hearing.intent(intent)[1]):
        assert heard.path == LONG
        assert cover.covers(Request(heard.host, 443, True, heard.method, heard.path))
        assert not cover.covers(Request(heard.host, 443, True, heard.method, heard.path[:512]))  # as it was told before


async def test_more_than_a_target_may_have_is_refused() -> None:
    secret, _ = await asked(LONG)
    with pytest.raises(Malformed):
        hearing.secret({**secret, "path": "/" * (LONGEST + 1)})


def test_a_long_one_is_recorded_short_and_apart_from_others() -> None:
    assert recorded("/a") == "/a"
    one, two = recorded(LONG), recorded(LONG + "x")
    assert one != two and one[:512] == LONG[:512] and len(one) < 600


async def test_what_a_box_said_is_told_without_controls() -> None:
    """The server takes no others: a worker that passed them on would be ended."""
    said: list[Mapping[str, Any]] = []

    def send(packet: Mapping[str, Any]) -> bool:
        said.append(packet)
        return True

    hotline = Hotline(send, Holding(lambda: 0.0), 1.0)
    hotline.finding("authority_mismatch", "inv_1", {"host": "a\x1b[2J\r\n\x00\x7f\u00e9.test"})
    [found] = [hearing.finding(each) for each in said]
    assert found.details == {"host": "a?[2J?????.test"}
    with pytest.raises(Malformed):
        hearing.finding({**said[0], "details": {"host": "a\n"}})


def test_which_access_token_was_refused() -> None:
    ask = {"t": "secret", "n": 1, "credential": "crd_1", "binding": "bnd_1", "invocation": "inv_1", "host": "api.test",
           "method": "GET", "path": "/"}  # fmt: skip
    assert (hearing.secret(ask).refused, hearing.secret({**ask, "refused": 7}).refused) == (0, 7)
    for wrong in (-1, "7", None, 1.0, True, 1 << 70):
        with pytest.raises(Malformed):
            hearing.secret({**ask, "refused": wrong})
