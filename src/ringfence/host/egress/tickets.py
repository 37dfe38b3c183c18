"""The placeholders that this worker knows: by digest, per invocation. No text of one and no value of a secret is here.

A digest that is not of the asking invocation is told apart (another's, an ended one's, nobody's), because the owner is told
which it was. It must never forget a use before the request that spends it has been refused or sent, while the stand-in is there;
the server counts for as long as the command lives.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ringfence.host.egress.refusals import Code, Refusal
from ringfence.host.kernel.outward.credentials import Binding

_ENDED = 4096  # digests of ended invocations that are still called expired: at 64 bytes each, 256 KiB


@dataclass(frozen=True, slots=True)
class Ticket:
    digest: str  # SHA-256 of a placeholder, hex
    credential: str
    binding: str
    expires: float  # seconds of the wall clock
    uses: int | None
    invocation: str = ""
    more: tuple[str, ...] = ()  # further bindings of that credential: a recipe's share one placeholder


class Tickets:
    """`now`: the wall clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._live: dict[str, Ticket] = {}
        self._of: dict[str, frozenset[str]] = {}
        self._left: dict[str, int] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    def replace(self, invocation: str, items: Iterable[Ticket]) -> None:
        """All that the invocation has from now on: none, when it has ended. Uses that were spent stay spent, until the server says
        another number: it counts, and the owner may have said that there are more, or no bound."""
        fresh = {item.digest: item for item in items}
        for digest in self._of.get(invocation, frozenset()) - fresh.keys():
            self._forget(digest)
        for digest, item in fresh.items():
            before = self._live.get(digest)
            self._live[digest] = replace(item, invocation=invocation)
            if item.uses is None:
                self._left.pop(digest, None)
            elif before is None or before.uses != item.uses:
                self._left[digest] = item.uses
        if fresh:
            self._of[invocation] = frozenset(fresh)
        else:
            self._of.pop(invocation, None)

    def find(self, invocation: str, digest: str) -> Ticket:
        """Refusal: there is none that this invocation may use now. On a connection of no invocation ("", transparent) any
        live one of the box: inside one box invocations are for attribution, not a wall."""
        ticket = self._live.get(digest)
        if ticket is None:
            if digest in self._ended:
                raise Refusal(Code.EXPIRED, "the stand-in has ended with its command")
            raise Refusal(Code.UNKNOWN, "the stand-in is of no credential that is known here")
        if invocation and ticket.invocation != invocation:
            raise Refusal(Code.FOREIGN, "the stand-in was made for another command")
        if self._now() >= ticket.expires:
            raise Refusal(Code.EXPIRED, "the stand-in has expired")
        if self._left.get(digest, 1) < 1:
            raise Refusal(Code.SPENT, "the stand-in was used as often as it may be")
        return ticket

    def stands(self, ticket: Ticket, binding: Binding | None) -> bool:
        """Whether it is still there for that binding, spent or not."""
        now = self._live.get(ticket.digest)
        if now is None or now.invocation != ticket.invocation:
            return False
        return binding is None or binding.id in (now.binding, *now.more)

    def spend(self, ticket: Ticket) -> None:
        """Right before the secret goes out. Refusal: somebody else was faster."""
        self.find(ticket.invocation, ticket.digest)
        if ticket.digest in self._left:
            self._left[ticket.digest] -= 1

    def _forget(self, digest: str) -> None:
        self._live.pop(digest, None)
        self._left.pop(digest, None)
        self._ended[digest] = None
        while len(self._ended) > _ENDED:
            self._ended.popitem(last=False)
