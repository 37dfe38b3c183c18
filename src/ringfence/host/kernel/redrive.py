"""What becomes of a run whose executor is gone: the table of architecture.md section 7 as one pure function.

Facts in, a plan out. It must never let a step of effect `once` happen again without evidence that it did not happen: the
only ways to `EXECUTE` are an intent that was never sent, and evidence that says `not_done`.

    cancel asked             a once unclear -> SEEK; else CANCEL, whatever the evidence says
    a gate is open           STAY parked
    an ask differed          FAIL diverged
    held back                HOLD in the queue, no attempt counted
    a once unclear           SEEK evidence, before anything else is decided: the record is to be right however it ends
    3 attempts spent         FAIL retries_exhausted
    something changed        FAIL incompatible when anything was recorded after the checkpoint
    cannot be replayed       its own SESSION; else FAIL not_replayable
    a once unknown           ASK: parked at a gate `in_doubt`
    otherwise                REQUEUE from the checkpoint, each step in doubt with what is done about it

A cancellation stands before an open gate: who wants the run ended does not want the question answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ringfence.host.kernel.runs import MAX_ATTEMPTS, Effect, Evidence


@dataclass(frozen=True, slots=True)
class Doubt:
    """A step that was begun and has no end."""

    n: int
    effect: Effect
    sent: bool = False  # the host may have sent it; False: it certainly has not (no intent, or one that is fenced off)
    evidence: Evidence | None = None  # of a `once` that may have been sent; None: not looked for yet
    answered: bool = False  # a person has said what is to be done, and the next attempt does it

    @property
    def unclear(self) -> bool:
        """Whether evidence has to be looked for."""
        return self.effect is Effect.ONCE and self.sent and not self.answered and self.evidence is None


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of the run now."""

    cancel_requested: bool = False
    gate_open: bool = False
    diverged: bool = False  # an ask was not what the journal has
    held_back: str = ""  # `quarantined`, `user_disabled`: why nothing may run for its actor now
    attempts: int = 1
    doubts: tuple[Doubt, ...] = ()
    changed: tuple[str, ...] = ()  # of `guest`, `harness`, `tree`: what is another one than when the run began
    recorded_after_checkpoint: bool = False
    # Until there is an ACP harness nothing sets these two, and `changed` never names `harness`: the native loop replays.
    replayable: bool = True  # its harness asks the same again and takes answers from the journal
    session: bool = False  # its harness can resume by a session of its own


class Action(StrEnum):
    STAY = "stay"  # parked: no lease, no process, no box
    HOLD = "hold"  # queued with the reason, no attempt counted
    SEEK = "seek"  # look for evidence of each unclear `once`, then decide again
    ASK = "ask"  # parked at a gate `in_doubt`
    CANCEL = "cancel"
    FAIL = "fail"
    SESSION = "session"  # queued; the harness resumes its own session. Never, until there is an ACP harness
    REQUEUE = "requeue"  # from the checkpoint, else from the start


class Do(StrEnum):
    """What is done about a step in doubt."""

    AGAIN = "again"  # pure, idempotent: under the same key
    ATTACH = "attach"  # local: the guest is asked by key
    EXECUTE = "execute"  # once: it did not happen
    DONE = "done"  # once: it happened, and is recorded as done
    NOT_DONE = "not_done"  # recorded so: the run ends
    UNKNOWN = "unknown"  # recorded so: the run ends
    INTERRUPT = "interrupt"  # any other step under way when the run ends
    ANSWERED = "answered"  # once: as a person has said, also when the run ends
    QUESTION = "question"  # once: a person says
    SEEK = "seek"


@dataclass(frozen=True, slots=True)
class Plan:
    action: Action
    reason: str = ""  # of a failure or a hold
    steps: tuple[tuple[int, Do], ...] = ()
    changed: tuple[str, ...] = ()

    @property
    def ends(self) -> bool:
        """Whether the run is over."""
        return self.action in (Action.CANCEL, Action.FAIL)


def redrive(found: Found) -> Plan:
    """Total: every combination of facts has a plan."""
    unclear = any(doubt.unclear for doubt in found.doubts)
    if found.cancel_requested:
        return _seek(found) if unclear else _end(found, Action.CANCEL, "cancelled")
    if found.gate_open:
        return Plan(Action.STAY)
    if found.diverged:
        return _seek(found) if unclear else _end(found, Action.FAIL, "diverged")
    if found.held_back:
        return Plan(Action.HOLD, found.held_back)
    if unclear:
        return _seek(found)
    if found.attempts >= MAX_ATTEMPTS:
        return _end(found, Action.FAIL, "retries_exhausted")
    if found.changed and found.recorded_after_checkpoint:
        return _end(found, Action.FAIL, "incompatible")
    if not found.replayable and not found.session:
        return _end(found, Action.FAIL, "not_replayable")
    steps = tuple((doubt.n, _next(doubt)) for doubt in found.doubts)
    if any(do is Do.QUESTION for _, do in steps):
        return Plan(Action.ASK, "in_doubt", steps)
    return Plan(Action.REQUEUE if found.replayable else Action.SESSION, "", steps, found.changed)


def _seek(found: Found) -> Plan:
    return Plan(Action.SEEK, "", tuple((doubt.n, Do.SEEK) for doubt in found.doubts if doubt.unclear))


def _end(found: Found, action: Action, reason: str) -> Plan:
    return Plan(action, reason, tuple((doubt.n, recorded(doubt)) for doubt in found.doubts), found.changed)


def recorded(doubt: Doubt) -> Do:
    """What the journal says of a step that was under way when its run ended."""
    if doubt.effect is not Effect.ONCE:
        return Do.INTERRUPT
    return _of_once(doubt, undone=Do.NOT_DONE, unknown=Do.UNKNOWN)


def _next(doubt: Doubt) -> Do:
    """How it goes on when the run does."""
    if doubt.effect is Effect.LOCAL:
        return Do.ATTACH
    if doubt.effect is not Effect.ONCE:
        return Do.AGAIN
    return _of_once(doubt, undone=Do.EXECUTE, unknown=Do.QUESTION)


def _of_once(doubt: Doubt, *, undone: Do, unknown: Do) -> Do:
    """`undone`: it certainly did not happen. `unknown`: there is no evidence either way."""
    if doubt.answered:
        return Do.ANSWERED
    if not doubt.sent or doubt.evidence is Evidence.NOT_DONE:
        return undone
    return Do.DONE if doubt.evidence is Evidence.DONE else unknown
