"""All connections of one worker: listeners in, configuration exchanged as one, what lost permission cut.

Without a configuration nothing passes. It must never let a connection outlive the rule, the listener or the credential that it
is there by, nor take more connections than `Bounds.connections`: who comes then waits in the kernel's queue. Nor may it take one
that it does not serve: who has come and was not taken is there for the next worker.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ringfence.host.egress import resting
from ringfence.host.egress.arrivals import original_destination, readable, silence
from ringfence.host.egress.entrance import Destination, Entrance
from ringfence.host.egress.idleness import Idleness
from ringfence.host.egress.judging import Policy, still
from ringfence.host.egress.tickets import Ticket
from ringfence.host.egress.works import Desk, Works
from ringfence.host.kernel.outward.rules import Mode, Verdict

_FLUSH_SECONDS = 1.0
_BACK_OFF = 0.1  # after a failed accept (no descriptor left): the queue holds the rest
_IDLE_ENOUGH = 1.0  # a connection that waits for its next request this long gives its place to a new one


@dataclass(frozen=True, slots=True)
class _Listener:
    sock: socket.socket
    task: asyncio.Task[None]

    def end(self) -> None:
        """The server has the same socket still, and epoll goes on watching what is closed here alone (epoll(7), question 6):
        it is taken off while its descriptor is still its own, and its task takes nobody any more."""
        silence(self.sock, self.task)


class Serving:
    """`run` is its life; the rest is called while it runs. `destination`: of transparent connections. `idle`: there has been
    nothing to do for `Bounds.idle_ends`, and for so long again."""

    def __init__(
        self, desk: Desk, destination: Destination = original_destination, idle: Callable[[], object] = lambda: None
    ) -> None:
        self._desk = desk
        self._destination = destination
        self._idle = idle
        self._works: Works | None = None
        self._listeners: dict[int, _Listener] = {}
        self._live: dict[Entrance, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(desk.bounds.connections)
        self._group: asyncio.TaskGroup | None = None
        self._over = asyncio.Event()
        self._worked = True  # since it rested: at first it was configured

    async def run(self) -> None:
        """Until `end`. What is counted goes to the kernel every second and once more at the end."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                while not self._over.is_set():
                    self._flush()
                    self._rest()
                    if self.idleness.due(self._desk.bounds.idle_ends):
                        self._idle()
                    await self._nap()
        finally:
            self._group = None
            self._flush()

    async def _nap(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_SECONDS):
                await self._over.wait()

    def _flush(self) -> None:
        items, dropped = self._desk.counting.drain()
        if items or dropped:
            self._desk.kernel.traffic(items, dropped)

    def _rest(self) -> None:
        """Once after the last connection."""
        if self._worked and not self._live:
            self._worked = False
            resting.rest()

    @property
    def idleness(self) -> Idleness:
        return self._desk.idleness

    @property
    def connections(self) -> int:
        return len(self._live)

    # --- what the server says ------------------------------------------------------------------------------------

    def install(self, works: Works) -> None:
        """In force for every request from now on; what it does not let through any more is cut now."""
        self._works = works
        for entrance in list(self._live):
            if not _permitted(entrance, works.policy):
                self._cut(entrance)

    def listen(self, port: int, sock: socket.socket, *, invocation: str, transparent: bool) -> None:
        """Takes the socket over. One that was there on the port goes."""
        assert self._group is not None  # the server listens while it runs
        self.unlisten(port)
        sock.setblocking(False)
        task = self._group.create_task(self._accept(port, sock, invocation, transparent=transparent))
        self._listeners[port] = _Listener(sock, task)

    def unlisten(self, port: int) -> None:
        listener = self._listeners.pop(port, None)
        if listener is None:
            return
        listener.end()
        for entrance in [each for each in self._live if each.port == port]:
            self._cut(entrance)

    def revoke(self, credential: str) -> None:
        """Ends what has a value of it in flight. The value itself is the kernel port's to forget."""
        for entrance in list(self._live):
            exchange = entrance.current.exchange
            if exchange is not None and exchange.uses(credential):
                self._cut(entrance)

    def ticketed(self, invocation: str, items: Sequence[Ticket]) -> None:
        """Its stand-ins from now on. What came with one that is gone is cut, by whichever listener it came."""
        self._desk.tickets.replace(invocation, items)
        for entrance in list(self._live):
            exchange = entrance.current.exchange
            if exchange is not None and not exchange.ticketed():
                self._cut(entrance)

    def leave(self) -> bool:
        """Takes nobody any more, and has told what was counted. False: something has begun since `idle`, and all goes on."""
        if not self.idleness.still():
            return False
        self._deaf()
        self._flush()
        return True

    async def end(self, grace: float = 2.0) -> None:
        """No new connection; those that are in an exchange get `grace` seconds."""
        self._deaf()
        for entrance in list(self._live):
            if entrance.requests is None or entrance.current.exchange is None:
                self._cut(entrance)
            else:
                entrance.requests.last = True
        if self._live:
            await asyncio.wait(list(self._live.values()), timeout=grace)
        for entrance in list(self._live):
            self._cut(entrance)
        self._over.set()

    # --- connections ---------------------------------------------------------------------------------------------

    def _deaf(self) -> None:
        for port in list(self._listeners):
            self._listeners.pop(port).end()

    async def _accept(self, port: int, listener: socket.socket, invocation: str, *, transparent: bool) -> None:
        """From being taken to being served there is no wait in which this could be cancelled."""
        while True:
            await readable(listener)
            await self._slot()
            try:
                sock, _ = listener.accept()
            except OSError as error:
                self._slots.release()
                if not isinstance(error, BlockingIOError):
                    await asyncio.sleep(_BACK_OFF)
                continue
            self._enter(sock, port, invocation, transparent=transparent)

    async def _slot(self) -> None:
        """One has come and waits for it."""
        while self._slots.locked():
            self._make_room()
            with suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_ENOUGH):
                    await self._slots.acquire()
                    return
        await self._slots.acquire()

    def _make_room(self) -> None:
        now = asyncio.get_running_loop().time()
        idle = [(each.current.idle_since, each) for each in self._live if each.current.idle_since]
        since, entrance = min(idle, key=lambda pair: pair[0], default=(now, None))
        if entrance is not None and now - since > _IDLE_ENOUGH:
            self._cut(entrance)

    def _enter(self, sock: socket.socket, port: int, invocation: str, *, transparent: bool) -> None:
        if self._works is None or self._group is None:
            sock.close()
            self._slots.release()
            return
        sock.setblocking(False)
        entrance = Entrance(
            self._desk,
            self._now,
            sock,
            port=port,
            invocation=invocation,
            destination=self._destination if transparent else None,
        )
        self._worked = True
        self.idleness.begin()
        task = self._live[entrance] = self._group.create_task(self._served(entrance))
        task.add_done_callback(lambda _: self._left(entrance))  # also of one that is cut before its first turn

    def _left(self, entrance: Entrance) -> None:
        """Idempotent."""
        if self._live.pop(entrance, None) is not None:
            self.idleness.over()
            self._slots.release()

    def _now(self) -> Works:
        assert self._works is not None  # it is never taken back
        return self._works

    async def _served(self, entrance: Entrance) -> None:
        """A fault of ours in one connection ends that one, and is told; the others go on."""
        try:
            await entrance.run()
        except Exception as error:
            entrance.cut()
            self._desk.findings.tell("worker_fault", entrance.invocation, {"error": type(error).__name__})
        finally:
            self._left(entrance)

    def _cut(self, entrance: Entrance) -> None:
        task = self._live.get(entrance)
        entrance.cut()
        if task is not None:
            task.cancel()


def _permitted(entrance: Entrance, policy: Policy) -> bool:
    current = entrance.current
    if current.judged is not None and not current.gateway and not still(policy, current.judged):
        return False
    if current.exchange is not None and not current.exchange.permitted(policy):
        return False
    if current.origin is None:
        return True
    decision = policy.connection(current.origin)
    if decision.answer is Verdict.DENY:
        return False
    return current.passthrough == (decision.mode is Mode.PASSTHROUGH)
