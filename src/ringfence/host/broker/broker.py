"""The broker: attaches to boxes, and carries what it remembers of a guest from one wire to the next.

It never dials: the driver hands it a socket whose far end is proven. The newest wire of a box wins, the older one is
closed. It must never leave a command without an outcome: when a wire is lost the engine is told and may dial again;
what no new wire picks up ends as box_lost.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from ringfence.host.broker.bounds import Bounds
from ringfence.host.broker.link import Parts, WireLink
from ringfence.host.broker.rate import Pace
from ringfence.host.broker.record import BoxRecord
from ringfence.host.broker.tasks import Tasks
from ringfence.host.broker.validation import Shapes
from ringfence.host.broker.violations import Tell, Violations
from ringfence.host.kernel.errors import BoxLost, RingfenceError
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.ports import LoopHost
from ringfence.wire.messages import HelloReply


class WireBroker:
    """ports.Broker. Made inside the running event loop; `close` before the loop ends."""

    def __init__(self, host_id: str, tell: Tell, bounds: Bounds | None = None) -> None:
        """`host_id`: of this kernel process, new at each start. `tell`: see violations.Tell."""
        loop = asyncio.get_running_loop()
        self._host_id = host_id
        self._parts = Parts(Shapes(), Tasks(), Violations(tell, loop.time), loop, bounds or Bounds())
        self._records: dict[BoxId, BoxRecord] = {}

    async def attach(self, box: BoxId, sock_fd: int, host: LoopHost) -> WireLink:
        """See ports.Broker. The descriptor is taken over whatever happens."""
        link = WireLink(box, host, self._parts, self._bind, self._ended)
        sock = socket.socket(fileno=sock_fd)
        sock.setblocking(False)
        try:
            await self._parts.loop.create_unix_connection(lambda: link.exchange.channel, sock=sock)
        except BaseException:
            sock.close()
            raise
        try:
            async with asyncio.timeout(self._parts.bounds.hello_seconds):
                await link.greet(self._host_id)
        except TimeoutError:
            why = f"no hello within {self._parts.bounds.hello_seconds:g} s"
            link.exchange.channel.abort("silent", why)
            raise BoxLost(f"box {box} is silent: {why}", box=box) from None
        except RingfenceError as error:
            link.exchange.channel.abort("", error.message)
            raise BoxLost(f"box {box} did not say hello: {error.message}", box=box) from error
        except BaseException:
            link.exchange.channel.abort("", "its caller has gone")
            raise
        return link

    async def close(self) -> None:
        """Ends every link and every task; the boxes go on."""
        for record in list(self._records.values()):
            if isinstance(record.link, WireLink):
                with suppress(RingfenceError):
                    await record.link.close()
        await self._parts.tasks.close()
        for record in self._records.values():
            record.lose("the server has ended")
        self._records.clear()

    def _bind(self, link: WireLink, hello: HelloReply) -> BoxRecord:
        """The record of the guest behind a new wire. Called while its hello is read, before any later frame."""
        record = self._records.get(link.box)
        if record is not None and record.guest != hello.guest:
            older, record.link = record.link, None
            if isinstance(older, WireLink):
                older.deliberate = True
                older.exchange.channel.abort("", "the box was started anew")
            record.lose("the box was started anew")
            record = None
        if record is None:
            record = self._records[link.box] = BoxRecord(
                link.box, hello.guest, Pace(self._parts.bounds.output, self._parts.loop.time)
            )
        older, record.link = record.link, link
        if isinstance(older, WireLink):
            older.exchange.channel.abort("", "replaced by a newer connection")
        return record

    def _ended(self, link: WireLink, record: BoxRecord) -> None:
        if record.link is not link:
            return  # a newer one has taken over
        record.link = None
        if link.deliberate:
            self._give_up(record, "the wire was closed by the host")
        else:
            self._parts.tasks.go(self._lost(link.host, record), f"lost wire of {link.box}")

    async def _lost(self, host: LoopHost, record: BoxRecord) -> None:
        """The engine dials again and returns; by then there is a newer wire, or the commands are lost."""
        reason = "the wire was lost and not taken up again"
        try:
            await host.link_lost(record.box)
        except RingfenceError as error:
            reason = f"{reason}: {error.message}"
        if record.link is None:
            self._give_up(record, reason)

    def _give_up(self, record: BoxRecord, reason: str) -> None:
        if self._records.get(record.box) is record:
            del self._records[record.box]
        record.lose(reason)
