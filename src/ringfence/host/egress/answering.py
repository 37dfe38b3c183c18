"""The way back of one exchange: the server's answer to the box, framed anew, scrubbed, flushed with every read.

It must never follow a redirect, decode a body, or end one early without a reset.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ringfence.host.egress import fields, tunnel, websocket
from ringfence.host.egress.asked import Asked, Spent
from ringfence.host.egress.bodies import Download, Upload
from ringfence.host.egress.client import Client
from ringfence.host.egress.frames import Frames
from ringfence.host.egress.head import ResponseHead, one
from ringfence.host.egress.limits import Deadline
from ringfence.host.egress.refusals import Code, Refusal
from ringfence.host.egress.scrub import Scrubber
from ringfence.host.egress.works import Link

_UNAUTHORISED = 401
_INTERIM = 8  # 1xx answers to one request: more is a server that plays
_SWITCHING, _PARTIAL = 101, 206


class Answering:
    def __init__(
        self,
        box: Client,
        upload: Upload,
        download: Download,
        asked: Asked,
        scrubber: Scrubber | None,
        deadline: Deadline,
        spent: Spent,
    ) -> None:
        self._box = box
        self._upload = upload
        self._reply = upload.reply
        self._download = download
        self._asked = asked
        self._scrubber = scrubber
        self._deadline = deadline
        self._spent = spent
        self._out: list[bytes] = []
        self.whole = False  # a part of an answer is none
        self.refused: Callable[[], Awaitable[None]] | None = None  # awaited before a 401 goes on; it may raise instead
        self.personal = False  # the server may take the connection for one user's
        self._patience = box.bounds.quiet  # a model may think before its first byte
        download.before_wait = self._flush

    async def run(self, link: Link) -> bool:
        """Whether the box's connection can carry another request. Refusal; OSError: the box is gone."""
        head = await self._final()
        self._spent.status = head.status
        self.personal = fields.personal(head.fields)
        if head.status == _UNAUTHORISED and self.refused is not None:
            await self.refused()
        if head.status == _SWITCHING:
            await self._switch(head, link)
            return False
        self._readable(head)
        self._queue(self._reply.head(head.status, self._clean(head.reason), self._headers(head)))
        self._spent.started = True
        await self._body(head)
        return self._reply.alive

    async def _final(self) -> ResponseHead:
        for _ in range(_INTERIM):
            head = await self._download.head()
            if head.status >= 200:
                return head
            if head.status == _SWITCHING:
                if not self._asked.websocket or not websocket.accepted(self._asked.head, head):
                    raise Refusal(Code.UPSTREAM, "the server switched to a protocol that was not asked for")
                return head
            if self._asked.head.minor == 1:
                self._queue(self._reply.interim(head.status, self._headers(head)))
        raise Refusal(Code.UPSTREAM, "the server gave nothing but interim answers")

    def _readable(self, head: ResponseHead) -> None:
        """Before a byte goes on."""
        if self._scrubber is not None and fields.coded(head.fields):
            raise Refusal(Code.UPSTREAM, "the server compressed its answer to a request with a credential, unasked")
        if self.whole and head.status == _PARTIAL:  # by halves a secret would pass the scrubber
            raise Refusal(Code.UPSTREAM, "the server gave a part of its answer to a request with a credential, unasked")
        length = int(one(head.fields, b"content-length") or 0)
        if length > self._asked.rule.down_bytes and self._asked.head.method != "HEAD":
            raise Refusal(Code.TOO_LARGE, f"the answer is larger than {self._asked.rule.down_bytes} bytes", status=502)

    def _headers(self, head: ResponseHead) -> list[tuple[bytes, bytes]]:
        kept = fields.incoming(head.fields, framing=head.status >= 200)
        if self._scrubber is None:
            return kept
        hidden, kept = self._scrubber, fields.without(kept, *fields.SESSIONS)
        return [(name, hidden.whole(value)) for name, value in kept if name in fields.FRAMING or not hidden.named(name)]

    def _clean(self, text: bytes) -> bytes:
        return self._scrubber.whole(text) if self._scrubber is not None else text

    def _queue(self, data: bytes) -> None:
        if data:
            self._out.append(data)

    async def _flush(self) -> None:
        """Before each wait for the server: what one read brought goes on in one write, and nothing stays for the next."""
        if self._out:
            self._box.writer.write(b"".join(self._out))
            self._out.clear()
            await self._box.writer.drain()
        if self._upload.ended:
            self._deadline.within(self._patience, "server")
        else:
            self._deadline.within(self._box.bounds.idle, "box")

    async def _body(self, head: ResponseHead) -> None:
        streaming = (one(head.fields, b"content-type") or b"").lower().startswith(b"text/event-stream")
        self._patience = self._box.bounds.quiet if streaming else self._box.bounds.idle
        cap, scrubber, reply = self._asked.rule.down_bytes, self._scrubber, self._reply
        while data := await self._download.next():
            self._spent.down += len(data)
            if self._spent.down > cap:
                raise Refusal(Code.TOO_LARGE, f"the answer is larger than {cap} bytes")
            if scrubber is not None:
                data = scrubber.feed(data)
            if data:
                self._queue(reply.data(data))
            del data  # who waits for the next holds none
        rest = scrubber.end() if scrubber is not None else b""
        if rest:
            self._queue(reply.data(rest))
        self._queue(reply.end())
        await self._flush()

    async def _switch(self, head: ResponseHead, link: Link) -> None:
        kept = [*self._headers(head), *websocket.UPGRADE]
        if self._scrubber is not None:
            kept = fields.without(kept, websocket.EXTENSIONS)
        lines = [b"HTTP/1.1 101 Switching Protocols", *(name + b": " + value for name, value in kept)]
        self._spent.started = True
        await self._box.write(b"\r\n".join(lines) + b"\r\n\r\n")
        rule, bounds = self._asked.rule, self._box.bounds
        ahead = self._reply.behind + bytes(self._box.pending)
        box = tunnel.End(self._box.reader, self._box.writer, rule.up_bytes, ahead)
        server = tunnel.End(link.reader, link.writer, rule.down_bytes, bytes(self._download.pending))
        self._download.pending.clear()
        change = Frames(self._scrubber) if self._scrubber is not None else None
        self._box.end()  # what it says before it leaves arrives
        try:
            await tunnel.splice(box, server, self._deadline, bounds.quiet, change)
        finally:
            self._spent.down += server.moved
            self._upload.taken += box.moved
