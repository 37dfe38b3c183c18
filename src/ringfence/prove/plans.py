"""What a hostile box is to do, and what it says that it saw: two files in its home, the same for every group of rows.

Must never be taken for what the server did: a box writes what it likes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ringfence.client.errors import ApiError
from ringfence.client.sync import SyncClient


def give(client: SyncClient, user: str, plan: Mapping[str, Any]) -> None:
    """Anew: what was begun before counts in it. ApiError."""
    client.put_file(user, "plan.json", json.dumps(plan).encode())


def seen(client: SyncClient, user: str) -> list[dict[str, Any]]:
    """In order; nothing while there is no such file. A line that is not whole yet is left out."""
    try:
        data = bytes(client.get_file(user, "seen.jsonl"))
    except ApiError:
        return []
    whole, _, _ = data.rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines()]
