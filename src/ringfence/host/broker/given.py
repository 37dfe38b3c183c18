"""The runs that a box was given, as the broker knows them: their tokens, what they have spent, which to hear no more.

Bounded: a run is forgotten once it has finished and its loop has ended, whichever comes last, and at the latest when a
thousand newer ones were given. It must never give a run that goes on its budget anew: that is for its life, over all
attempts in this start of the box.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection
from dataclasses import dataclass, field

from ringfence.wire.messages import METHODS

_MAX_RUNS = 1024  # remembered for each box; a box works on a handful at once
_NO_TOKEN = bytes(32)


@dataclass(slots=True)
class _Run:
    token: bytes  # SHA-256 of it
    broken: bool = False  # its loop broke a rule and has not ended yet
    over: bool = False  # it has finished; one that failed may be tried again
    looped: bool = True  # its loop lives, as far as was heard
    spent: dict[str, int] = field(default_factory=dict)  # method -> how often it was said


class GivenRuns:
    """Of one start of one box."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, run: str) -> bool:
        return run in self._runs

    def give(self, run: str, token: str) -> None:
        """One more attempt at a run, with a new loop."""
        known = self._runs.pop(run, None)
        while len(self._runs) >= _MAX_RUNS:
            quiet = (name for name, old in self._runs.items() if not old.looped)
            del self._runs[next(quiet, next(iter(self._runs)))]
        self._runs[run] = _Run(_digest(token), spent=known.spent if known is not None else {})

    def claim(self, run: str, token: str) -> None:
        """The guest says hello with a run. What this kernel gave it counts more; for a run of an earlier kernel the
        engine compares the token with the store's before it adopts the run."""
        if run not in self._runs:
            self.give(run, token)

    def proves(self, run: str, token: str) -> bool:
        """The box was given the run, and this is its token. Takes as long for a run that it was not given."""
        known = self._runs.get(run)
        return hmac.compare_digest(_digest(token), known.token if known is not None else _NO_TOKEN)

    def spend(self, run: str, method: str) -> bool:
        """Counts an ask of a run; False beyond the budget of METHODS."""
        budget, known = METHODS[method].budget, self._runs.get(run)
        if known is None:
            return False
        spent = known.spent.get(method, 0)
        if budget and spent >= budget:
            return False
        known.spent[method] = spent + 1
        return True

    # --- broken rules --------------------------------------------------------------------------------------------

    def broke(self, run: str) -> None:
        """The loop of the run said what no loop may say."""
        if run in self._runs:
            self._runs[run].broken = True

    def is_broken(self, run: str) -> bool:
        known = self._runs.get(run)
        return known is not None and known.broken

    def broken(self, living: Collection[str]) -> list[str]:
        """Runs whose loop is to be ended; those that are not among `living` have."""
        for name, run in self._runs.items():
            run.broken = run.broken and name in living
        return sorted(name for name, run in self._runs.items() if run.broken)

    # --- ends ----------------------------------------------------------------------------------------------------

    def loop_ended(self, run: str) -> None:
        known = self._runs.get(run)
        if known is not None:
            known.broken = known.looped = False
            self._forget_ended(run, known)

    def over(self, run: str) -> None:
        """The run has finished. Its token holds until its loop has ended, which may have missed the answer and ask again."""
        known = self._runs.get(run)
        if known is not None:
            known.over = True
            self._forget_ended(run, known)

    def _forget_ended(self, run: str, known: _Run) -> None:
        if known.over and not known.looped:
            del self._runs[run]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8")).digest()
