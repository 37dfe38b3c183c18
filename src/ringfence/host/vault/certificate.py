"""The certificate of a user's CA: P-256, self-signed, for leaves only (pathlen 0), one year. Pure but for the key that it draws.

Renewal keeps the key and the name, so whoever trusts the certificate before it trusts what is signed after it, until that
one ends; nobody has to be told at the moment of the change. RFC 5280: 4.2.1.2 (key identifier), 4.2.1.9 (constraints).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ringfence.host.kernel.errors import Failed
from ringfence.host.kernel.ids import UserId
from ringfence.host.kernel.outward.ports import Authority
from ringfence.host.kernel.outward.secret import Secret

VALID = timedelta(days=365)
RENEW = timedelta(days=30)  # before its end
_SKEW = timedelta(hours=1)  # a box's clock is the host's, but an image's tools may have been frozen for a while
_LONGEST_NAME = 64  # of a common name (RFC 5280, appendix A.1: ub-common-name)


def make(user: UserId, now: datetime) -> Authority:
    return _signed(ec.generate_private_key(ec.SECP256R1()), f"ringfence {user}"[:_LONGEST_NAME], now)


def renewed(before: Authority, now: datetime) -> Authority:
    """Another certificate for its key and name."""
    certificate = x509.load_pem_x509_certificate(before.certificate.encode())
    [name] = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return _signed(_key_of(before.key), str(name.value), now)


def due(authority: Authority, now: datetime) -> bool:
    return authority.not_after - now < RENEW


def as_value(authority: Authority) -> Secret:
    """Both PEMs, the certificate first."""
    return Secret(authority.certificate.encode() + authority.key.reveal())


def from_value(value: Secret) -> Authority:
    """Failed: nothing that `as_value` made."""
    try:
        pem = value.reveal()
        start = pem.index(b"-----BEGIN PRIVATE KEY-----")
        certificate, key = pem[:start], Secret(pem[start:])
        read = x509.load_pem_x509_certificate(certificate)
        if _key_of(key).public_key() != read.public_key():
            raise ValueError("key")
        return Authority(certificate.decode(), key, read.not_valid_after_utc)
    except (ValueError, TypeError, UnicodeDecodeError):
        raise Failed("the stored CA of a user is none", remedy="report this") from None


def _key_of(key: Secret) -> ec.EllipticCurvePrivateKey:
    loaded = serialization.load_pem_private_key(key.reveal(), None)
    if not isinstance(loaded, ec.EllipticCurvePrivateKey):
        raise ValueError("kind of key")
    return loaded


def _signed(key: ec.EllipticCurvePrivateKey, common: str, now: datetime) -> Authority:
    name = x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "ringfence"), x509.NameAttribute(NameOID.COMMON_NAME, common)]
    )
    public, ends = key.public_key(), now.replace(microsecond=0) + VALID
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Authority(certificate.public_bytes(encoding).decode(), Secret(private), ends)
