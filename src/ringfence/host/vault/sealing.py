"""How a value is sealed: AES-256-GCM under a key of its own, which is wrapped by the key-encryption key (KEK). Bytes in, bytes
out; no file, no store.

Each version has a fresh 256-bit key and fresh 96-bit nonces, so a nonce repeats under one key only by the KEK: 2^32 versions
of it stay below the 2^-32 of NIST SP 800-38D, 8.3. Both layers have the same associated data, which says whose value this is,
under which name, as which version and kind, and where others may have it sent: what is moved to another row, or made another
kind, does not open. A version's MAC lies with the credential,
under a key that only the version's own key gives: a credential that names another version than the one it was written for does
not open either. Must never say a value, nor let one into an error.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import replace

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ringfence.host.kernel.canonical import canonical_json
from ringfence.host.kernel.errors import Failed
from ringfence.host.kernel.outward.credentials import Credential, Sealed
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.storing import AUTHORITY

KEY_BYTES = 32
_NONCE_BYTES = 12
_LEAST = _NONCE_BYTES + 16  # nonce and tag


def kek_id(key: bytes) -> str:
    """16 hex digits that name a key and tell nothing of it."""
    return hashlib.sha256(b"ringfence vault key\0" + key).hexdigest()[:16]


def associated(credential: Credential, version: int) -> bytes:
    """Whose value it is, of what kind, and where others may have it sent. The id too: a name that is used again after a revocation
    is another credential."""
    owner, user = credential.owner.value, credential.user or ""
    said = [credential.tenant, owner, user, credential.name, credential.id, version, credential.kind, credential.reach]
    return canonical_json(said)


def seal(kek: bytes, credential: Credential, value: Secret) -> Sealed:
    """As `credential.version`."""
    own, about = AESGCM.generate_key(KEY_BYTES * 8), associated(credential, credential.version)
    return Sealed(
        credential=credential.id,
        version=credential.version,
        kek=kek_id(kek),
        wrapped_key=_locked(kek, own, about),
        data=_locked(own, value.reveal(), about),
        mac=_mac(own, about),
    )


def unseal(kek: bytes, credential: Credential, sealed: Sealed) -> Secret:
    """Failed: not what was sealed."""
    about = associated(credential, credential.version)
    if (sealed.credential, sealed.version) != (credential.id, credential.version):
        raise _strange(credential)
    try:
        own = _unlocked(kek, sealed.wrapped_key, about)
        if not hmac.compare_digest(_mac(own, about).encode(), sealed.mac.encode(errors="replace")):
            raise ValueError("mac")
        return Secret(_unlocked(own, sealed.data, about))
    except (InvalidTag, ValueError):
        raise _strange(credential) from None


def rewrap(kek: bytes, new: bytes, credential: Credential, sealed: Sealed) -> Sealed:
    """The same version, its key wrapped by `new`. Failed: `kek` does not open it."""
    about = associated(credential, sealed.version)
    try:
        own = _unlocked(kek, sealed.wrapped_key, about)
    except (InvalidTag, ValueError):
        raise _strange(credential) from None
    return replace(sealed, kek=kek_id(new), wrapped_key=_locked(new, own, about))


def _locked(key: bytes, plain: bytes, about: bytes) -> bytes:
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, about)


def _unlocked(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """InvalidTag, ValueError."""
    if len(sealed) < _LEAST:
        raise ValueError("too short")
    return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], about)


def _mac(own: bytes, about: bytes) -> str:
    return hmac.digest(hmac.digest(own, b"ringfence newest", "sha256"), about, "sha256").hex()


def _strange(credential: Credential) -> Failed:
    anew = "ringfence vault forget-ca U" if credential.kind == AUTHORITY else "ringfence secret set"
    return Failed(
        f"the stored value of {credential.name!r} is not what was sealed: it was altered, moved, or an older one put back",
        remedy=f"store it again: {anew}; and look who writes to the database: ringfence db check",
        credential=credential.id,
    )
