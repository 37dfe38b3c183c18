"""Why the server gives a worker nothing, as its box is told: a closed set of texts. Pure.

Must never say what an error says: that has paths, addresses and statements of this host in it, and what a service has
answered. The log has it.
"""

from __future__ import annotations

from ringfence.host.kernel.errors import Failed, NotFound, Unavailable
from ringfence.host.kernel.outward import renewing

UNBOUND = "the credential is not bound here any more"
ENDED = "its command has ended"
SPENT = "the stand-in was used as often as it may be"
TOO_MANY = "too many requests of this box are to be recorded: wait and try again"
UNRECORDED = "the audit does not take it now"
_GONE = "it is revoked, or not yours to use any more"
_SIGN_IN = f"the service gives no access token for it: {renewing.OWNER}"
_LATER = "there is no access token for it now: try again in a minute"
_SHUT = "the vault, or the record of its use, cannot be reached now"
_DAMAGED = "what is stored is not what was sealed: its owner stores it anew: ringfence secret set U NAME"
_FAULT = "a fault of the server, whose log says more"


def of(error: Exception) -> str:
    """Of a value that is not to be had."""
    match error:
        case NotFound():
            return _GONE
        case Unavailable(remedy=renewing.OWNER):
            return _SIGN_IN
        case Unavailable(remedy=renewing.LATER):
            return _LATER
        case Unavailable():
            return _SHUT
        case Failed():
            return _DAMAGED
        case _:
            return _FAULT
