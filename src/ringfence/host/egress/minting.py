"""Leaf certificates of the user's own CA, and the TLS contexts that show them to the box: one name each, made when asked for.

The TLS library takes a certificate and its key by path only, and a worker can open no file. A memory file has a path,
/proc/self/fd/N, and is on no mounted file system, so Landlock does not judge it (docs/decisions, certificates without files).

It must never mint for more than one name or for a pattern, outlive the CA, nor give two names one context: a session of one
name is then no session of another.
"""

from __future__ import annotations

import os
import ssl
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ringfence.host.egress.configuration import Bounds
from ringfence.host.egress.needs import Exhausted, NoAuthority
from ringfence.host.kernel.outward import authority
from ringfence.host.kernel.outward.secret import Secret

LIFE = timedelta(hours=72)
_BEFORE = timedelta(hours=1)  # a box's clock is the host's; what runs in it may have an older idea of now
_RENEWED = timedelta(
    hours=24
)  # what is left of a leaf when another takes its place: far more than a connection lives (2 h)
_MINUTE = 60.0
_SUBJECT = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "ringfence")])  # a name of the host is in SAN alone


class TooMany(Exhausted):
    """More new names in a minute than `Bounds.mints_minute`."""


class Unable:
    """In the place of a Minter where there is no CA."""

    def context(self, host: str, *, denied: bool = False) -> ssl.SSLContext:
        """NoAuthority."""
        raise NoAuthority(host)


@dataclass(frozen=True, slots=True)
class _Made:
    context: ssl.SSLContext
    until: datetime


class Minter:
    """`now`: the wall clock, aware; `clock`: monotonic seconds. ValueError: certificate and key are not a P-256 CA's.

    One for as long as the CA is the same: it holds the worker's leaf key and the contexts that were made."""

    def __init__(
        self,
        certificate_pem: str,
        key: Secret,
        bounds: Bounds,
        now: Callable[[], datetime],
        clock: Callable[[], float],
    ) -> None:
        self._ca = x509.load_pem_x509_certificate(certificate_pem.encode())
        self._ca_key = _ca_key(self._ca, key)
        self._bounds = bounds
        self._now = now
        self._clock = clock
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._key_pem = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self._made: OrderedDict[str, _Made] = OrderedDict()
        # For those of names that are denied too: a box that asks for many of them takes nothing from its own allowed ones.
        self._minted: dict[bool, deque[float]] = {False: deque(), True: deque()}

    def context(self, host: str, *, denied: bool = False) -> ssl.SSLContext:
        """A server's, for exactly this canonical host. `denied`: it is told so, and that is all. TooMany; Malformed: the host
        is not canonical."""
        now = self._now()
        made = self._made.get(host)
        if made is None or made.until <= now:
            made = self._mint(host, now, denied=denied)
        self._made.move_to_end(host)
        return made.context

    def _mint(self, host: str, now: datetime, *, denied: bool) -> _Made:
        if authority.host(host) != host:
            raise authority.Malformed("the host is not canonical")
        self._allow(self._minted[denied])
        until = min(now + LIFE - _BEFORE, self._ca.not_valid_after_utc)
        leaf = self._leaf(host, now - _BEFORE, until)
        made = _Made(context(leaf.public_bytes(serialization.Encoding.PEM) + self._key_pem), until - _RENEWED)
        self._made[host] = made
        while len(self._made) > self._bounds.contexts:
            self._made.popitem(last=False)
        return made

    def _allow(self, minted: deque[float]) -> None:
        now = self._clock()
        while minted and now - minted[0] >= _MINUTE:
            minted.popleft()
        if len(minted) >= self._bounds.mints_minute:
            raise TooMany(f"more than {self._bounds.mints_minute} new names in a minute")
        minted.append(now)

    def _leaf(self, host: str, since: datetime, until: datetime) -> x509.Certificate:
        """RFC 5280 4.2.1: what strict verifiers ask of an end entity."""
        address = authority.literal(host)
        named: x509.GeneralName = x509.DNSName(host) if address is None else x509.IPAddress(address)
        ca_key = self._ca.public_key()
        assert isinstance(ca_key, ec.EllipticCurvePublicKey)  # looked at when this was made
        usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
        return (
            x509.CertificateBuilder()
            .subject_name(_SUBJECT)
            .issuer_name(self._ca.subject)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(since)
            .not_valid_after(until)
            .add_extension(x509.SubjectAlternativeName([named]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(self._issuer(ca_key), critical=False)
            .sign(self._ca_key, hashes.SHA256())
        )

    def _issuer(self, ca_key: ec.EllipticCurvePublicKey) -> x509.AuthorityKeyIdentifier:
        try:
            said = self._ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        except x509.ExtensionNotFound:
            return x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key)
        return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(said)


def context(chain_pem: bytes) -> ssl.SSLContext:
    """A server's: TLS 1.2 or newer, HTTP/1.1 alone, no tickets. `chain_pem`: certificate and key."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    made.num_tickets = 0  # OP_NO_TICKET alone leaves those of TLS 1.3
    made.set_alpn_protocols(["http/1.1"])
    _load(made, chain_pem)
    return made


def _load(context: ssl.SSLContext, chain_pem: bytes) -> None:
    fd = os.memfd_create("leaf", os.MFD_CLOEXEC)
    try:
        os.write(fd, chain_pem)
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def _ca_key(certificate: x509.Certificate, key: Secret) -> ec.EllipticCurvePrivateKey:
    loaded = serialization.load_pem_private_key(key.reveal(), password=None)
    if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.public_key() != certificate.public_key():
        raise ValueError("the key is not this certificate's, or not on a curve")
    return loaded
