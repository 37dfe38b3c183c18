"""The HTTP front of the model gateway: `/model/...` of an invocation's own port, relayed to the server as it came.

The virtual key of the request says whose it is; only its digest goes to the server, and none of it to the gateway. Provider
keys never come here. It must never judge a model, a budget or a body: the gateway does.
"""

from __future__ import annotations

import asyncio

from ringfence.host.egress import streams
from ringfence.host.egress.asked import Asked
from ringfence.host.egress.head import RequestHead
from ringfence.host.egress.judging import Judged, Origin
from ringfence.host.egress.needs import Kernel, Withheld
from ringfence.host.egress.refusals import Code, Refusal
from ringfence.host.kernel.outward import authority, placeholders, targets
from ringfence.host.kernel.outward.authority import Malformed
from ringfence.host.kernel.outward.rules import Decision, EgressRule, Mode, Request, Verdict

PREFIX = b"/model/"
HOST = "model-gateway"
_KEYS = (b"x-api-key", b"authorization")
_LOCAL = "localhost"
_ASK_SO = "ask it by the command's own OPENAI_BASE_URL or ANTHROPIC_BASE_URL: by 127.0.0.1, [::1] or localhost"
_RULE = EgressRule("gateway", Verdict.ALLOW, HOST, (80,), plain=True, websocket=True, forward_literal=True)
_DECISION = Decision(Verdict.ALLOW, _RULE, Mode.INTERCEPT, "the model gateway")


def asked(head: RequestHead, invocation: str, *, websocket: bool) -> Asked:
    """Refusal: no path, no method, or another host than this one."""
    if head.method == "CONNECT":
        raise Refusal(Code.MALFORMED, "CONNECT names a host and a port", status=405, close=True)
    _agree(head)
    try:
        read = targets.target(head.target)
    except Malformed as error:
        raise Refusal(Code.MALFORMED, error.reason, close=True) from None
    origin = Origin(HOST, 80, tls=False)
    request = Request(HOST, 80, False, head.method, read.path, read.query, websocket)
    return Asked(
        head,
        Judged(origin, request, _DECISION, head.target),
        _RULE,
        invocation,
        websocket,
        None,
        evidence=False,
        stripped=(*_KEYS, b"cookie"),
    )


def _agree(head: RequestHead) -> None:
    """A page in the box's browser may have its name lead here (DNS rebinding): only what is of this host for sure is asked for. Any
    port: whoever forwards the gateway's within the box says its own. Refusal."""
    named = head.one(b"host")
    if named is None:
        return  # HTTP/1.0: the connection says it
    try:
        host, _ = authority.authority(named, authority.HTTP)
    except Malformed as error:
        raise Refusal(Code.MALFORMED, f"the host: {error.reason}", close=True) from None
    address = authority.literal(host)
    if host != _LOCAL and (address is None or not address.is_loopback):
        raise Refusal(Code.AUTHORITY, "Host names another host than the model gateway's", close=True, remedy=_ASK_SO)


def digest(head: RequestHead) -> str:
    """Of the virtual key. Refusal: there is none, or more than one where one is to be."""
    for name in _KEYS:
        if sum(key == name for key, _ in head.fields) > 1:  # one, and no list: RFC 9110 sections 5.3 and 11.6.2
            raise Refusal(Code.MALFORMED, f"more than one {name.decode()}", close=True)
    for name in _KEYS:
        value = head.one(name)
        if value:
            word, _, rest = value.partition(b" ")
            return placeholders.digest(rest.strip() if word.lower() == b"bearer" else value)
    raise Refusal(Code.NOT_CONFIGURED, "a request to the model gateway carries the key of its command", status=401)


async def connected(kernel: Kernel, invocation: str, key: str) -> streams.Streams:
    """`key`: its digest. Refusal."""
    try:
        sock = await kernel.gateway(invocation, key)
    except Withheld as error:
        if error.unknown:
            raise Refusal(Code.UNKNOWN, f"the model gateway: {error.why}", status=401) from None
        code = Code.CREDENTIAL if error.configured else Code.NOT_CONFIGURED
        raise Refusal(code, f"the model gateway: {error.why}") from None
    sock.setblocking(False)
    return await asyncio.open_connection(sock=sock, limit=streams.READ)
