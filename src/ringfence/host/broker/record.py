"""What the broker remembers of one PID 1, over every wire to it: commands, runs it was given, reports it made.

The guest's id (new at each start of a box) says whether a new wire leads to the same one. It must never hand anything
of one box, or of an earlier start of it, to another.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection

from ringfence.host.broker.commands import Wire, WireCommand
from ringfence.host.broker.outcomes import outcome
from ringfence.host.kernel.ids import BoxId, RunId
from ringfence.wire.messages import METHODS, CmdEnded

# Outcomes of commands that nobody holds now: a step of an earlier kernel, which its run will ask for again. The guest
# keeps at most 4 MiB of reports and then stops reading its commands, so less than a half of that is left to them.
_UNCLAIMED_BYTES = 1536 * 1024
_UNCLAIMED = 64
_MAX_RUNS = 1024  # remembered for each box; a box works on a handful at once
_NO_TOKEN = bytes(32)


class BoxRecord:
    def __init__(self, box: BoxId, guest: str) -> None:
        self.box = box
        self.guest = guest
        self.link: object | None = None  # the newest one, None between two wires
        self.commands: dict[str, WireCommand] = {}
        self.unwanted: set[str] = set()  # keys whose caller was told box_lost while they started: to be stopped
        self._unclaimed: dict[str, tuple[int, int]] = {}  # key -> (seq, bytes of the report)
        self._highest = 0  # of the numbers of reports seen; a guest sends new ones in order
        self._runs: dict[str, bytes] = {}  # run -> SHA-256 of its token
        self._broken: set[str] = set()  # runs whose loop broke a rule and has not ended yet
        self._spent: dict[tuple[str, str], int] = {}  # (run, method) -> how often it was said

    # --- commands ------------------------------------------------------------------------------------------------

    def forget(self, command: WireCommand) -> None:
        if self.commands.get(command.key) is command:
            del self.commands[command.key]

    def claim(self, key: str) -> None:
        """Somebody spawns this key: its report, if it was made, is sent again for them."""
        self._unclaimed.pop(key, None)

    def ended(self, seq: int, ended: CmdEnded, size: int, wire: Wire) -> None:
        """A cmd.ended. RemoteProtocolError: it makes no sense."""
        told = outcome(ended)
        new, self._highest = seq > self._highest, max(seq, self._highest)
        command = self.commands.get(ended.key)
        if command is not None:
            command.finish(seq, told)
        elif new and told.stdout is not None:  # kept output: of a step
            self._unclaimed[ended.key] = (seq, size)
            self._bound_unclaimed(wire)
        elif ended.key not in self._unclaimed:  # nobody will ask, or it was acknowledged and the wire lost that
            wire.acknowledge(seq)

    def _bound_unclaimed(self, wire: Wire) -> None:
        while len(self._unclaimed) > _UNCLAIMED or sum(size for _, size in self._unclaimed.values()) > _UNCLAIMED_BYTES:
            oldest = next(iter(self._unclaimed))
            wire.acknowledge(self._unclaimed.pop(oldest)[0])

    def new_report(self, seq: int) -> bool:
        """True once for each report that is not a command's."""
        new, self._highest = seq > self._highest, max(seq, self._highest)
        return new

    def lose(self, reason: str) -> None:
        """The box has ended: every command that has not is box_lost."""
        for command in list(self.commands.values()):
            command.lose(reason)

    # --- runs ----------------------------------------------------------------------------------------------------

    def give(self, run: str, token: str) -> None:
        """The box is given a run."""
        self._runs.pop(run, None)
        self._broken.discard(run)
        while len(self._runs) >= _MAX_RUNS:
            oldest = next(iter(self._runs))
            del self._runs[oldest]
            self._broken.discard(oldest)
            for key in [key for key in self._spent if key[0] == oldest]:
                del self._spent[key]
        self._runs[run] = _digest(token)

    def claim_run(self, run: RunId, token: str) -> None:
        """The guest says hello with a run. What this kernel gave it counts more; for a run of an earlier kernel the
        engine compares the token with the store's before it adopts the run."""
        if run not in self._runs:
            self.give(run, token)

    def has_run(self, run: str) -> bool:
        return run in self._runs

    def proves(self, run: str, token: str) -> bool:
        """The box was given the run, and this is its token. Takes as long for a run that it was not given."""
        return hmac.compare_digest(_digest(token), self._runs.get(run, _NO_TOKEN))

    def broke(self, run: str) -> None:
        """The loop of the run said what no loop may say."""
        if run in self._runs:
            self._broken.add(run)

    def is_broken(self, run: str) -> bool:
        return run in self._broken

    def broken(self, living: Collection[str]) -> list[str]:
        """Runs whose loop is to be ended; those that are not among `living` have."""
        self._broken.intersection_update(living)
        return sorted(self._broken)

    def loop_ended(self, run: str) -> None:
        self._broken.discard(run)

    def spend(self, run: str, method: str) -> bool:
        """Counts an ask of a run; False beyond the budget of METHODS."""
        budget = METHODS[method].budget
        spent = self._spent.get((run, method), 0)
        if budget and spent >= budget:
            return False
        self._spent[run, method] = spent + 1
        return True


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8")).digest()
