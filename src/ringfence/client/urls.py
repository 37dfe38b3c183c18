"""Names and bytes into URLs and headers. Pure."""

from __future__ import annotations

import os
from urllib.parse import quote

from ringfence.client.errors import Invalid


def segment(name: str) -> str:
    """One segment of a path. Dots are escaped where a URL library would take them for a step up. Invalid: no name at
    all, which would make the address of something else."""
    if not name:
        raise Invalid("invalid_name", "a name must not be empty", "give the name that is meant")
    quoted = quote(os.fsencode(name), safe="")
    return quoted.replace(".", "%2E") if name in (".", "..") else quoted


def user_path(tenant: str, user: str) -> str:
    return f"/v1/tenants/{segment(tenant)}/users/{segment(user)}"


def thread_path(tenant: str, thread: str) -> str:
    return f"/v1/tenants/{segment(tenant)}/threads/{segment(thread)}"


def query(**values: str | bytes | int | None) -> str:
    """ "?a=b&c=d", without those that are None."""
    pairs = [f"{name}={_value(value)}" for name, value in values.items() if value is not None]
    return "?" + "&".join(pairs) if pairs else ""


def _value(value: str | bytes | int | None) -> str:
    return quote(value if isinstance(value, bytes) else os.fsencode(str(value)), safe="")


def identity(token: str | None, act_as: str | None, tenant: str) -> dict[str, str]:
    """Headers that say who asks."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    if act_as is not None:
        headers |= {"Ringfence-As": segment(act_as), "Ringfence-Tenant": segment(tenant)}
    return headers
