"""The model gateway: an HTTP front that speaks as the providers do, for foreign clients in boxes.

    POST /model/openai/v1/chat/completions      POST /model/anthropic/v1/messages
    POST /model/openai/v1/responses             POST /model/anthropic/v1/messages/count_tokens
    GET  /model/openai/v1/models                GET  /model/anthropic/v1/models

Whose a connection is, the server knows before it is handed here: nothing in a request says so, and a credential in
one is not even looked at. A request goes to the upstream of its alias, under that one's key, once there is a
reservation for it. When the client leaves, or its command's way out is closed, the upstream is let go of at once; a
run that has ended begins no more. WebSockets are refused with 403, on which clients come by HTTP.
"""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from ringfence.host.kernel.errors import Exhausted, RingfenceError, Unavailable
from ringfence.host.kernel.models.ports import Caller
from ringfence.host.kernel.models.upstreams import Kind, Upstream
from ringfence.host.kernel.models.usage import Usage
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.models import asked as asking
from ringfence.host.models import spoken_errors
from ringfence.host.models.asked import MAX_BODY, Asked, Route, kind_of, route_of
from ringfence.host.models.budgets import Budgets, Hold
from ringfence.host.models.crowd import Crowd, Turn
from ringfence.host.models.fields import betas
from ringfence.host.models.framing import Request
from ringfence.host.models.front import Front, Left, TooLong
from ringfence.host.models.hiding import hidden
from ringfence.host.models.provider_keys import NoKey
from ringfence.host.models.readiness import ready
from ringfence.host.models.relay import Relay
from ringfence.host.models.spoken_errors import Wrong
from ringfence.host.models.upstream_answer import Answer, BrokeOff
from ringfence.host.models.upstream_client import ANTHROPIC_VERSION, UpstreamClient
from ringfence.host.models.upstream_pool import NotReached

_UNREAD = "the key of the model, or the record of its use, cannot be reached now: try again, then tell the operator"
_IN_PLACE = 128 * 1024  # bytes of a body that are read in 2 ms, on the event loop; more go to a thread
_MAX_ERROR = 64 * 1024
_LAST_SECONDS = 5.0  # for the end of a last answer to be taken
# Of the client's headers, what changes the answer and nothing else. Of the upstream's, what a client acts by; the
# rest is of an account that many share.
_UP = ("accept", "anthropic-version", "anthropic-beta", "openai-beta")
_BETAS = frozenset({"anthropic-beta", "openai-beta"})
_DOWN = (
    "content-type",
    "content-length",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    "request-id",
    "x-request-id",
)
_JSON = ("content-type", "application/json")


class Gateway:
    def __init__(self, upstreams: Sequence[Upstream], client: UpstreamClient, budgets: Budgets) -> None:
        self._upstreams = {each.alias: each for each in upstreams}
        self._client, self._budgets = client, budgets
        self._crowd = Crowd()
        self._log = logging.getLogger("ringfence.models")

    @property
    def aliases(self) -> list[str]:
        return sorted(self._upstreams)

    def facts(self) -> dict[str, Any]:
        """For screens."""
        return {"models": self.aliases, "connections": self._crowd.connections}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, who: Caller) -> None:
        """Until the client leaves. Closes the writer; raises nothing but CancelledError."""
        front = Front(reader, writer)
        try:
            with self._crowd.joined():
                await self._connection(front, who)
            writer.close()
            async with asyncio.timeout(_LAST_SECONDS):
                await writer.wait_closed()
        except (Left, OSError, TimeoutError):
            pass
        except Exception as error:  # its text may have what is secret: a header, a body
            self._log.error("a connection of the gateway was ended by %s", _where(error))
        finally:
            writer.transport.abort()

    async def _connection(self, front: Front, who: Caller) -> None:
        while (request := await front.request()) is not None:
            await self._request(front, request, who)
            if not front.again():
                return

    async def _request(self, front: Front, request: Request, who: Caller) -> None:
        path, headers = request.target.partition(b"?")[0].decode("ascii", "replace"), request.headers
        kind = kind_of(path)
        try:
            if "upgrade" in headers:
                raise Wrong(403, "not_supported", "the gateway speaks HTTP alone, no WebSocket")
            route = route_of(request.method, path)
            if route.spelling is None:
                await front.body(MAX_BODY)  # read to its end, the connection takes a next request
                await front.whole(200, [_JSON], _list(kind, list(self._upstreams.values())))
                return
            if int(headers.get("content-length", "0")) > MAX_BODY:  # framing.py, or h11, has seen that it is a number
                raise TooLong
            async with self._crowd.body(who.user) as turn:
                asked = await self._asked(front, route, turn)
                await self._exchange(front, asked, headers, who, turn)
        except TooLong:
            await self._wrong(front, kind, Wrong(413, "too_large", f"the body has more than {MAX_BODY} bytes"))
        except Wrong as wrong:
            await self._wrong(front, kind, wrong)
        except Exhausted as error:
            await self._wrong(front, kind, Wrong(429, "budget_exhausted", error.message))
        except NoKey as error:
            await self._wrong(front, kind, Wrong(503, "credential_unavailable", f"{error.message}: {error.remedy}"))
        except Unavailable as error:  # its text may have paths, addresses and statements of this host
            self._log.warning("box %s: a call of a model is not made: %s", who.box, error.message)
            await self._wrong(front, kind, Wrong(503, "credential_unavailable", _UNREAD))
        except RingfenceError as error:
            await self._wrong(front, kind, Wrong(403, error.code, error.message))

    async def _wrong(self, front: Front, kind: Kind, wrong: Wrong) -> None:
        if front.begun:
            raise Left(wrong.message)
        headers = [_JSON, ("x-egress-reason", wrong.code)]
        if not wrong.retry:
            headers.append(("x-should-retry", "false"))  # both providers' clients heed it
        if wrong.allow:
            headers.append(("allow", wrong.allow))
        await front.whole(wrong.status, headers, spoken_errors.body(kind, wrong))

    async def _asked(self, front: Front, route: Route, turn: Turn) -> Asked:
        raw = b"".join(await front.body(MAX_BODY))
        if len(raw) <= _IN_PLACE:
            turn.over()
            return asking.read(route, raw, self._upstreams)
        async with turn.large():
            return await asyncio.to_thread(asking.read, route, raw, self._upstreams)

    # --- one that goes out

    async def _exchange(self, front: Front, asked: Asked, headers: Mapping[str, str], who: Caller, turn: Turn) -> None:
        """Left: the client did."""
        if not await _until(front.gone(), self._sent(front, asked, headers, who, turn)):
            raise Left("the client has left")

    async def _sent(self, front: Front, asked: Asked, headers: Mapping[str, str], who: Caller, turn: Turn) -> None:
        hold: Hold | None = None
        self._client.begin(asked.upstream)
        if asked.route.counted:
            front_name = asked.route.kind.value
            key, hold = await ready(self._client.keys, self._budgets, who, asked.upstream, asked.expected, front_name)
        else:
            key = await self._client.key(who, asked.upstream)
        relay, path = Relay(asked, hold.output if hold is not None else 1 << 40, front, key), asked.route.path
        body: list[bytes] = []
        try:
            if hold is not None and asked.limit is not None and hold.output < min(asked.least, asked.limit):
                raise Exhausted("what is left of the budget is less than the model is to think")
            body = asked.body(hold.output if hold is not None else 0, bounded=self._budgets.limits.any)
            relay.costs = True
            up = _up(headers, asked)
            async with self._client.post(asked.upstream, key, path, body, up, turn.over) as answer:
                await self._answered(front, answer, relay, key)
        except (NotReached, BrokeOff) as error:
            self._log.info("%s is not reached, or broke off: %s", asked.upstream.host, error)
            raise Wrong(502, "upstream_failed", "the provider is not reached, or broke off", retry=True) from None
        except (asyncio.CancelledError, Left):
            relay.outcome = "left"
            raise
        finally:
            relay.costs = relay.costs and not body  # else it was not sent to its end
            if hold is not None:
                self._settle(hold, asked, relay)

    async def _answered(self, front: Front, answer: Answer, relay: Relay, key: Secret | None) -> None:
        if answer.status != 200:
            relay.costs = False
            await self._refused(front, answer, key)
            return
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise Wrong(502, "upstream_failed", "the provider answered compressed, unasked")
        await front.head(200, _down(answer, key))
        await relay.run(answer)

    async def _refused(self, front: Front, answer: Answer, key: Secret | None) -> None:
        """As the provider says it, but for our own key."""
        status = answer.status
        if status == 401:
            raise Wrong(502, "upstream_failed", "the provider does not accept the gateway's key: tell the operator")
        if status < 400:
            raise Wrong(502, "upstream_failed", f"the provider answered {status}; redirects are not followed")
        data = b""
        async for piece in answer.pieces():
            data += piece
            if len(data) > _MAX_ERROR:
                raise Wrong(502, "upstream_failed", f"the provider answered {status}, and more than anybody reads")
        headers = [each for each in _down(answer, key) if each[0] != "content-length"]
        await front.whole(status, headers, hidden(data, key))

    def _settle(self, hold: Hold, asked: Asked, relay: Relay) -> None:
        used, whole = Usage(), relay.outcome == "done"
        if relay.costs:
            used = relay.meter.used(asked.expected.input, hold.output, whole=whole, unseen=relay.unseen)
        self._budgets.settle(hold, asked.upstream, used, relay.outcome)


async def _until(end: Coroutine[Any, Any, None], work: Coroutine[Any, Any, None]) -> bool:
    """Whether `work` came to its end before `end` did; then it is cancelled. What it raises is raised. It runs in the task of the
    caller: a task for each, and a group around them, took a tenth of a call."""
    me, working, ended = asyncio.current_task(), True, False
    assert me is not None

    def over(ending: asyncio.Task[None]) -> None:
        nonlocal ended
        if working and not ending.cancelled():
            ended = True
            me.cancel()

    ending = asyncio.create_task(end)
    ending.add_done_callback(over)
    try:
        await work
    except asyncio.CancelledError:
        if not ended or me.cancelling() > 1:  # somebody else has cancelled us, too
            raise
        return False
    finally:
        working = False
        if ended:
            me.uncancel()
        ending.cancel()
        await asyncio.wait((ending,))  # it reads no more
    return True


def _up(headers: Mapping[str, str], asked: Asked) -> dict[str, str]:
    given = {name: headers[name] for name in _UP if name in headers}
    for name in _BETAS & given.keys():
        given[name] = betas(given[name], asked.upstream)
        if not given[name]:
            del given[name]
    if asked.route.kind is Kind.ANTHROPIC:
        given.setdefault("anthropic-version", ANTHROPIC_VERSION)
    return given


def _down(answer: Answer, key: Secret | None) -> list[tuple[str, str]]:
    found = ((name, answer.headers[name]) for name in _DOWN if name in answer.headers)
    return [(name, hidden(value.encode("latin-1"), key).decode("latin-1")) for name, value in found]


def _where(error: Exception) -> str:
    """Its type and place, and nothing of its text."""
    found = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} in {found[-1].name}, line {found[-1].lineno}" if found else type(error).__name__


def _list(kind: Kind, upstreams: Sequence[Upstream]) -> bytes:
    """The models, as the provider lists them."""
    names = sorted(each.alias for each in upstreams if each.provider is kind)
    if kind is Kind.ANTHROPIC:
        rows: list[dict[str, object]] = [
            {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"} for name in names
        ]
        ends: dict[str, object] = {"first_id": names[0] if names else None, "last_id": names[-1] if names else None}
        return json.dumps({"data": rows, "has_more": False, **ends}).encode()
    rows = [{"id": name, "object": "model", "created": 0, "owned_by": "ringfence"} for name in names]
    return json.dumps({"object": "list", "data": rows}).encode()
