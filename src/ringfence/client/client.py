"""The SDK, async. One object for everything; answers are the API's JSON as dicts, documented at /v1/openapi.json.

Holds no state but its connections. Every method raises ApiError and nothing else.
"""

from __future__ import annotations

from ringfence.client.audit import Audit
from ringfence.client.backup import Backup
from ringfence.client.boxes import Boxes
from ringfence.client.connection import Json
from ringfence.client.copies import Copies
from ringfence.client.egress import Egress
from ringfence.client.files import Files
from ringfence.client.logs import Logs
from ringfence.client.people import People
from ringfence.client.runs import Runs
from ringfence.client.saying import Saying
from ringfence.client.secrets import Secrets
from ringfence.client.sweep import Sweep
from ringfence.client.usage import Usage


class Client(People, Boxes, Copies, Files, Saying, Runs, Audit, Secrets, Egress, Usage, Backup, Sweep, Logs):
    """`socket` (operators), or `url` and `token`; neither: as the environment says. `act_as`: an operator acts as that
    user of `tenant`; `tenant` is also the default of every method."""

    async def health(self) -> Json:
        """Needs no credential."""
        answer: Json = await self._json("GET", "/v1/health")
        return answer

    async def status(self) -> Json:
        answer: Json = await self._json("GET", "/v1/status")
        return answer
