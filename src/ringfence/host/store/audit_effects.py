"""What the audit says of effects: an intent for each try, and each time that more of it is known, an outcome.

Written in the transactions of the ledger, so that neither is there without the other. Must never be told what a call says or
what came back: key and digest name both.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Row

from ringfence.host.kernel.audit import Lane, Outcome, row_id
from ringfence.host.kernel.gates import Gate, GateAnswer
from ringfence.host.store.audit_chain import Chain, Draft
from ringfence.host.store.transaction import Tx


def tell_intent(tx: Tx, chain: Chain, row: Row[Any]) -> str:
    """Of the try that begins when this transaction is on disk: its id."""
    details = {"key": row.key, "digest": row.digest, "gate": row.gate, "user": row.user, "try": row.tries + 1}
    head = chain.append(tx, Draft(Lane.INTENT, None, f"effect.{row.capability}", f"run:{row.run}", details))
    return row_id(head.chain, head.seq)


def tell_outcome(tx: Tx, chain: Chain, row: Row[Any], outcome: Outcome | None, answered: Gate | None) -> None:
    """Of the last try; nothing when there was none, or when nothing new is known of it. `answered`: by a person."""
    if row.intent is None or outcome is None:
        return
    details: dict[str, Any] = {"outcome": outcome.value}
    if answered is not None and answered.answer is not None:
        details |= {"gate": answered.id, "by": answered.answered_by, "answer": answered.answer.value}
        if answered.answer is GateAnswer.AGAIN:
            details["outcome"] = Outcome.UNKNOWN.value  # whoever has it done again does not say that it was not
    chain.append(tx, Draft(Lane.INTENT, None, "outcome", f"run:{row.run}", details, row.intent))
