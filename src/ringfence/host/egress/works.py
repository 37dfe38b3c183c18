"""What the connections of one worker share: the configuration made ready, exchanged as one object, and the desk that stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ringfence.host.egress import streams
from ringfence.host.egress.configuration import Bounds, Configuration
from ringfence.host.egress.counting import Counting, Findings
from ringfence.host.egress.idleness import Idleness
from ringfence.host.egress.judging import Policy
from ringfence.host.egress.limits import Flow
from ringfence.host.egress.needs import Dialling, Kernel, Minting, Naming, Peeking
from ringfence.host.egress.tickets import Tickets


@dataclass(frozen=True, slots=True)
class Works:
    """All of it is of one configuration."""

    configuration: Configuration
    policy: Policy
    minter: Minting
    dialler: Dialling
    names: Naming
    peek: Peeking


@dataclass(frozen=True, slots=True)
class Desk:
    kernel: Kernel
    tickets: Tickets
    flow: Flow
    counting: Counting
    bounds: Bounds
    findings: Findings = field(init=False)
    idleness: Idleness = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "findings", Findings(self.kernel, self.flow.clock))
        object.__setattr__(self, "idleness", Idleness(self.flow.clock))


@dataclass(slots=True)
class Link:
    """A connection to where one request goes. `spare`: its exchange is over and left nothing behind; `back` takes it then."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    back: Callable[[Link], None]
    spare: bool = False

    @property
    def good(self) -> bool:
        """Whether it can carry another request. A far end that went with bytes unread leaves an error and no end."""
        ended = self.writer.is_closing() or self.reader.at_eof() or self.reader.exception() is not None
        return not ended and not self.unasked

    @property
    def unasked(self) -> bool:
        """Whether bytes have come before anything was sent: they would be read as the answer. The reader keeps them to itself."""
        return bool(self.reader._buffer)  # type: ignore[attr-defined]

    def end(self) -> None:
        """Once, whatever became of it: with a reset unless it is spare."""
        if self.spare:
            self.back(self)
        else:
            self.drop()

    def drop(self) -> None:
        """At once, whatever is unsent: nobody waits for it any more."""
        self.spare = False
        streams.abort(self.writer)
