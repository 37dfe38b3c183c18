"""Gates: questions that park a run until somebody answers them."""

from __future__ import annotations

from collections.abc import Sequence

from ringfence.client import urls
from ringfence.client.connection import Connection, Json


class Gates(Connection):
    async def gates(
        self, *, states: Sequence[str] = (), run: str | None = None, limit: int = 100, tenant: str | None = None
    ) -> list[Json]:
        """Newest first: one's own and those that are one's to answer, without the calls. Without `states`: the open ones."""
        query = urls.query(run=run, limit=limit) + "".join(f"&state={urls.segment(state)}" for state in states)
        return list((await self._json("GET", self._in_tenant(tenant, "gates") + query))["gates"])

    async def gate(self, gate: str) -> Json:
        answer: Json = await self._json("GET", f"/v1/gates/{urls.segment(gate)}")
        return answer

    async def answer_gate(self, gate: str, answer: str, *, key: str | None = None) -> Json:
        """`allow` or `deny`; of one in doubt `done`, `not_done` or `again`; of `auth` and `setup` `done` or `deny`. The gate
        as it is then. Conflict: it has another answer, has expired, was cancelled. Refused: it is another's to answer."""
        body = {"answer": answer, "key": key}
        said: Json = await self._json("POST", f"/v1/gates/{urls.segment(gate)}/answer", body)
        return said
