"""SHA-256 without `hashlib`, whose OpenSSL takes longer to load (7 ms) than a turn takes to be digested."""

try:
    from _sha2 import sha256 as _make  # type: ignore[import-not-found, unused-ignore]
except ImportError:  # before Python 3.12
    from _sha256 import sha256 as _make  # type: ignore[import-not-found, unused-ignore]


def sha256(data: bytes) -> str:
    """In hex."""
    return str(_make(data).hexdigest())
