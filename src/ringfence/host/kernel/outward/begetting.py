"""Requests whose answer is a credential: what services are asked for tokens by (E15 of the attack list). Pure.

An answer like that would be a real credential in a box, got with one that never enters it. Such a request goes out with
a credential only where the binding names paths of its own: its owner has then said so. Must never be the only wall:
what a service gives under another name is not known here.
"""

from __future__ import annotations

import re

from ringfence.host.kernel.outward.credentials import Binding
from ringfence.host.kernel.outward.rules import Request

_WRITES = frozenset({"POST", "PUT", "PATCH"})
# The last segment: /oauth/token, /app/installations/1/access_tokens, /actions/runners/registration-token,
# /-/npm/v1/tokens, /_/oidc/mint-token, /realtime/client_secrets, /organization/admin_api_keys. Of GitLab also
# /access_tokens/1/rotate.
_LAST = re.compile(r"(?:.*[-_.])?(?:tokens?|secrets?|api[-_]?keys?|credentials?)", re.IGNORECASE)
_ROTATED = re.compile(r".*tokens?/[^/]+/rotate", re.IGNORECASE)
_COUNTED = frozenset({"count_tokens"})  # of Anthropic's interface: how many words a message has
WHY = "the answer to this request is a credential, and would be a real one in the box"
REMEDY = "the owner of the credential names the path where it is bound: ringfence secret bind U NAME ... --path /..."


def begets(request: Request, binding: Binding) -> bool:
    """Whether its answer is likely to be a credential, and the binding names no path."""
    if binding.paths or request.method not in _WRITES:
        return False
    path = request.path.rstrip("/")
    last = path.rpartition("/")[2]
    return last not in _COUNTED and (_LAST.fullmatch(last) is not None or _ROTATED.fullmatch(path) is not None)
