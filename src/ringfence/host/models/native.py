"""The native loop's call of a provider: kernel.ports.Model for one caller, over any of the three spellings.

Retried is what certainly was not carried out: a connection that never came to be, and an answer that says `later`.
From the first byte of an answer on nothing is: who watches has seen it. The provider's words are shown short and
without the key.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ringfence.host.kernel.errors import Failed, Refused, RingfenceError, Unavailable
from ringfence.host.kernel.models.granting import AROUND_TOOLS, Expected
from ringfence.host.kernel.models.ports import Caller
from ringfence.host.kernel.models.upstreams import Kind, Upstream
from ringfence.host.kernel.models.usage import Usage
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.ports import Model, ModelReply
from ringfence.host.models.budgets import Budgets, Hold
from ringfence.host.models.hiding import Hiding, hidden
from ringfence.host.models.meters import Meter
from ringfence.host.models.readiness import ready
from ringfence.host.models.reading import Reading, words_of
from ringfence.host.models.spellings import Spelling, limits_of, spelling_of
from ringfence.host.models.sse import Events
from ringfence.host.models.turns_out import ToolNames
from ringfence.host.models.upstream_answer import Answer, BrokeOff
from ringfence.host.models.upstream_client import ANTHROPIC_VERSION, UpstreamClient
from ringfence.host.models.upstream_pool import NotReached

_LATER = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_UNSPENT = frozenset({429, 503, 529})  # nothing was carried out
_TRIES = 3
_WAIT_SECONDS = 1.0  # then 2; a provider that says another time within the bound is believed
_LONGEST_WAIT = 10.0
_MAX_ERROR = 64 * 1024


class NativeModel:
    """kernel.ports.ModelFor: one upstream, for whoever asks."""

    def __init__(self, upstream: Upstream, client: UpstreamClient, budgets: Budgets) -> None:
        self._upstream, self._client, self._budgets = upstream, client, budgets

    @property
    def window(self) -> int:
        return self._upstream.window

    def of(self, caller: Caller) -> Model:
        return _Called(self._upstream, self._client, self._budgets, caller)


class _Called:
    """kernel.ports.Model. Exhausted besides: the budget is used up."""

    def __init__(self, upstream: Upstream, client: UpstreamClient, budgets: Budgets, caller: Caller) -> None:
        self._upstream, self._client, self._budgets, self._caller = upstream, client, budgets, caller
        self._spelling = spelling_of(upstream)

    @property
    def window(self) -> int:
        return self._upstream.window

    async def generate(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        on_delta: Callable[[str], None],
    ) -> ModelReply:
        names = ToolNames(tool["name"] for tool in tools)
        asked = await asyncio.to_thread(_text, self._spelling, self._upstream.model, messages, tools, names)
        expected = Expected(len(asked) + (AROUND_TOOLS if tools else 0), self._upstream.max_output)
        self._client.begin(self._upstream)
        key, hold = await ready(self._client.keys, self._budgets, self._caller, self._upstream, expected, "loop")
        answer = _Answer(self._spelling.reading(names), self._spelling.meter(), on_delta)
        outcome = "failed"
        try:
            await self._answered(asked, hold, key, answer)
            outcome = "done"
            reply = answer.reading.reply()
        except asyncio.CancelledError:
            outcome = "left"
            raise
        finally:
            used, whole = Usage(), outcome == "done"
            if answer.costs:
                unseen = hold.output if (self._upstream.hidden_reasoning or answer.meter.thought) and not whole else 0
                used = answer.meter.used(len(asked), hold.output, whole=whole, unseen=unseen)
            self._budgets.settle(hold, self._upstream, used, outcome)
        return replace(reply, usage=(used.taken, used.output))

    async def _answered(self, asked: bytes, hold: Hold, key: Secret | None, answer: _Answer) -> None:
        [limit] = limits_of(self._spelling, self._upstream)
        body = asked[:-1] + f',"{limit}":{hold.output}}}'.encode()
        for left in reversed(range(_TRIES)):
            try:
                await self._once(body, key, answer)
                return
            except _Later as later:
                if not left:
                    raise later.error from None
                await asyncio.sleep(later.seconds or _WAIT_SECONDS * 2 ** (_TRIES - 1 - left))
                key = await self._client.key(self._caller, self._upstream)  # revoked or another meanwhile

    async def _once(self, body: bytes, key: Secret | None, answer: _Answer) -> None:
        host, sent, refused = self._upstream.host, [body], False
        try:
            async with self._client.post(self._upstream, key, self._spelling.path, sent, self._headers()) as said:
                if said.status != 200:
                    refused = True
                    raise _refusal(said, hidden(await _beginning(said), key), host)
                await answer.read(said.pieces(), Hiding(key))
        except NotReached as error:
            raise _Later(Unavailable(f"{host} is not reached: {error}")) from None
        except BrokeOff as error:
            raise Unavailable(f"{host} broke off: {error}") from None
        finally:
            answer.costs = not sent and not refused
        if not answer.reading.ended:
            raise Unavailable(f"{host} broke off before the end of its answer")

    def _headers(self) -> dict[str, str]:
        if self._upstream.provider is Kind.ANTHROPIC:
            return {"accept": "text/event-stream", "anthropic-version": ANTHROPIC_VERSION}
        return {"accept": "text/event-stream"}


class _Answer:
    """Of one call, over its tries. `costs`: the last may have reached the provider, and was not refused."""

    def __init__(self, reading: Reading, meter: Meter, on_delta: Callable[[str], None]) -> None:
        self.reading, self.meter = reading, meter
        self.costs = False
        self._on_delta = on_delta
        self._events = Events()

    async def read(self, pieces: AsyncIterator[bytes], hiding: Hiding) -> None:
        async for piece in pieces:
            for event in self._events.take(hiding.take(piece)):
                if event.data is None:
                    continue
                self.meter.take(event.data)
                delta = self.reading.take(event.data)
                if delta:
                    self._on_delta(delta)


class _Later(Exception):
    """It was not carried out. `seconds`: when the provider wants to be asked again; 0: it does not say."""

    def __init__(self, error: RingfenceError, seconds: float = 0.0) -> None:
        super().__init__(str(error))
        self.error, self.seconds = error, seconds


def _text(
    spelling: Spelling,
    model: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    names: ToolNames,
) -> bytes:
    """JSON without the limit of the answer. In a thread: 16 MiB take 0.2 s."""
    asked = spelling.request(model, messages, tools, names)
    return json.dumps(asked, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


async def _beginning(answer: Answer) -> bytes:
    kept = b""
    async for piece in answer.pieces():
        kept += piece
        if len(kept) > _MAX_ERROR:
            break
    return kept[:_MAX_ERROR]


def _refusal(answer: Answer, body: bytes, host: str) -> Exception:
    """What the loop is told of an answer that is none."""
    status, words = answer.status, _words(body)
    if status in _UNSPENT and (seconds := _retry_after(answer)) <= _LONGEST_WAIT:
        return _Later(Unavailable(f"{host} answered {status}: {words}"), seconds)
    if status in _LATER:
        return Unavailable(f"{host} answered {status}: {words}")
    if status in (401, 403):
        return Refused(f"{host} answered {status}: {words}", remedy="ringfence secret set: the key of this upstream")
    if 300 <= status < 400:
        return Failed(f"{host} answered {status}: redirects are not followed", remedy="correct its base_url")
    return Failed(f"{host} answered {status}: {words}")


def _words(body: bytes) -> str:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return words_of(body.decode("utf-8", "replace")[:500])
    return words_of(said.get("error", said) if isinstance(said, dict) else said)


def _retry_after(answer: Answer) -> float:
    try:
        return max(0.0, float(answer.headers.get("retry-after", "0")))
    except ValueError:
        return _LONGEST_WAIT + 1
