"""The path of a request as it is told to others than its server: the kernel, the audit, a finding. Pure.

A stand-in is worth a credential while its command runs, and a rule may let one through as it stands: it must never be
told.
"""

from __future__ import annotations

from ringfence.host.kernel.outward import placeholders

_SHOWN = 256  # characters


def path(text: str) -> str:
    """Whole, for who has to judge it."""
    for start, end in reversed(placeholders.find(text.encode("latin-1", "replace"))):
        text = f"{text[:start]}[placeholder]{text[end:]}"
    return text


def beginning(text: str) -> str:
    """For people: without the end of a long one, where tokens of some services are."""
    told = path(text)
    return told if len(told) <= _SHOWN else told[:_SHOWN] + "..."
