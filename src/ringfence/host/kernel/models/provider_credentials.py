"""A provider's key as it stands in a request's head. Pure. Must never say anything of the value."""

from __future__ import annotations

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward.secret import Secret


def check_headed(value: Secret) -> Secret:
    """Invalid: it cannot stand there. A line's end at its own end may be there, as files have it: it is not sent."""
    text = value.reveal().strip()
    if not text or any(not 0x21 <= byte <= 0x7E for byte in text):  # RFC 9110 5.5, RFC 6750 2.1: visible ASCII
        raise Invalid(
            "the key of a model is one line of visible ASCII characters, and this is not: it cannot stand in a header",
            remedy="give the key alone: printf %s KEY | ringfence secret set ...",
        )
    return value
