"""What a worker would load at its first use, loaded by the template: a worker can open no file. Must stay the one place
that knows it; a module that imports late adds itself here."""

from __future__ import annotations

import asyncio
import encodings.ascii
import encodings.idna
import encodings.latin_1
import encodings.punycode
import encodings.utf_8
import socket
import ssl
import unicodedata
from datetime import UTC, datetime, timedelta

import dns.message
import dns.rdata
import dns.rdatatype
import h11
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

CODECS = (encodings.ascii, encodings.idna, encodings.latin_1, encodings.punycode, encodings.utf_8, unicodedata)


def warm() -> None:
    """Runs once what keeps something for later: the TLS library's configuration, a certificate, a message of each kind, the
    parts of an event loop."""
    for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        ssl.SSLContext(protocol)
    _certificate()
    # 1 MiB; else dnspython looks for each type's module when it first meets one, in a question of the box too
    dns.rdata.load_all_types()  # type: ignore[no-untyped-call]
    dns.message.from_wire(dns.message.make_query("example.test", dns.rdatatype.A, use_edns=0).to_wire())
    h11.Connection(h11.SERVER).receive_data(b"")
    with asyncio.Runner() as runner:
        runner.run(_nothing())
    for end in socket.socketpair():
        end.close()


def _certificate() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "example.test")])
    now = datetime(2000, 1, 1, tzinfo=UTC)  # of nothing that is kept
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


async def _nothing() -> None:
    await asyncio.sleep(0)
