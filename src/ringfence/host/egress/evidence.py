"""The intent lane of one worker: a row before a write leaves its box, and how it ended. The rows of no other worker.

A worker that ends takes with it what it knew: what it had not told the end of is unknown. Must never take a worker's word for
more than its word: the rows say that a worker said so.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress

from ringfence.host.egress.needs import Intent, Outcome
from ringfence.host.egress.refusals import Code
from ringfence.host.egress.site import Home
from ringfence.host.kernel.audit import Outcome as Ended
from ringfence.host.kernel.auditing import Audit
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.outward.ports import Invoker

# Refusals of the worker that come before anything is sent (exchange.py's order). `upstream_failed` may come after it too.
_BEFORE = frozenset({Code.UPSTREAM_TLS, Code.ADDRESS, Code.CREDENTIAL, Code.TOO_MANY, Code.SPENT, Code.EXPIRED})
_PATH = 512  # characters


class Evidence:
    def __init__(self, home: Home, audit: Audit) -> None:
        self._home, self._audit = home, audit
        self._open: set[str] = set()

    async def begun(self, who: Invoker, intent: Intent) -> str:
        """The row's id, durable. RingfenceError: there is no row, and nothing may leave."""
        details = {
            "user": who.user,
            "command": who.key,
            "run": who.run,
            "step": step_of(who),
            "invocation": intent.invocation,
            "host": intent.host,
            "port": intent.port,
            "method": intent.method,
            "path": recorded(intent.path),
            "credential": intent.credential,
            "binding": intent.binding,
        }
        row = await self._audit.intent(None, "egress.request", f"box:{self._home.box}", details)
        self._open.add(row)
        return row

    async def ended(self, row: str, outcome: Outcome) -> None:
        """A row that is not this worker's, or has an end, is passed over. RingfenceError: it is open still."""
        if row not in self._open:
            return
        self._open.discard(row)  # first: said twice, it counts once
        details = {"status": outcome.status, "error": outcome.error, "sent": outcome.up, "received": outcome.down}
        try:
            await self._audit.outcome(row, _meaning(outcome), details)
        except BaseException:
            self._open.add(row)
            raise

    async def unknown(self) -> None:
        """Of all that have no end. One that the audit does not take keeps no other from its own."""
        rows, self._open = self._open, set()
        await asyncio.gather(*map(self._unknown, sorted(rows)))

    async def _unknown(self, row: str) -> None:
        with suppress(RingfenceError):  # a row without an outcome says the same
            await self._audit.outcome(row, Ended.UNKNOWN, {"error": "the worker ended first"})


def recorded(path: str) -> str:
    """As a row has it: a long one by its beginning and its SHA-256. It was judged whole."""
    if len(path) <= _PATH:
        return path
    return f"{path[:_PATH]}... sha256:{hashlib.sha256(path.encode()).hexdigest()}"


def step_of(who: Invoker) -> int | None:
    """Of a command that a run's step asked for: its key is `s/RUN/STEP`."""
    kind, _, rest = who.key.partition("/")
    _, _, number = rest.rpartition("/")
    return int(number) if kind == "s" and who.run and number.isdecimal() and len(number) < 10 else None


def _meaning(outcome: Outcome) -> Ended:
    if outcome.status:
        return Ended.DONE
    return Ended.NOT_DONE if outcome.error in {str(each) for each in _BEFORE} else Ended.UNKNOWN
