"""What a connection waits for on others' word before it goes on: an owner's yes, an upstream."""

from __future__ import annotations

from ringfence.host.egress.judging import Origin
from ringfence.host.egress.needs import DialFailed, Kernel
from ringfence.host.egress.refusals import Code, Refusal
from ringfence.host.egress.streams import Streams
from ringfence.host.egress.works import Works
from ringfence.host.kernel.outward.rules import EgressRule

_FAILED = {
    "address_denied": (Code.ADDRESS, "the name leads to an address that is not reached from here"),
    "tls_failed": (Code.UPSTREAM_TLS, "the server could not prove that it is this host"),
    "too_many": (Code.TOO_MANY, "too many connections to this host are open"),
    "resolve_failed": (Code.UPSTREAM, "the name could not be resolved"),
    "timeout": (Code.UPSTREAM, "the server did not take the connection in time"),
    "proxy_failed": (Code.UPSTREAM, "the proxy of this installation did not let the connection through"),
}
_UNREACHED = (Code.UPSTREAM, "the server could not be reached")


async def dialled(works: Works, origin: Origin, *, tls: bool) -> Streams:
    """Refusal."""
    try:
        return await works.dialler.connect(origin.host, origin.port, tls)
    except DialFailed as error:
        code, text = _FAILED.get(error.reason, _UNREACHED)
        raise Refusal(code, text) from None


async def held(kernel: Kernel, invocation: str, rule: EgressRule, query: str = "") -> None:
    """Until somebody says yes to `rule`. `query`: the request's, of which only the names are told. Refusal: no, or nothing."""
    answer = await kernel.hold(invocation, rule, "&".join(pair.partition("=")[0] for pair in query.split("&")))
    if answer == "deny":
        raise Refusal(Code.DENIED, "the owner of this box said no", rule=rule)
    if answer != "allow":
        raise Refusal(Code.ASK_PENDING, "the owner of this box was asked and has not answered yet", rule=rule)
