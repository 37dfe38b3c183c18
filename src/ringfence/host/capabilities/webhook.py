"""`http.webhook`: a signed POST to a place that the operator has declared, once, with a look-up by key.

    POST url          Idempotency-Key: s/<run>/<step>/<call>; body: the argument `body` as JSON
    GET lookup_url    ?key=s/<run>/<step>/<call>; answered {"state": "done" | "not_done" | "unknown"}
    both              Ringfence-Timestamp: seconds since 1970
                      Ringfence-Signature: v1=<hex HMAC-SHA256 of "<timestamp>.<body>", for the look-up "<timestamp>.<key>">

A receiver does a key once, however often it arrives. 2xx is done; 4xx is not done, but for 408, 409 and 425, which may hide
a try under way; a connection that never came to be is not done; all else is in doubt, and the look-up decides. An answer to
the look-up that is none of the three is unknown. 401 and 403 are not done and say more: the receiver does not take our key.
The key is read before each call, so that it can be made or renewed while the server runs. Redirects are not followed. The secret is
in no log, event, gate, error or result, and neither are path and query of a URL or the path of a key.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2

from ringfence.host.kernel.canonical import canonical_json, sha256_json
from ringfence.host.kernel.capabilities import Capability, Need, Sealed, Sending, Sent
from ringfence.host.kernel.declared import Webhook
from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.gates import GateKind
from ringfence.host.kernel.key_files import MISSING
from ringfence.host.kernel.matchable import WEBHOOK
from ringfence.host.kernel.ports import Clock
from ringfence.host.kernel.runs import Effect, Evidence

CONNECT_SECONDS = 5.0
SEND_SECONDS = 15.0  # as a whole: a receiver that needs longer is asked by key
LOOK_UP_SECONDS = 5.0
MAX_ANSWER = 16 * 1024  # bytes of an answer that are kept; more are not read
MAX_STATE = 1024  # of a look-up's
_MAYBE = frozenset({408, 409, 425})
_LATER = frozenset({429})  # not done, and may be tried again
_TURNED_AWAY = frozenset({401, 403})  # not done: who we are was not believed, or may not
_CHATTY = ("httpx2", "httpcore2")  # they log each URL with its query
_SET_UP = (
    "on the server, put the key into that file, readable for the server's account alone (chmod 600); then say done"
)
_MAKE = (
    "on the server, make that file (`ringfence doctor` says which) and put the key that the receiver knows into it, for the "
    "server's account (mode 0600, or 0640 with its group); then say done"
)
_RENEW = (
    "allow our key at the receiver, or put the one that it accepts into the secret_file of the webhook; then say done"
)
STATES = {"done": Evidence.DONE, "not_done": Evidence.NOT_DONE, "unknown": Evidence.UNKNOWN}


@dataclass(frozen=True, slots=True)
class Place:
    """A declared webhook with its key."""

    declared: Webhook
    secret: bytes = field(repr=False)  # empty: its file is not there yet, and nothing is signed

    @property
    def digest(self) -> str:
        """Another one when address, look-up or key is."""
        one = self.declared
        key = hmac.new(self.secret, b"what signs", hashlib.sha256).hexdigest()
        return sha256_json([one.name, one.url, one.lookup_url, key])

    @property
    def address(self) -> str:
        """The same when only the key is another one."""
        return sha256_json([self.declared.name, self.declared.url, self.declared.lookup_url])


Read = Callable[[str], tuple[bytes, str]]  # keys.secret_in: of a path; in a thread


class WebhookTool:
    """kernel.capabilities.Tool. To be closed."""

    def __init__(self, places: Sequence[Place], clock: Clock, read: Read | None = None) -> None:
        """`read`: None: the keys stay those that the places were made with. Invalid: a URL that the client cannot reach."""
        for place in places:
            check_reachable(place.declared)
        self._places = {place.declared.name: place for place in places}
        self._clock, self._read = clock, read
        self._log = logging.getLogger("ringfence.capabilities")
        self._client: httpx2.AsyncClient | None = None

    @property
    def capability(self) -> Capability:
        names = sorted(self._places)
        return Capability(
            name=WEBHOOK,
            effect=Effect.ONCE,
            summary=f"Sends JSON to a place outside that the operator has declared: {', '.join(names)}. Done once.",
            schema={
                "type": "object",
                "properties": {
                    "name": {"type": "string", "enum": names, "description": "The place."},
                    "body": {"type": "object", "description": "What is sent, as JSON."},
                },
                "required": ["name", "body"],
                "additionalProperties": False,
            },
            lookup=True,
        )

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def wrong(self, arguments: Mapping[str, Any]) -> str:
        if set(arguments) != {"name", "body"}:
            return f"{WEBHOOK} takes name and body, and nothing else"
        name = arguments["name"]
        if not isinstance(name, str) or name not in self._places:
            return f"no such place is declared; there are: {', '.join(sorted(self._places))}"
        return "" if isinstance(arguments["body"], dict) else "body must be a JSON object"

    def sealed(self, arguments: Mapping[str, Any]) -> Sealed:
        place = self._places[arguments["name"]]
        shown = {"method": "POST", "to": shown_host(place.declared.url), "place": place.declared.name}
        return Sealed(place.digest, shown, place.address)

    async def lacks(self, arguments: Mapping[str, Any]) -> Need | None:
        """A key that is gone, or no key: the one of before is not used any more. A new one is from now on."""
        if self._read is None:
            return None
        place = self._places[arguments["name"]]
        secret, wrong = await asyncio.to_thread(self._read, place.declared.secret_file)
        if wrong:
            self._log.warning("webhook %s: %s %s", place.declared.name, place.declared.secret_file, wrong)
            mend = _MAKE if wrong == MISSING else _SET_UP
            return Need(GateKind.SETUP, f"the secret_file of webhook {place.declared.name} {wrong}", mend)
        self._places[place.declared.name] = replace(place, secret=secret)
        return None

    async def send(self, sending: Sending) -> Sent:
        place = self._places[sending.arguments["name"]]
        if not place.secret:
            return Sent(Evidence.NOT_DONE, {"error": "nothing was sent: there is no key to sign it"}, retry=True)
        body = canonical_json(sending.arguments["body"])
        headers = {
            **self._signature(place, body),
            "Content-Type": "application/json",
            "Idempotency-Key": sending.key,
        }
        try:
            async with asyncio.timeout(SEND_SECONDS):
                status, answer, cut = await self._exchange("POST", place.declared.url, headers, body, MAX_ANSWER)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            return Sent(Evidence.NOT_DONE, {"error": f"nobody was reached: {type(error).__name__}"}, retry=True)
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
            return Sent(Evidence.UNKNOWN, {"error": f"there was no answer: {type(error).__name__}"})
        told = {"status": status, "body": answer.decode("utf-8", "replace"), "cut": cut}
        need = turned_away(place.declared.name, status) if status in _TURNED_AWAY else None
        return Sent(judged(status), told, retry=status in _LATER, need=need)

    async def look_up(self, sending: Sending) -> Sent:
        if not self._places[sending.arguments["name"]].secret:
            await self.lacks(sending.arguments)
        place = self._places[sending.arguments["name"]]
        if not place.secret:
            return Sent(Evidence.UNKNOWN, {"error": "the look-up was not sent: there is no key to sign it"})
        base = place.declared.lookup_url
        url = f"{base}{'&' if urlsplit(base).query else '?'}key={quote(sending.key, safe='')}"
        try:
            async with asyncio.timeout(LOOK_UP_SECONDS):
                headers = self._signature(place, sending.key.encode())
                status, answer, _ = await self._exchange("GET", url, headers, b"", MAX_STATE)
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
            return Sent(Evidence.UNKNOWN, {"error": f"the look-up had no answer: {type(error).__name__}"})
        evidence = state_of(status, answer)
        return Sent(evidence, {"looked_up": evidence.value}, retry=evidence is Evidence.NOT_DONE)

    def _signature(self, place: Place, signed: bytes) -> dict[str, str]:
        at = str(int(self._clock.now().timestamp()))
        return {"Ringfence-Timestamp": at, "Ringfence-Signature": signature(place.secret, at, signed)}

    async def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, most: int
    ) -> tuple[int, bytes, bool]:
        """(status, at most `most` bytes of the answer, whether there were more)."""
        kept = b""
        async with self._http().stream(method, url, headers=dict(headers), content=body or None) as response:
            async for chunk in response.aiter_bytes():
                kept += chunk
                if len(kept) > most:
                    break
            return response.status_code, kept[:most], len(kept) > most

    def _http(self) -> httpx2.AsyncClient:
        if self._client is None:
            for chatty in _CHATTY:
                logging.getLogger(chatty).setLevel(logging.WARNING)
            self._client = httpx2.AsyncClient(
                timeout=httpx2.Timeout(SEND_SECONDS, connect=CONNECT_SECONDS),
                limits=httpx2.Limits(max_connections=16),
                follow_redirects=False,
                trust_env=False,
                headers={"User-Agent": "ringfence", "Accept-Encoding": "identity"},
            )
        return self._client


def check_reachable(declared: Webhook) -> None:
    """By the client's own parser, which is stricter than that of the settings. Invalid."""
    for what, url in (("url", declared.url), ("lookup_url", declared.lookup_url)):
        try:
            httpx2.URL(url)
        except httpx2.InvalidURL as error:
            raise Invalid(
                f"webhook {declared.name}: {what} is none that can be called: {error}",
                remedy=f"correct {what} in ringfence.toml",
            ) from None


def shown_host(url: str) -> str:
    """`https://host:port`: the path of a webhook is often what it is known by, and so a secret. Who answers a gate sees the
    place's name and host; the seal covers the whole address."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def signature(secret: bytes, timestamp: str, signed: bytes) -> str:
    """The value of Ringfence-Signature."""
    return "v1=" + hmac.new(secret, timestamp.encode() + b"." + signed, hashlib.sha256).hexdigest()


def turned_away(name: str, status: int) -> Need:
    return Need(GateKind.AUTH, f"the receiver of webhook {name} answered {status}: it does not accept our key", _RENEW)


def judged(status: int) -> Evidence:
    """What the answer to a POST is evidence of."""
    if 200 <= status < 300:
        return Evidence.DONE
    return Evidence.NOT_DONE if 400 <= status < 500 and status not in _MAYBE else Evidence.UNKNOWN


def state_of(status: int, answer: bytes) -> Evidence:
    """Of a look-up: anything but one of the three words, said with 200, is unknown."""
    if status != 200:
        return Evidence.UNKNOWN
    try:
        said = json.loads(answer)
    except (ValueError, RecursionError):
        return Evidence.UNKNOWN
    state = said.get("state") if isinstance(said, dict) else None
    return STATES.get(state, Evidence.UNKNOWN) if isinstance(state, str) else Evidence.UNKNOWN
