"""The worker's way to the server: needs.Kernel over the control socket. Asks have numbers, a bound and a deadline.

What the server does not answer in time is a no. Must never wait for anything in the calls that say so, nor say a value of a
secret to anybody but the exchange that asked.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ringfence.host.egress.holding import Holding, Reason
from ringfence.host.egress.needs import Intent, Outcome, Traffic, Withheld
from ringfence.host.egress.packets import Malformed
from ringfence.host.egress.scrub import Sought
from ringfence.host.kernel.outward.ports import HoldAnswer, Lent
from ringfence.host.kernel.outward.rules import EgressRule
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.spelled import rule_to_json
from ringfence.host.kernel.outward.targets import LONGEST

SECONDS = 15.0  # the release lane takes 5 s at most, and the audit of an intent as long
MOST = 256  # unanswered asks: 128 connections with two each
_TRAFFIC = 100  # items of one packet: 100 of 700 bytes at most
_LONGEST = 512  # characters of a text that people are shown
_MAX_DETAILS = 8
Send = Callable[[Mapping[str, Any]], bool]
Answered = tuple[Mapping[str, Any], Sequence[int]]


class Hotline:
    """needs.Kernel. `send`: a packet; False when the server has gone."""

    def __init__(self, send: Send, holding: Holding, hold_seconds: float) -> None:
        self._send, self._holding, self._hold_seconds = send, holding, hold_seconds
        self._last = 0
        self._waiting: dict[int, asyncio.Future[Answered]] = {}

    async def secret(self, credential: str, binding: str, invocation: str, host: str, method: str, path: str) -> Secret:
        asked = {"credential": credential, "binding": binding, "invocation": invocation}
        where = {"host": host, "method": method, "path": path[:LONGEST]}
        reason = Reason(credential, binding, invocation)
        return await self._holding.get(reason, lambda: self._lent({"t": "secret", **asked, **where}))

    async def another(
        self, credential: str, binding: str, invocation: str, host: str, method: str, path: str, old: Secret
    ) -> Secret | None:
        asked = {"t": "secret", "credential": credential, "binding": binding, "invocation": invocation}
        where = {"host": host, "method": method, "path": path[:LONGEST]}
        reason = Reason(credential, binding, invocation)
        try:
            return await self._holding.another(
                reason, old, lambda version: self._lent({**asked, **where, "refused": version})
            )
        except Withheld:
            return None

    async def _lent(self, ask: dict[str, Any]) -> Lent:
        said, _ = await self._ask(ask)
        if "error" in said:
            raise Withheld(str(said["error"]))
        try:
            value, keep = Sought(base64.b64decode(said["value"], validate=True)), said["keep"]
            return Lent(value, int(said["version"]), None if keep is None else float(keep))
        except (KeyError, TypeError, ValueError, binascii.Error):
            raise Withheld("the server's answer is none") from None

    async def intent(self, intent: Intent) -> str:
        said, _ = await self._ask({"t": "intent", **asdict(intent), "path": intent.path[:LONGEST]})
        if said.get("ok") is not True:
            raise Withheld(str(said.get("why", "")))
        return str(said["row"])

    def outcome(self, row: str, outcome: Outcome) -> None:
        self._send({"t": "outcome", "row": row, **asdict(outcome), "error": outcome.error[:_LONGEST]})

    async def hold(self, invocation: str, rule: EgressRule, query: str = "") -> HoldAnswer:
        ask = {"t": "hold", "invocation": invocation, "rule": rule_to_json(rule), "query": _fit(query, _LONGEST)}
        try:
            said, _ = await self._ask(ask, self._hold_seconds)
        except Withheld:
            return "timeout"
        if said.get("ok") is True:
            return "allow"
        return "deny" if said.get("why") == "deny" else "timeout"

    async def gateway(self, invocation: str, digest: str) -> socket.socket:
        said, fds = await self._ask({"t": "model", "invocation": invocation, "digest": digest})
        if len(fds) == 1 and "error" not in said:
            return socket.socket(fileno=fds[0])
        _close(fds)
        configured = said.get("configured") is not False
        raise Withheld(str(said.get("error", "")), configured=configured, unknown=said.get("configured") is True)

    def traffic(self, items: Sequence[Traffic], dropped: int) -> None:
        for at in range(0, max(len(items), 1), _TRAFFIC):
            page = [_item(each) for each in items[at : at + _TRAFFIC]]
            if not self._send({"t": "traffic", "items": page, "dropped": dropped if at == 0 else 0}):
                return

    def finding(self, kind: str, invocation: str, details: Mapping[str, str]) -> None:
        shown = {name: _fit(text, _LONGEST) for name, text in list(details.items())[:_MAX_DETAILS]}
        self._send({"t": "finding", "kind": kind, "invocation": invocation, "details": shown})

    # --- the socket's side -----------------------------------------------------------------------------------------

    def answered(self, said: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Takes the descriptors over. Malformed, and they are the caller's: to nothing that can have been asked."""
        number = said.get("n")
        if type(number) is not int or not 0 < number <= self._last:
            raise Malformed("an answer to nothing")
        future = self._waiting.pop(number, None)
        if future is None or future.done():
            _close(fds)  # too late
        else:
            future.set_result((said, fds))

    def gone(self) -> None:
        """The server has: nobody waits any more."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(Withheld("the server has gone"))

    async def _ask(self, body: Mapping[str, Any], seconds: float = SECONDS) -> Answered:
        """Withheld: no answer."""
        if len(self._waiting) >= MOST:
            raise Withheld("too many questions to the server wait for an answer")
        self._last += 1
        number = self._last
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            if not self._send({**body, "n": number}):
                raise Withheld("the server has gone")
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            raise Withheld("the server did not answer in time") from None
        finally:
            self._waiting.pop(number, None)
            if future.done() and not future.cancelled() and future.exception() is None and _cancelled():
                _close(future.result()[1])


def _item(item: Traffic) -> dict[str, Any]:
    fitting = {"host": _fit(item.host, 255), "method": _fit(item.method, 32), "reason": _fit(item.reason, 64)}
    return asdict(item) | fitting


def _fit(text: str, most: int) -> str:
    """As the server takes it (hearing.py): some of it is what a box said."""
    return "".join(each if " " <= each <= "~" else "?" for each in text[:most])


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
