"""Certificates for tests of the way out: a CA with leaves, as files of a test's own directory. Stand-ins for minting."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ringfence.host.egress.needs import Exhausted

_SINCE = datetime(2020, 1, 1, tzinfo=UTC)
_UNTIL = datetime(2090, 1, 1, tzinfo=UTC)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


class Authority:
    """`pem`: the CA's certificate; `context`: a server's, with a leaf for exactly one name."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
        self.path = directory / f"{name}.pem"
        self.path.write_text(self.pem)
        self._contexts: dict[str, ssl.SSLContext] = {}
        self.exhausted = False

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_SINCE)
            .not_valid_after(_UNTIL)
        )

    def context(self, host: str, *, denied: bool = False) -> ssl.SSLContext:
        if self.exhausted:
            raise Exhausted
        if host not in self._contexts:
            self._contexts[host] = self._made(host)
        return self._contexts[host]

    def _made(self, host: str) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        named: x509.GeneralName = x509.DNSName(host)
        if host.replace(".", "").isdigit():
            named = x509.IPAddress(ip_address(host))
        leaf = (
            self._builder(_name("leaf"), key)
            .add_extension(x509.SubjectAlternativeName([named]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        path = self._directory / f"leaf-{len(self._contexts)}-{self._name.rdns[0].rfc4514_string()[3:]}.pem"
        path.write_bytes(leaf.public_bytes(serialization.Encoding.PEM) + _pem(key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        context.set_alpn_protocols(["http/1.1"])
        return context

    def trusting(self) -> ssl.SSLContext:
        """A client's, that trusts this CA alone."""
        context = ssl.create_default_context(cadata=self.pem)
        context.set_alpn_protocols(["http/1.1"])
        return context
