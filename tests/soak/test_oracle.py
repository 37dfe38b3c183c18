"""The worker's HTTP beside another proxy's: the same conversations from seeds, to the same servers, what arrives and what comes back.

`make soak` only. RINGFENCE_SOAK_SEED, printed, begins it where a finding was made.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ringfence.host.egress import fields, head
from tests.soak.client import converse
from tests.soak.comparing import Side, Tally, differences
from tests.soak.conversations import Conversation, made
from tests.soak.mitmdump import Mitmdump, mitmdump
from tests.soak.speaking_upstream import SpeakingUpstream
from tests.support.egress_rig import EXPLICIT, TRANSPARENT, Rig, rig, rule
from tests.support.egress_tls import Authority
from tests.support.soaking import SEED, share

pytestmark = pytest.mark.soak
SECONDS = 1200
SHOWN = 5  # findings of one run


@dataclass
class Servers:
    tls: SpeakingUpstream
    plain: SpeakingUpstream

    def of(self, talk: Conversation) -> SpeakingUpstream:
        return self.plain if talk.way == "plain" else self.tls


@dataclass
class Pair:
    """Both proxies, each with servers of its own."""

    way: Rig
    other: Mitmdump
    behind_ours: Servers
    behind_theirs: Servers
    trusts: tuple[ssl.SSLContext, ssl.SSLContext]

    async def compared(self, seed: int, tally: Tally) -> list[str]:
        talk = made(seed)
        ours_port = self.way.ports[TRANSPARENT if talk.way == "transparent" else EXPLICIT]
        theirs_port = self.other.transparent if talk.way == "transparent" else self.other.explicit
        sides = await asyncio.gather(
            _side(talk, ours_port, self.trusts[0], self.behind_ours.of(talk)),
            _side(talk, theirs_port, self.trusts[1], self.behind_theirs.of(talk)),
        )
        return [f"seed {seed}: {each}" for each in differences(talk, *sides, tally)]


async def _side(talk: Conversation, port: int, trust: ssl.SSLContext, server: SpeakingUpstream) -> Side:
    server.forget()
    got = await converse(talk, port, trust, elaborate=server.elaborate)
    return Side(list(server.seen), list(server.frames), got)


@asynccontextmanager
async def servers(ca: Authority, *, elaborate: bool) -> AsyncIterator[Servers]:
    both = Servers(SpeakingUpstream(elaborate=elaborate), SpeakingUpstream(elaborate=elaborate))
    await both.tls.start(ca.context("api.test"))
    await both.plain.start(None)
    try:
        yield both
    finally:
        await both.tls.stop()
        await both.plain.stop()


@asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[Pair]:
    rules = (rule(ports=(80, 443), plain=True, websocket=True),)
    async with AsyncExitStack() as stack:
        way = await stack.enter_async_context(rig(folder, rules=rules))
        ours = await stack.enter_async_context(servers(way.upstream_ca, elaborate=True))
        # Theirs takes any 1xx for the answer, and knows no trailers: its client waits for ever.
        theirs = await stack.enter_async_context(servers(way.upstream_ca, elaborate=False))
        way.dialler.table = {("api.test", 443): ours.tls.port, ("api.test", 80): ours.plain.port}
        way.configure()
        away = folder / "mitmdump"
        away.mkdir()
        other = await stack.enter_async_context(mitmdump(away, tls=theirs.tls.port, plain=theirs.plain.port))
        theirs_trust = ssl.create_default_context(cafile=str(other.ca))
        yield Pair(way, other, ours, theirs, (way.user_ca.trusting(), theirs_trust))


async def test_conversations_from_seeds(tmp_path: Path) -> None:
    until, seed, tally = time.monotonic() + share(SECONDS), SEED, Tally()
    found: list[str] = []
    async with pair(tmp_path) as both:
        while (time.monotonic() < until or seed < SEED + 20) and len(found) < SHOWN:
            found += await both.compared(seed, tally)
            seed += 1
    print(f"seeds {SEED} to {seed - 1}: {tally.counts}")
    assert not found, "\n".join(found)


def _without(
    name: bytes, function: Callable[..., list[tuple[bytes, bytes]]]
) -> Callable[..., list[tuple[bytes, bytes]]]:
    return lambda *words, **options: fields.without(function(*words, **options), name)


CONTROLS: dict[str, tuple[object, str, object]] = {
    "both framings are taken": (head, "_framing", lambda *_: None),
    "a field of a request is lost": (fields, "outgoing", _without(b"cookie", fields.outgoing)),
    "a field of an answer is lost": (fields, "incoming", _without(b"set-cookie", fields.incoming)),
}


@pytest.mark.parametrize("control", CONTROLS)
async def test_control_a_worker_that_is_broken_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, control: str
) -> None:
    monkeypatch.setattr(*CONTROLS[control])
    async with pair(tmp_path) as both:
        for seed in range(1, 400):
            if await both.compared(seed, Tally()):
                return
    raise AssertionError(f"{control}, and nothing differs")
