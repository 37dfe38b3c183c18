"""What an installation has left behind on its host, for operators."""

from __future__ import annotations

from collections.abc import Sequence

from ringfence.client.connection import Connection, Json


class Sweep(Connection):
    async def sweep(self, *, dry_run: bool = False, boxes: Sequence[str] = ()) -> Json:
        """{"found", "dry_run", "ids"}. `boxes`: ids of boxes without an owner that are to go, as an earlier one has shown them."""
        answer: Json = await self._json("POST", "/v1/sweep", {"dry_run": dry_run, "boxes": list(boxes)})
        return answer
