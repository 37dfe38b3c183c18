"""One box's egress worker: from its first packet on the control socket to the last. Must never open, start or listen to
anything: it was closed in before, and all that it works with is handed to it.

A packet that it does not know ends it: what talks to it then is not the server that it was made for.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ringfence.host.egress import configured, dns_serving
from ringfence.host.egress.arrivals import silence
from ringfence.host.egress.assembly import Assembly
from ringfence.host.egress.control import VERSION
from ringfence.host.egress.counting import Counting
from ringfence.host.egress.holding import Holding
from ringfence.host.egress.hotline import Hotline
from ringfence.host.egress.limits import Flow
from ringfence.host.egress.needs import Traffic
from ringfence.host.egress.packets import Malformed, Packets
from ringfence.host.egress.serving import Serving
from ringfence.host.egress.tickets import Ticket, Tickets
from ringfence.host.egress.trust import Trust
from ringfence.host.egress.works import Desk
from ringfence.host.kernel.errors import RingfenceError

_TIDY_SECONDS = 30.0
_V6 = (
    1 << 16
)  # the listener of a port on ::1 has this number, so that it does not take the place of the one on 127.0.0.1
_HOLD_SLACK = 10.0  # the server ends a hold; this is for one that does not


def run(fd: int, trust: Trust | None = None) -> None:
    """Until the server's end of the control socket closes or it says so. `fd`: its descriptor, SOCK_SEQPACKET, taken over.
    `trust`: with the roots that the template has read. Raises: a packet that may not be."""
    asyncio.run(_work(fd, trust or Trust()))


async def _work(fd: int, trust: Trust) -> None:
    async with asyncio.TaskGroup() as group:
        worker = Worker(socket.socket(fileno=fd), trust, group)
        await worker.over()
        worker.stop()
    if worker.broken:
        raise Malformed(worker.broken)


def _now() -> float:
    return time.time()  # noqa: TID251 - the root of this process: there is no clock to be handed


class Worker:
    def __init__(self, control: socket.socket, trust: Trust, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: dict[int, asyncio.Task[None]] = {}  # of DNS listeners
        self._socks: dict[int, socket.socket] = {}
        self._ending: asyncio.Task[None] | None = None
        self._resting = False
        self._text: list[str] = []  # parts of a configuration, until the last
        self._tickets, self._counting, self._holding = Tickets(_now), Counting(), Holding(time.monotonic)
        self._assembly = Assembly(trust, lambda: datetime.fromtimestamp(_now(), UTC), time.monotonic, self._unknown)
        self._serving: Serving | None = None
        self._hotline: Hotline | None = None
        self._life: list[asyncio.Task[None]] = []
        self._kinds: dict[str, Callable[[Mapping[str, Any], Sequence[int]], None]] = {
            "configure": self._configure,
            "names": self._named,
            "listen": self._listen,
            "unlisten": self._unlisten,
            "tickets": self._ticketed,
            "secret": self._answered,
            "answer": self._answered,
            "model": self._answered,
            "revoke": self._revoke,
            "rest": self._rest,
            "end": self._end,
        }
        self.broken = ""
        self._packets = Packets(control, self._heard, fds=1)
        self._packets.send({"t": "ready", "version": VERSION})

    async def over(self) -> None:
        await asyncio.shield(self._packets.closed)

    def stop(self) -> None:
        if self._hotline is not None:
            self._hotline.gone()
        self._unresolved()
        for task in self._life:
            task.cancel()

    # --- what the server says ----------------------------------------------------------------------------------------

    def _heard(self, said: Mapping[str, Any], fds: Sequence[int]) -> None:
        try:
            kind = self._kinds.get(str(said.get("t")))
            if kind is None or (fds and said.get("t") not in ("listen", "model")):
                raise Malformed("a packet of a kind that is not known")
            kind(said, fds)
        except (KeyError, TypeError, ValueError, AttributeError):
            self.broken = "a packet that is not well-formed"
        except Malformed as error:
            self.broken = f"{error}"
        except Exception as error:  # ours: its text may have what is nobody's business, its name not
            self.broken = f"a fault of its own: {type(error).__name__}"
        if self.broken:
            self._packets.send({"t": "ending", "why": self.broken})
            for fd in fds:
                os.close(fd)
            self._packets.close(self.broken)

    def _configure(self, said: Mapping[str, Any], fds: Sequence[int]) -> None:
        seq, part, parts = int(said["seq"]), int(said["part"]), int(said["parts"])
        if part != len(self._text) or part >= parts:
            raise Malformed("a part of a configuration out of its turn")
        self._text.append(str(said["text"]))
        if part + 1 < parts:
            return
        text, self._text = "".join(self._text), []
        try:
            configuration = configured.from_text(text)
            works = self._assembly.works(configuration)
        except (RingfenceError, ValueError) as error:  # as before, all of it
            self._packets.send({"t": "refused", "seq": seq, "why": type(error).__name__})
            return
        if self._serving is None:
            bounds = configuration.bounds
            self._hotline = Hotline(self._packets.send, self._holding, bounds.hold + _HOLD_SLACK)
            desk = Desk(self._hotline, self._tickets, Flow(bounds, time.monotonic), self._counting, bounds)
            self._serving = Serving(desk, idle=lambda: self._packets.send({"t": "idle"}))
            self._life = [self._group.create_task(each) for each in (self._serving.run(), self._tidy())]
        self._holding.bound(configuration.bindings)
        self._serving.install(works)
        self._packets.send({"t": "done", "seq": seq})

    def _named(self, said: Mapping[str, Any], fds: Sequence[int]) -> None:
        self._assembly.recall([(str(name), str(address)) for name, address in said["items"]])

    def _listen(self, said: Mapping[str, Any], fds: Sequence[int]) -> None:
        if len(fds) != 1 or self._serving is None:
            raise Malformed("a listener without its socket, or before a configuration")
        if self._resting:  # it was on its way: the next worker is given it
            os.close(fds[0])
            return
        kind, port, invocation = str(said["kind"]), int(said["port"]), str(said["invocation"])
        if kind not in ("proxy", "transparent", "dns_udp", "dns_tcp"):
            raise Malformed("a listener of a kind that is not known")
        sock = socket.socket(fileno=fds[0])
        at = port + (_V6 if sock.family == socket.AF_INET6 else 0)
        if kind in ("proxy", "transparent"):
            # Its task of accepting needs the group of `run`, which has its first turn after this one.
            self._group.create_task(self._accept(at, sock, invocation, transparent=kind == "transparent"))
            return
        sock.setblocking(False)
        serve = dns_serving.datagrams if kind == "dns_udp" else dns_serving.connections
        at = at if kind == "dns_udp" else -at
        if at in self._tasks:
            silence(self._socks.pop(at), self._tasks.pop(at))
        self._socks[at] = sock
        self._tasks[at] = self._group.create_task(serve(sock, self._assembly.answer, self._serving.idleness))

    async def _accept(self, at: int, sock: socket.socket, invocation: str, *, transparent: bool) -> None:
        assert self._serving is not None
        if self._resting:
            sock.close()
        else:
            self._serving.listen(at, sock, invocation=invocation, transparent=transparent)

    def _unlisten(self, said: Mapping[str, Any], fds: Sequence[int]) -> None:
        port = int(said["port"])
        self._group.create_task(self._deaf(port))

    async def _deaf(self, port: int) -> None:
        """In the order of the packets, as `_accept`."""
        if self._serving is not None:
            self._serving.unlisten(port)

    def _ticketed(self, said: Mapping[str, Any], fds: Sequence[int]) -> None:
        invocation, items = str(said["invocation"]), [_ticket(each) for each in said["items"]]
        if self._serving is None:
            self._tickets.replace(invocation, items)
        else:
            self._serving.ticketed(invocation, items)
        if said["ended"] is True:
            self._holding.ended(invocation)

    def _answered(self, said: Mapping[str, Any], fds: Sequence[int]) -> None:
        if self._hotline is None:
            raise Malformed("an answer to nothing")
        self._hotline.answered(said, fds)

    def _revoke(self, said: Mapping[str, Any], fds: Sequence[int]) -> None:
        credential, number = str(said["credential"]), int(said["n"])
        self._holding.revoke(credential)
        if self._serving is not None:
            self._serving.revoke(credential)
        self._packets.send({"t": "done", "n": number})

    def _rest(self, said: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Nobody is taken any more, if nothing has begun since this worker said that it is idle. It is the server that closes the
        socket: what is closed with a packet unread would take along what was said before."""
        if self._serving is None:
            raise Malformed("told to rest before a configuration")
        if not self._resting and self._serving.leave():
            self._resting = True
            self._unresolved()
            self._packets.send({"t": "rested", "names": self._assembly.given()})

    def _end(self, said: Mapping[str, Any], fds: Sequence[int]) -> None:
        if self._ending is None:
            self._ending = self._group.create_task(self._finish())

    # --- by itself ---------------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        if self._serving is not None:
            await self._serving.end()
            await asyncio.wait(self._life[:1])  # what is counted is told before the end
        self._packets.close("told to end")

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(_TIDY_SECONDS)
            self._holding.tidy()

    def _unresolved(self) -> None:
        """No question of the box's is taken any more."""
        for at in list(self._tasks):
            silence(self._socks.pop(at), self._tasks.pop(at))

    def _unknown(self, name: str) -> None:
        """A name that no rule lets through was asked for."""
        self._counting.add(Traffic(name or "-", 53, "deny", "denied", "", "DNS", 1, 0, 0))


def _ticket(raw: Mapping[str, Any]) -> Ticket:
    uses = raw["uses"]
    return Ticket(
        str(raw["digest"]),
        str(raw["credential"]),
        str(raw["binding"]),
        float(raw["expires"]),
        None if uses is None else int(uses),
        more=tuple(map(str, raw.get("more", ()))),
    )
