"""Leaves as clients check them, their number, their age."""

from __future__ import annotations

import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from ringfence.host.egress.configuration import Bounds
from ringfence.host.egress.minting import Minter, TooMany
from ringfence.host.egress.needs import Exhausted
from ringfence.host.kernel.outward.authority import Malformed
from tests.support.egress_outside import NOW, Ca


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends, shaken; ssl.SSLError."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(down, up, server_hostname=name)
    other = server.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for end in (one, other):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return one, other


def shown(server: ssl.SSLContext, ca: Ca, name: str) -> x509.Certificate:
    one, _ = handshake(server, ca.trusting(), name)
    der = one.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der)


@pytest.fixture
def ca() -> Ca:
    return Ca("user")


def test_a_strict_client_takes_the_leaf_for_its_name_and_for_no_other(ca: Ca) -> None:
    context = ca.minter().context("api.test")
    leaf = shown(context, ca, "api.test")
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.DNSName("api.test")]
    for other in ("git.test", "a.api.test", "test"):
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(context, ca.trusting(), other)


@pytest.mark.parametrize("host", ["a_b.test", "x" * 63 + "." + "y" * 63 + ".test", "xn--bcher-kva.test", "localhost"])
def test_every_canonical_name_gets_a_leaf(ca: Ca, host: str) -> None:
    shown(ca.minter().context(host), ca, host)


@pytest.mark.parametrize("host", ["93.184.216.34", "2606:2800:220:1::1"])
def test_an_address_gets_a_leaf_of_an_address(ca: Ca, host: str) -> None:
    leaf = shown(ca.minter().context(host), ca, host)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.IPAddress(ip_address(host))]


@pytest.mark.parametrize("host", ["*.test", "API.test", "api.test.", "", "a b", "127.1", "a\x00.test"])
def test_what_is_not_canonical_gets_none_and_spends_nothing(ca: Ca, host: str) -> None:
    minter = ca.minter(Bounds(mints_minute=1))
    with pytest.raises(Malformed):
        minter.context(host)
    minter.context("api.test")


def test_a_leaf_is_one_of_the_ca_for_72_hours_with_the_workers_one_key(ca: Ca) -> None:
    minter = ca.minter()
    one, two = (shown(minter.context(host), ca, host) for host in ("a.test", "b.test"))
    assert one.not_valid_after_utc - one.not_valid_before_utc == timedelta(hours=72)
    assert one.public_key() == two.public_key() != ca.key.public_key()
    assert isinstance(key := one.public_key(), ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    assert one.serial_number != two.serial_number
    assert one.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert one.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME) == []


def test_no_leaf_outlives_its_ca() -> None:
    short = Ca("user", days=1)
    assert shown(short.minter().context("api.test"), short, "api.test").not_valid_after_utc == (
        short.certificate.not_valid_after_utc
    )


def test_tls_is_1_2_at_least_and_http_1_1_alone(ca: Ca) -> None:
    context = ca.minter().context("api.test")
    client = ca.trusting()
    client.set_alpn_protocols(["h2", "http/1.1"])
    one, _ = handshake(context, client, "api.test")
    assert (one.version(), one.selected_alpn_protocol()) == ("TLSv1.3", "http/1.1")
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_of_one_name_is_none_of_another(ca: Ca, version: ssl.TLSVersion) -> None:
    """No ticket is given at all; with one, the control, the second connection of the same context resumes."""
    minter, client = ca.minter(), ca.trusting()
    client.maximum_version = version
    context = minter.context("api.test")
    one, _ = handshake(context, client, "api.test")
    with pytest.raises(ssl.SSLWantReadError):  # tickets of TLS 1.3 come with the first read
        one.read()
    assert one.session is None or not one.session.has_ticket
    context.num_tickets = 2
    context.options &= ~ssl.OP_NO_TICKET
    one, _ = handshake(context, client, "api.test")
    with pytest.raises(ssl.SSLWantReadError):
        one.read()
    assert one.session is not None and one.session.has_ticket


def test_a_name_that_was_seen_costs_nothing_until_it_is_old(ca: Ca) -> None:
    at = [NOW]
    minter = Minter(ca.pem, ca.secret, Bounds(mints_minute=2), lambda: at[0], lambda: 0.0)
    first = minter.context("api.test")
    at[0] += timedelta(hours=46)
    assert minter.context("api.test") is first
    at[0] += timedelta(hours=2)  # a day is left of it
    assert minter.context("api.test") is not first


def test_thirty_new_names_a_minute(ca: Ca) -> None:
    """Case 7. A minute later there are new ones; what was made stays to be had."""
    at = [0.0]
    minter = ca.minter(clock=lambda: at[0])
    for n in range(30):
        minter.context(f"h{n}.test")
        at[0] += 1
    with pytest.raises(TooMany) as refused:
        minter.context("h30.test")
    assert isinstance(refused.value, Exhausted)
    minter.context("h0.test")
    at[0] = 60.0
    minter.context("h30.test")
    with pytest.raises(TooMany):
        minter.context("h31.test")


def test_denied_names_take_nothing_from_allowed_ones(ca: Ca) -> None:
    minter = ca.minter(clock=lambda: 0.0)
    for n in range(30):
        minter.context(f"h{n}.test", denied=True)
    with pytest.raises(TooMany):
        minter.context("more.test", denied=True)
    for n in range(30):
        minter.context(f"allowed{n}.test")
    with pytest.raises(TooMany):
        minter.context("allowed30.test")


def test_so_many_contexts_are_kept_and_the_least_used_goes(ca: Ca) -> None:
    minter = ca.minter(replace(Bounds(), contexts=2, mints_minute=100))
    a = minter.context("a.test")
    b = minter.context("b.test")
    minter.context("a.test")
    minter.context("c.test")
    assert minter.context("a.test") is a
    assert minter.context("b.test") is not b


def test_a_key_of_another_certificate_is_refused(ca: Ca) -> None:
    with pytest.raises(ValueError, match="not this certificate"):
        Minter(ca.pem, Ca("other").secret, Bounds(), lambda: datetime.now(UTC), lambda: 0.0)
