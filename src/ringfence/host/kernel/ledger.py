"""Gates and effects as the store keeps them: the part of `kernel.ports` that stands between a decision and an effect.

Every method raises only errors of `kernel.errors`; each protocol lists the particular ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Protocol

from ringfence.host.kernel.dispatch import Dispatch
from ringfence.host.kernel.effects import EffectRow, EffectState
from ringfence.host.kernel.gates import Gate, GateAnswer, GateId, GateState, Question
from ringfence.host.kernel.ids import RunId, TenantId, UserId
from ringfence.host.kernel.runs import Step

Sign = Callable[[Gate], str]  # the mac of a question, or of an answer. Pure
Unusable = Callable[[Gate, datetime], str]  # "" or why it lets nothing through at that time. Pure


class Gates(Protocol):
    """StaleEpoch, NotFound."""

    async def ask(self, run: RunId, epoch: int, question: Question, sign: Sign) -> Gate:
        """The gate, and the run parked, in one transaction: no lease, no token, attempts counted anew. Exhausted: too many
        are open for the user, or were asked by the run; never of one in doubt. Conflict: the step is not under way, the run is being cancelled."""

    async def get(self, gate: GateId) -> Gate: ...
    async def of_run(self, run: RunId) -> list[Gate]:
        """Oldest first."""

    async def of_users(self, users: Iterable[UserId], states: Iterable[GateState], limit: int) -> list[Gate]:
        """Newest first, without their arguments: caused by one of them, or theirs to answer as owner."""

    async def of_tenant(self, tenant: TenantId, states: Iterable[GateState], limit: int) -> list[Gate]:
        """Newest first, without their arguments."""

    async def open_here(self) -> list[GateId]:
        """Those that no other installation could have asked: of users whose box is here, or all where there is one."""

    async def disown(self, gate: GateId, genuine: Callable[[Gate], bool]) -> bool:
        """An open gate that is not genuine is expired with the reason `ANEW`, and its run queued, which asks again. Whether
        it was."""

    async def answer(
        self,
        gate: GateId,
        answer: GateAnswer,
        by: UserId,
        via: str,
        key: str,
        sign: Sign,
        genuine: Callable[[Gate], bool],
    ) -> tuple[Gate, bool]:
        """(gate, whether this answer had been given before). The answer, kept under its key, and the run queued, in one
        transaction. The same answer by the same user is one, whatever its key. A gate whose time is over is expired then,
        and answered as such. Conflict: it has another answer, is closed, or is not genuine. KeyReused."""

    async def use(self, run: RunId, epoch: int, gate: GateId, unusable: Unusable) -> Gate:
        """The one use of an answered gate whose call is no effect of the host: advice. Conflict: not usable, and why."""

    async def void(self, run: RunId, epoch: int, gate: GateId, reason: str) -> Gate:
        """An approval that cannot be used any more."""

    async def due(self, limit: int) -> list[GateId]:
        """Open gates whose time is over, the oldest first."""

    async def expire(self, gate: GateId) -> Gate:
        """An open gate whose time is over is expired and its run queued; as it is then."""


class Effects(Protocol):
    """StaleEpoch: the epoch is not the run's, or the run does not run. NotFound. Conflict: the ledger says otherwise.

    Whatever becomes known of a try is an outcome in the audit, in the transaction that the ledger learns it in."""

    async def get(self, run: RunId, n: int) -> EffectRow | None: ...
    async def of_run(self, run: RunId) -> list[EffectRow]: ...
    async def intend(self, dispatch: Dispatch, epoch: int, unusable: Unusable) -> EffectRow:
        """The intent, and the approval that it needs used up, in one transaction. A step that has one already is answered
        with it. Conflict: the approval is not usable, and why; the run is being cancelled."""

    async def mark(
        self,
        run: RunId,
        epoch: int,
        n: int,
        state: EffectState,
        outcome: Mapping[str, Any] | None = None,
        *,
        tries: int | None = None,
    ) -> EffectRow:
        """To a state that is no end. `sent`: before the first byte goes out, with its intent in the audit in the same
        transaction; Conflict: the run is being cancelled. `tries`: those of the row that was looked at; Conflict: it was
        sent once more since."""

    async def judge(
        self, run: RunId, epoch: int, n: int, policy: str, gate: GateId | None, unusable: Unusable
    ) -> EffectRow:
        """Of one without an end: it is let out by this policy from now on, the approval that this one asks for used up in the
        same transaction. Conflict: the approval is not usable, and why; it has an end."""

    async def mend(self, run: RunId, epoch: int, n: int, gate: GateId, unusable: Unusable, sealed: str) -> EffectRow:
        """Of one that is only intended: what it refers to is `sealed` from now on, the gate used up in the same transaction.
        Conflict: the gate is not usable, and why; it is not only intended."""

    async def settle(
        self,
        run: RunId,
        epoch: int,
        n: int,
        state: EffectState,
        outcome: Mapping[str, Any],
        result: Mapping[str, Any],
        *,
        tries: int | None = None,
    ) -> Step:
        """Its end and that of its step, in one transaction. `tries`: as in `mark`."""

    async def settle_late(
        self, run: RunId, epoch: int, n: int, state: EffectState, outcome: Mapping[str, Any]
    ) -> EffectRow | None:
        """What became known after the run had ended under that epoch. None: nobody waits for it any more."""

    async def resolve(
        self,
        run: RunId,
        epoch: int,
        n: int,
        gate: GateId,
        unusable: Unusable,
        result: Callable[[Gate], Mapping[str, Any]],
    ) -> Step | None:
        """What a person said of an effect in doubt, the gate used up: the step's end, or None when it is to be carried out
        again."""
