"""kernel.outward.renewals.TokenEndpoint: the server's own questions for access tokens, over the worker's dialler.

The same floor as for a box: addresses judged, the judged one dialled, the certificate verified for the name, the company's proxy
and root. One POST and one bounded answer. It must never follow a redirect, ask twice, keep a connection, or let a word
of the answer into an error: the far end knows the refresh token.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import h11

from ringfence.host.egress import fields, streams
from ringfence.host.egress.bodies import Download
from ringfence.host.egress.configuration import Bounds
from ringfence.host.egress.framing import Question
from ringfence.host.egress.head import ResponseHead, one
from ringfence.host.egress.needs import DialFailed
from ringfence.host.egress.refusals import Refusal
from ringfence.host.egress.resolver import Resolver
from ringfence.host.egress.site import Site, of_nobody
from ringfence.host.egress.trust import Trust
from ringfence.host.egress.upstream import Dialler
from ringfence.host.kernel.errors import Refused, Unavailable
from ringfence.host.kernel.ids import TenantId, UserId
from ringfence.host.kernel.outward import authority
from ringfence.host.kernel.outward.explaining import explain
from ringfence.host.kernel.outward.ports import EgressRules
from ringfence.host.kernel.outward.renewals import TokenReply
from ringfence.host.kernel.outward.rules import EgressRule, Verdict
from ringfence.host.kernel.outward.secret import Secret

SECONDS = (
    10.0  # for all of it: a worker waits 15 for a value (hotline.SECONDS), and the row of the audit takes some of them
)
_MOST = 64 << 10  # bytes of an answer: grants.LONGEST twice, and room for an id token
_INTERIM = 8
_RETRY = re.compile(rb"[0-9]{1,6}")


class HttpsTokenEndpoint:
    """`clock`: monotonic. `rules`: of tenants and users, whose denials hold here too."""

    def __init__(self, site: Site, rules: EgressRules, clock: Callable[[], float], seconds: float = SECONDS) -> None:
        self._site, self._rules, self._clock, self._seconds = site, rules, clock, seconds
        self._dialler: Dialler | None = None
        self._making = asyncio.Lock()

    async def ask(
        self, whose: tuple[TenantId, UserId | None], url: str, headers: Sequence[tuple[bytes, bytes]], body: Secret
    ) -> TokenReply:
        parts = urlsplit(url)
        host, port = authority.authority(parts.netloc, 443)
        await self._allowed(whose, host, url)
        exchange = _Exchange(host, self._site.bounds)
        try:
            async with asyncio.timeout(self._seconds):
                reader, writer = await (await self._dial()).connect(host, port)
                try:
                    return await exchange.run(reader, writer, _head(host, port, parts.path, headers, len(body)), body)
                finally:
                    streams.abort(writer)
        except TimeoutError:
            raise _none(host, f"did not answer in {self._seconds:g} s", sent=exchange.sent) from None
        except DialFailed as error:
            raise _none(host, f"could not be reached: {error.reason}", sent=False) from None
        except Refusal:
            raise _none(host, "gave an answer that is not HTTP/1.1 as it should be", sent=True) from None
        except OSError:
            raise _none(host, "closed the connection", sent=exchange.sent) from None

    async def _allowed(self, whose: tuple[TenantId, UserId | None], host: str, url: str) -> None:
        """No rule is needed for what its owner named; one that denies the host holds, as for the owner's box."""
        rules = (*self._site.rules, *await self._of(*whose))
        decision = (await asyncio.to_thread(explain, rules, (), "POST", url)).decision  # as many as users wrote
        if decision.answer is Verdict.DENY and decision.rule is not None:
            raise Refused(
                f"a rule denies {host}, where access tokens are to be asked for", remedy="ringfence egress ls U"
            )

    async def _of(self, tenant: TenantId, user: UserId | None) -> list[EgressRule]:
        if user is not None:
            return await self._rules.of(tenant, user)
        return await self._rules.of_layer((tenant, None))

    async def _dial(self) -> Dialler:
        async with self._making:
            if self._dialler is None:
                site = self._site
                context = await asyncio.to_thread(Trust().context, site.roots)  # 20 ms for 150 roots
                resolver = Resolver(site.nameservers, self._clock)
                self._dialler = Dialler(of_nobody(site), resolver, context)
            return self._dialler


class _Exchange:
    """`sent`: whether a byte of the question may have arrived."""

    def __init__(self, host: str, bounds: Bounds) -> None:
        self._host, self._bounds = host, bounds
        self.sent = False

    async def run(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: h11.Request, body: Secret
    ) -> TokenReply:
        """Unavailable, Refusal, OSError."""
        most = self._bounds.head_bytes * 2
        question = Question(head.method.decode(), head.target, list(head.headers), bodied=True, most=most)
        out = [question.head(), question.data(body.reveal()), question.end()]
        self.sent = True
        writer.write(b"".join(out))
        await writer.drain()
        download = Download(question, reader, self._bounds)
        answer = await self._final(download)
        if 300 <= answer.status < 400:
            raise _none(self._host, f"answered {answer.status}, and a redirect is not followed", sent=True)
        if fields.coded(answer.fields):
            raise _none(self._host, "compressed its answer, unasked", sent=True)
        read = bytearray()
        while data := await download.next():
            read += data
            if len(read) > _MOST:
                raise _none(self._host, f"gave more than {_MOST} bytes", sent=True)
        return TokenReply(answer.status, bytes(read), _retry(answer))

    async def _final(self, download: Download) -> ResponseHead:
        for _ in range(_INTERIM):
            head = await download.head()
            if head.status >= 200:
                return head
            if head.status == 101:
                break
        raise _none(self._host, "gave no answer", sent=True)


def _head(host: str, port: int, path: str, headers: Sequence[tuple[bytes, bytes]], length: int) -> h11.Request:
    named = host if port == 443 else f"{host}:{port}"
    own = [
        (b"host", named.encode()),
        (b"user-agent", b"ringfence"),
        (b"accept-encoding", b"identity"),
        (b"connection", b"close"),
        (b"content-length", b"%d" % length),
    ]
    return h11.Request(method=b"POST", target=(path or "/").encode(), headers=[*own, *headers])


def _retry(head: ResponseHead) -> float | None:
    """Seconds; a date is passed over."""
    said = one(head.fields, b"retry-after")
    return float(said) if said is not None and _RETRY.fullmatch(said) else None


def _none(host: str, why: str, *, sent: bool) -> Unavailable:
    return Unavailable(f"{host} {why}", remedy="try again", sent=sent)
