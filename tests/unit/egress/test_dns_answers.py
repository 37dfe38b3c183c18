"""What the box's resolver says, message by message."""

from __future__ import annotations

import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.egress.dns_answers import Answers
from ringfence.host.egress.synthetic import Names

KNOWN = "api.test"


class Box:
    def __init__(self) -> None:
        self.names = Names(b"key")
        self.denied: list[str] = []
        self.answers = Answers(self.names, lambda name: name == KNOWN, self.denied.append)

    def ask(self, query: dns.message.Message) -> dns.message.Message:
        wire = self.answers.answer(query.to_wire())
        assert wire is not None
        response = dns.message.from_wire(wire)
        assert response.id == query.id
        assert response.flags & dns.flags.QR
        return response


@pytest.fixture
def box() -> Box:
    return Box()


def texts(response: dns.message.Message) -> list[str]:
    return [rdata.to_text() for rrset in response.answer for rdata in rrset]


def test_a_known_name_has_its_two_addresses(box: Box) -> None:
    v4, v6 = box.names.addresses(KNOWN)
    assert texts(box.ask(dns.message.make_query("API.test.", "A"))) == [v4]
    assert texts(box.ask(dns.message.make_query("api.test.", "AAAA"))) == [v6]
    assert box.denied == []


def test_the_answer_repeats_the_name_as_it_was_asked(box: Box) -> None:
    """Resolvers mix cases and look for the same (0x20)."""
    response = box.ask(dns.message.make_query("aPi.TeSt.", "A"))
    assert response.answer[0].name.labels == dns.name.from_text("aPi.TeSt.").labels
    assert response.answer[0].ttl == 30


@pytest.mark.parametrize("kind", ["HTTPS", "SVCB", "MX", "SRV", "CNAME", "CAA", "PTR", "TYPE65400"])
def test_a_known_name_has_nothing_else(box: Box, kind: str) -> None:
    """C5, B10: no keys for hidden names, no h3."""
    response = box.ask(dns.message.make_query("api.test.", kind))
    assert (response.rcode(), texts(response)) == (dns.rcode.NOERROR, [])


@pytest.mark.parametrize("name", ["api.test.", "evil.test."])
@pytest.mark.parametrize("kind", ["TXT", "NULL", "ANY", "AXFR", "IXFR"])
def test_what_carries_more_is_refused(box: Box, kind: str, name: str) -> None:
    """B11."""
    query = dns.message.make_query(name, "A")
    query.question[0].rdtype = dns.rdatatype.from_text(kind)
    assert box.ask(query).rcode() == dns.rcode.REFUSED


@pytest.mark.parametrize(
    "name", ["evil.test.", "c2VjcmV0.api.test.", "test.", ".", "127.0.0.1.", "2130706433.", "4.3.2.1.in-addr.arpa."]
)
def test_other_names_do_not_exist(box: Box, name: str) -> None:
    assert box.ask(dns.message.make_query(name, "A")).rcode() == dns.rcode.NXDOMAIN
    assert len(box.denied) == 1


@pytest.mark.parametrize("label", [b"api.test", b"a\x00b", b"\xff", b"a b"])
def test_bytes_that_no_name_has_are_no_name(box: Box, label: bytes) -> None:
    """A dot inside of a label would read as the known name to whoever joins labels by dots."""
    query = dns.message.make_query(dns.name.Name([label, b""]), "A")
    assert box.ask(query).rcode() == dns.rcode.NXDOMAIN
    assert box.denied == [""]


def test_another_class_or_operation_is_refused(box: Box) -> None:
    assert box.ask(dns.message.make_query("api.test.", "A", rdclass="CH")).rcode() == dns.rcode.REFUSED
    update = dns.message.make_query("api.test.", "A")
    update.set_opcode(dns.opcode.NOTIFY)
    assert box.ask(update).rcode() == dns.rcode.NOTIMP


def test_two_questions_are_none(box: Box) -> None:
    query = dns.message.make_query("api.test.", "A")
    query.question += dns.message.make_query("other.test.", "A").question
    assert box.ask(query).rcode() == dns.rcode.FORMERR


def test_edns_is_answered_and_a_later_version_is_not(box: Box) -> None:
    assert box.ask(dns.message.make_query("api.test.", "A", use_edns=0, payload=4096)).edns == 0
    assert box.ask(dns.message.make_query("api.test.", "A", use_edns=False)).edns == -1
    assert box.ask(dns.message.make_query("api.test.", "A", use_edns=1)).rcode() == dns.rcode.BADVERS


def test_answers_get_no_answer(box: Box) -> None:
    """Two resolvers would talk for ever."""
    response = dns.message.make_response(dns.message.make_query("api.test.", "A"))
    assert box.answers.answer(response.to_wire()) is None
    assert box.answers.answer(b"short") is None


def test_what_cannot_be_read_is_said_to_be_so(box: Box) -> None:
    wire = dns.message.make_query("api.test.", "A").to_wire()
    said = box.answers.answer(wire[:-1])
    assert said is not None
    assert said[:2] == wire[:2]
    assert dns.message.from_wire(said).rcode() == dns.rcode.FORMERR


@given(st.binary(max_size=120))
def test_no_bytes_raise(data: bytes) -> None:
    box = Box()
    for wire in (data, b"\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + data):
        said = box.answers.answer(wire)
        assert said is None or said[:2] == wire[:2]
    assert KNOWN not in box.denied
