"""A user's CA: what it may sign, for how long, and that renewal leaves nobody behind. H4."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from ringfence.host.kernel.errors import Failed
from ringfence.host.kernel.ids import UserId
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.vault import certificate

NOW = datetime(2026, 1, 1, 12, 30, 15, 5, tzinfo=UTC)
USER = UserId("usr_" + "a" * 20)


def test_what_it_is() -> None:
    authority = certificate.make(USER, NOW)
    read = x509.load_pem_x509_certificate(authority.certificate.encode())
    assert read.subject == read.issuer and USER in read.subject.rfc4514_string()
    constraints = read.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
    usage = read.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical and usage.value.key_cert_sign and not usage.value.digital_signature
    key = read.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1"
    assert read.not_valid_before_utc < NOW
    assert authority.not_after == read.not_valid_after_utc == NOW.replace(microsecond=0) + timedelta(days=365)
    read.verify_directly_issued_by(read)
    assert "PRIVATE" not in authority.certificate and "PRIVATE" not in repr(authority)


def test_two_users_have_two_keys() -> None:
    one, two = (certificate.make(USER, NOW) for _ in range(2))
    assert one.key != two.key and one.certificate != two.certificate


def test_renewal_keeps_key_and_name() -> None:
    before = certificate.make(USER, NOW)
    later = NOW + timedelta(days=340)
    assert not certificate.due(before, NOW + timedelta(days=334))
    assert certificate.due(before, later)
    after = certificate.renewed(before, later)
    assert after.key == before.key and after.certificate != before.certificate
    assert after.not_after == later.replace(microsecond=0) + timedelta(days=365)
    old, new = (x509.load_pem_x509_certificate(each.certificate.encode()) for each in (before, after))
    assert old.subject == new.subject and old.serial_number != new.serial_number
    assert old.public_key() == new.public_key()


def test_as_a_value() -> None:
    authority = certificate.make(USER, NOW)
    assert certificate.from_value(certificate.as_value(authority)) == authority
    other = certificate.make(USER, NOW)
    crossed = Secret(authority.certificate.encode() + other.key.reveal())
    for value in (crossed, Secret(b"what"), Secret(authority.certificate.encode()), other.key):
        with pytest.raises(Failed) as error:
            certificate.from_value(value)
        assert "PRIVATE" not in str(error.value.as_json()) and error.value.__cause__ is None
