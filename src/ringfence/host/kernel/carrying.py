"""What is done next about an effect that the host carries out for a step: one pure function of what is known of it.

    it has an end                      OVER: the step has one too
    nothing tried or looked at yet     SEND what is only intended; SEEK evidence of what may have gone out
    nothing more is to be tried        SETTLE as what was said
    turned away, can be mended         MEND
    done                               SETTLE
    not done                           SEND while it may go well a moment later; else SETTLE
    unknown, once                      SEEK after a try; ASK a person when it was looked for
    unknown, else                      SEND under the same key; SETTLE when it was tried often enough

It must never let a `once` go out again but on evidence that it did not arrive.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from ringfence.host.kernel.capabilities import Sent
from ringfence.host.kernel.effects import IN_DOUBT, EffectRow, EffectState
from ringfence.host.kernel.runs import Evidence


@dataclass(frozen=True, slots=True)
class Going:
    """An effect on its way, in one attempt of its run."""

    row: EffectRow  # as the ledger has it
    tries: int = 0  # of this attempt
    sent: Sent | None = None  # what the last try, or the last look, said; None: there was none, or it is in the ledger
    looked: bool = False  # `sent` is evidence and not the answer to a try
    last: bool = False  # nothing more is to be tried


class Next(StrEnum):
    OVER = "over"
    SEND = "send"  # under its key, should it still be let through
    SEEK = "seek"  # evidence; what a person has said of it comes first
    MEND = "mend"  # a person mends what it was turned away for
    ASK = "ask"  # a person says what became of it
    SETTLE = "settle"


def next_of(going: Going, *, once: bool, most: int) -> Next:
    """`once`: also of what is not declared any more, which may have been one. `most`: times that it is tried; 0: it
    cannot be."""
    if going.row.state in (EffectState.DONE, EffectState.NOT_DONE):
        return Next.OVER
    sent = going.sent
    if sent is None:
        return Next.SEEK if going.row.state in IN_DOUBT else Next.SEND
    if going.last:
        return Next.SETTLE
    if sent.need is not None:
        return Next.MEND
    return _after(sent, once=once, looked=going.looked, more=going.tries < most)


def _after(sent: Sent, *, once: bool, looked: bool, more: bool) -> Next:
    if sent.evidence is Evidence.DONE:
        return Next.SETTLE
    if sent.evidence is Evidence.NOT_DONE:
        return Next.SEND if more and sent.retry else Next.SETTLE
    if once:
        return Next.ASK if looked else Next.SEEK
    return Next.SEND if more else Next.SETTLE


def of_all_tries(sent: Sent, *, unclear: bool) -> Sent:
    """`unclear`: what came of a try before this one, of which that this was refused says nothing."""
    return replace(sent, evidence=Evidence.UNKNOWN) if unclear and sent.evidence is Evidence.NOT_DONE else sent
