"""What the resolver of a box answers: a synthetic address for a name that a rule could let through, nothing else. No I/O.

It must never look anything up: the answer to a name is made of that name and the rules alone (D63). Names that no rule names are
said not to exist, whatever stands to their left; what could carry more than an address is refused.

Sources: RFC 1035, RFC 6891 (EDNS), RFC 8482 (ANY), RFC 8020 (NXDOMAIN).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from ipaddress import ip_address

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from ringfence.host.egress.synthetic import Names
from ringfence.host.kernel.outward import authority

TTL = 30  # seconds: an address stays right while the worker lives; after that the name is soon asked for again
_PAYLOAD = 1232  # bytes that we say we take by UDP (dnsflagday.net/2020). Answers have 300 at most
_HEADER = struct.Struct("!HHHHHH")
_RESPONSE = 0x8000

# What carries data of a sender's choice, or everything there is.
_REFUSED = frozenset({dns.rdatatype.TXT, dns.rdatatype.NULL, dns.rdatatype.ANY, dns.rdatatype.AXFR, dns.rdatatype.IXFR})


class Answers:
    """`reachable`: whether some rule could let a canonical name through; asked anew for each question. `denied`: told of
    each name that is said not to exist; "" for what is no name."""

    def __init__(self, names: Names, reachable: Callable[[str], bool], denied: Callable[[str], None]) -> None:
        self._names = names
        self._reachable = reachable
        self._denied = denied

    def answer(self, wire: bytes) -> bytes | None:
        """None: that is not a question, and gets no word."""
        if len(wire) < _HEADER.size or wire[2] & 0x80:
            return None
        try:
            query = dns.message.from_wire(wire)
            response = self._response(query)
            return response.to_wire(max_size=65535)
        except (dns.exception.DNSException, ValueError):
            return _unread(wire)

    def _response(self, query: dns.message.Message) -> dns.message.Message:
        response = dns.message.make_response(query, recursion_available=True, our_payload=_PAYLOAD)
        response.set_rcode(self._said(query, response))
        return response

    def _said(self, query: dns.message.Message, response: dns.message.Message) -> dns.rcode.Rcode:
        if query.edns > 0:
            return dns.rcode.BADVERS
        if query.opcode() != dns.opcode.QUERY:
            return dns.rcode.NOTIMP
        if len(query.question) != 1:
            return dns.rcode.FORMERR
        asked = query.question[0]
        if asked.rdclass != dns.rdataclass.IN or asked.rdtype in _REFUSED:
            return dns.rcode.REFUSED
        host = _host(asked.name)
        if host is None or not self._reachable(host):
            self._denied(host or "")
            return dns.rcode.NXDOMAIN
        rdata = self._rdata(host, asked.rdtype)
        if rdata is not None:
            response.answer.append(dns.rrset.from_rdata(asked.name, TTL, rdata))
        return dns.rcode.NOERROR

    def _rdata(self, host: str, kind: dns.rdatatype.RdataType) -> dns.rdata.Rdata | None:
        """None for all that exists elsewhere, HTTPS and SVCB with their keys for hidden names among it (C5, B10)."""
        if kind not in (dns.rdatatype.A, dns.rdatatype.AAAA):
            return None
        v4, v6 = self._names.addresses(host)
        packed = ip_address(v4 if kind == dns.rdatatype.A else v6).packed
        return dns.rdata.from_wire(dns.rdataclass.IN, kind, packed, 0, len(packed))


def _host(name: dns.name.Name) -> str | None:
    """Canonical, or None. Labels are taken as bytes: a dot in one is not a dot between two."""
    labels = name.labels[:-1]
    if any(b"." in label for label in labels):
        return None
    try:
        host = authority.host(b".".join(labels))
    except authority.Malformed:
        return None
    return host if authority.literal(host) is None else None


def _unread(wire: bytes) -> bytes:
    """FORMERR, with the id and opcode of what could not be read."""
    ident, flags, *_ = _HEADER.unpack_from(wire)
    return _HEADER.pack(ident, _RESPONSE | flags & 0x7900 | dns.rcode.FORMERR, 0, 0, 0, 0)
