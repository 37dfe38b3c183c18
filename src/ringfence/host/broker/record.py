"""What the broker remembers of one PID 1, over every wire to it: commands, runs it was given, reports it made.

The guest's id (new at each start of a box) says whether a new wire leads to the same one. It must never hand anything
of one box, or of an earlier start of it, to another.
"""

from __future__ import annotations

from ringfence.host.broker.commands import Wire, WireCommand
from ringfence.host.broker.given import GivenRuns
from ringfence.host.broker.outcomes import outcome
from ringfence.host.broker.rate import Pace
from ringfence.host.kernel.ids import BoxId
from ringfence.wire.messages import CmdEnded

# Outcomes of commands that nobody holds now: a step of an earlier kernel, which its run will ask for again. The guest
# keeps at most 4 MiB of reports and then stops reading its commands, so less than a half of that is left to them.
_UNCLAIMED_BYTES = 1536 * 1024
_UNCLAIMED = 64


class BoxRecord:
    def __init__(self, box: BoxId, guest: str, output: Pace) -> None:
        self.box = box
        self.guest = guest
        self._output = output
        self.link: object | None = None  # the newest one, None between two wires
        self.commands: dict[str, WireCommand] = {}
        self.runs = GivenRuns()
        self.unwanted: set[str] = set()  # keys whose caller was told box_lost while they started: to be stopped
        self._unclaimed: dict[str, tuple[int, int]] = {}  # key -> (seq, bytes of the report)
        self._highest = 0  # of the numbers of reports seen; a guest sends new ones in order

    def forget(self, command: WireCommand) -> None:
        if self.commands.get(command.key) is command:
            del self.commands[command.key]

    def pace(self, size: int) -> float:
        return self._output.take(size)

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
