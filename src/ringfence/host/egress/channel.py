"""The server's end of one worker: what it is told, and what it confirms. What it asks goes to `asked`.

Must never believe more of a worker than that it lives: what breaks a rule of the socket ends it, and `closed` says why.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, TypeVar

from ringfence.host.egress import configured, hearing
from ringfence.host.egress.bucket import Bucket
from ringfence.host.egress.configuration import Configuration
from ringfence.host.egress.control import VERSION
from ringfence.host.egress.packets import MAX_WAITING, Malformed, Packets
from ringfence.host.kernel.errors import Unavailable
from ringfence.host.kernel.outward.listeners import Listener

READY_SECONDS = 15.0
CONFIRM_SECONDS = 5.0
# Packets of a busy, honest worker, each as one token and one for each KiB: 200 requests a second with a secret that is asked for
# each time (of which 40 are given one: outpost.ROWS_SECOND), 20 recorded writes a second with two packets each, and 300 kinds of traffic in four packets of 30 KiB. A path of 8 KiB
# in each of them is 9 tokens more for each request.
_A_SECOND, _BURST = 2000.0, 8000.0
Result = TypeVar("Result")
Asked = Callable[[str, Mapping[str, Any]], None]


class Channel:
    """Takes `fd` over. `asked`: a packet's kind and the packet; Malformed from it ends the worker. `busy`: whether it is still to be
    answered."""

    def __init__(self, fd: int, asked: Asked, busy: Callable[[], bool] = lambda: False) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked, self._busy = asked, busy
        self._began, self._idle_ends, self._may_rest = self._loop.time(), inf, False
        self.rested: tuple[tuple[str, str], ...] | None = None  # names; it has ended because it had nothing to do
        self._seq = self._number = 0
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._confirmed: dict[tuple[str, int], asyncio.Future[str]] = {}
        self._tokens = Bucket(_A_SECOND, _BURST, self._loop.time)
        self.configured = False
        self._packets = Packets(socket.socket(fileno=fd), self._heard, weighed=self._pay)
        self._packets.closed.add_done_callback(self._ended)

    @property
    def closed(self) -> asyncio.Future[str]:
        """Resolves with the reason."""
        return self._packets.closed

    @property
    def alive(self) -> bool:
        return not self.closed.done()

    def close(self, why: str) -> None:
        """The worker ends by that."""
        self._packets.close(why)

    async def ready(self) -> None:
        """Unavailable."""
        await self._within(self._ready, READY_SECONDS, "the egress worker does not come up")

    async def configure(self, configuration: Configuration) -> None:
        """In force when it returns. Unavailable: it is not, and the worker has been ended."""
        self._seq += 1
        self._idle_ends = configuration.bounds.idle_ends
        texts = configured.parts(configured.as_text(configuration))
        future = self._expect("seq", self._seq)
        for part, text in enumerate(texts):
            body = {"t": "configure", "seq": self._seq, "part": part, "parts": len(texts), "text": text}
            self._packets.send(body)
        why = await self._within(future, CONFIRM_SECONDS, "the egress worker does not confirm its configuration")
        if why:
            self.close("it refused its configuration")
            raise Unavailable(f"the egress worker refused its configuration: {why}", remedy="ringfence egress lint")
        self.configured = True

    async def revoke(self, credential: str) -> None:
        """The worker has no value of it when this returns; a worker that does not say so has been ended."""
        self._number += 1
        future = self._expect("n", self._number)
        self._packets.send({"t": "revoke", "credential": credential, "n": self._number})
        await self._within(future, CONFIRM_SECONDS, "the egress worker does not confirm a revocation")

    def names(self, items: Sequence[tuple[str, str]]) -> None:
        """Of a worker that rested."""
        self._packets.send({"t": "names", "items": items})

    def listen(self, listener: Listener, invocation: str = "") -> None:
        """Gives it a copy of the socket. Unavailable: the server has no descriptor left."""
        body = {"t": "listen", "kind": listener.kind, "port": listener.port, "invocation": invocation}
        try:
            copy = os.dup(listener.fd)
        except OSError as error:
            raise Unavailable(f"no descriptor is left: {error.strerror}", remedy="ringfence status") from error
        self._packets.send(body, [copy])

    def unlisten(self, port: int) -> None:
        self._packets.send({"t": "unlisten", "port": port})

    def tickets(self, invocation: str, items: Sequence[Mapping[str, Any]], *, ended: bool = False) -> None:
        """A command may have none and go on: what is injected has no stand-in."""
        self._packets.send({"t": "tickets", "invocation": invocation, "items": list(items), "ended": ended})

    def say(self, body: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """An answer: who asks and does not read is ended. Descriptors are taken over."""
        self._packets.send(body, fds, most=MAX_WAITING)

    async def end(self, seconds: float) -> None:
        """Tells it to finish; ended when this returns."""
        self._packets.send({"t": "end"})
        await asyncio.wait([asyncio.shield(self.closed)], timeout=seconds)
        self.close("it was told to end")

    # --- in ----------------------------------------------------------------------------------------------------------

    def _heard(self, said: Mapping[str, Any], fds: Sequence[int]) -> None:
        match kind := said.get("t"):
            case "ready":
                hearing.only(said, "version")
                if hearing.number(said, "version") != VERSION:
                    raise Malformed("a worker of another version")
                if not self._ready.done():
                    self._ready.set_result(None)
            case "done":
                name = "seq" if "seq" in said else "n"
                hearing.only(said, name)
                self._confirm(name, hearing.number(said, name), "")
            case "refused":
                hearing.only(said, "seq", "why")
                self._confirm("seq", hearing.number(said, "seq"), hearing.text(said, "why") or "?")
            case "idle":
                hearing.only(said)
                if not self._busy():
                    self._may_rest = True
                    self._packets.send({"t": "rest"})
            case "rested":
                self._rest(hearing.rested(said))
            case "ending":
                hearing.only(said, "why")
                self.close(f"it says: {hearing.text(said, 'why', 200)}")
            case str():
                self._asked(kind, said)
            case _:
                raise Malformed("a packet without a kind")

    def _rest(self, names: tuple[tuple[str, str], ...]) -> None:
        """One that ends sooner is a crash: the next one would be begun at once, again and again."""
        if not self._may_rest or self._loop.time() - self._began < self._idle_ends:
            raise Malformed("it rests before it may")
        self.rested = names
        self.close("it had nothing to do")

    def _pay(self, size: int) -> None:
        if not self._tokens.take(1 + size / 1024):
            raise Malformed("more packets than requests could cause")

    def _expect(self, name: str, number: int) -> asyncio.Future[str]:
        future: asyncio.Future[str] = self._loop.create_future()
        self._confirmed[name, number] = future
        return future

    def _confirm(self, name: str, number: int, why: str) -> None:
        future = self._confirmed.pop((name, number), None)
        if future is None:
            raise Malformed("a confirmation of nothing")
        if not future.done():
            future.set_result(why)

    async def _within(self, future: asyncio.Future[Result], seconds: float, late: str) -> Result:
        both: list[asyncio.Future[Any]] = [future, self.closed]
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            self.close(late)
            raise Unavailable(f"{late}: {self.closed.result()}", remedy="try again")
        return future.result()

    def _ended(self, _: asyncio.Future[str]) -> None:
        self._confirmed.clear()
