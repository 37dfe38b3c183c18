"""What may be stored as a credential, and how much. Pure. Must never show a value."""

from __future__ import annotations

import re

from ringfence.host.kernel.errors import Invalid, NameInvalid, TooLarge
from ringfence.host.kernel.outward.secret import Secret

MAX_VALUE = 64 * 1024  # bytes; the longest that are met are JSON keys of service accounts, 2.4 KiB
MAX_CREDENTIALS = 500  # live ones of one user, and of one tenant
MAX_BINDINGS = 500  # live ones of one user: all of them are in its worker's configuration
MAX_RULES = 1000  # live ones of one layer of one owner, for the same reason
# And their paths and bytes of JSON together. A matcher has a node of 0.3 KiB for each segment of a path: 256 KiB of the
# shortest segments, of two characters, are 128 Ki nodes, 40 MiB, and half a second to make.
MAX_RULE_PATHS, MAX_RULE_BYTES = 4000, 256 * 1024
AUTHORITY = "authority"  # the kind of a user's CA
AUTHORITY_NAME = "~ca"  # no name that `check_credential_name` lets through
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def check_credential_name(name: str) -> str:
    """The name itself. NameInvalid."""
    if not _NAME.fullmatch(name) or name.startswith("crd_"):  # an id, by which a credential is named too
        raise NameInvalid(
            f"the credential name {name[:64]!a} is not allowed",
            remedy="take 1 to 64 of a-z, 0-9, dot, underscore and dash, the first a letter or a digit; not crd_...",
        )
    return name


def check_value(value: Secret) -> Secret:
    """The value itself. Invalid: empty. TooLarge."""
    if not len(value):
        raise Invalid("the value is empty", remedy="give it on standard input")
    if len(value) > MAX_VALUE:
        raise TooLarge(
            f"the value has {len(value)} bytes; the limit is {MAX_VALUE}",
            remedy="store what has to be secret alone",
            size=len(value),
            limit=MAX_VALUE,
        )
    return value
