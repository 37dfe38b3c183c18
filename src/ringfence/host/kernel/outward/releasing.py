"""What the audit says of a value that is given out. Pure. Must never be told the value."""

from __future__ import annotations

from ringfence.host.kernel.outward.credentials import Credential
from ringfence.host.kernel.outward.ports import Wanted

# Characters of host, method and path in the row: a worker says them. 512 of a path and its digest are less
# (evidence.recorded).
_LONGEST = 640


def release_row(credential: Credential, wanted: Wanted) -> tuple[str, str, dict[str, object]]:
    """(subject, to whom, details)."""
    request = {"host": wanted.host, "method": wanted.method, "path": wanted.path}
    details: dict[str, object] = {
        "name": credential.name,
        "version": credential.version,
        "user": wanted.user,
        "binding": wanted.binding,
        "invocation": wanted.invocation,
        "run": wanted.run,
        "step": wanted.step,
        **{name: text[:_LONGEST] for name, text in request.items()},
    }
    return f"credential:{credential.id}", f"box:{wanted.box}", details
