"""For the leak scan: keys that are nowhere but in the vault, opened as the vault itself opens them, so that there is something to
look for. Must never write to the database, nor keep what it opened.
"""

from __future__ import annotations

import sqlite3
from base64 import b64decode
from contextlib import closing
from dataclasses import fields

from ringfence.host.kernel.outward.credentials import Credential, Owner, Sealed
from ringfence.host.vault import sealing
from ringfence.prove.outward_stage import database
from ringfence.prove.stage import Stage

_SCALAR = slice(36, 68)  # of a P-256 key in PKCS 8 (RFC 5915, 5958): behind the algorithm and two headers
_ROW = """
SELECT c.*, v.kek, v.wrapped_key, v.data FROM credentials c
JOIN credential_versions v ON v.credential = c.id AND v.version = c.version
JOIN users u ON u.id = c."user" WHERE u.name = ? AND c.kind = ?
"""


def authority_key(stage: Stage, user: str) -> bytes:
    """The number that is the key of the user's CA: 32 bytes."""
    return b64decode("".join(_pem(stage, user)))[_SCALAR]


def authority_pem(stage: Stage, user: str) -> bytes:
    """What of its PEM is the number's and within one line: 48 characters before it say P-256, and 64 are a line."""
    return _pem(stage, user)[1][:26].encode()


def data_key(stage: Stage, user: str) -> bytes:
    """Under which the value of the user's credential lies."""
    kek, credential, sealed = _stored(stage, user, "opaque")
    about = sealing.associated(credential, credential.version)
    return sealing._unlocked(kek, sealed.wrapped_key, about)


def _pem(stage: Stage, user: str) -> list[str]:
    """The lines of the key's PEM."""
    text = sealing.unseal(*_stored(stage, user, "authority")).reveal().decode()
    body = text.partition("-----BEGIN PRIVATE KEY-----\n")[2].partition("-----END")[0]
    return body.splitlines()


def _stored(stage: Stage, user: str, kind: str) -> tuple[bytes, Credential, Sealed]:
    with closing(sqlite3.connect(f"file:{database(stage.made)}?mode=ro", uri=True, timeout=10)) as wire:
        wire.row_factory = sqlite3.Row
        row = wire.execute(_ROW, (user, kind)).fetchone()
    known = {field.name: row[field.name] for field in fields(Credential) if field.name in row.keys()}  # noqa: SIM118
    credential = Credential(**{**known, "owner": Owner(row["owner"])})
    sealed = Sealed(row["id"], row["version"], row["kek"], row["wrapped_key"], row["data"], row["mac"])
    return stage.canaries.vault_key, credential, sealed
