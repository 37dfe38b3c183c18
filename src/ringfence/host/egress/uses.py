"""How often the stand-ins of a box's commands were exchanged, where a binding says how often one may be.

The server counts, because a box can end its worker and have another. In memory: a server that is started again begins anew. Must
never forget a use whose value may have left, nor count for one command what another has used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ringfence.host.egress.standins import Group
from ringfence.host.kernel.outward.credentials import Binding


class Uses:
    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}  # by binding, of those that are counted
        self._spent: dict[str, dict[str, int]] = {}  # by invocation, then by what the stand-in is for

    def bind(self, bindings: Iterable[Binding], groups: Iterable[Group]) -> list[Binding]:
        """The same bindings; those that share a stand-in share what is left of it."""
        self._groups = {each: group for group in groups if group.uses is not None for each in group.bindings}
        return [
            replace(each, uses=self._groups[each.id].uses) if each.id in self._groups else each for each in bindings
        ]

    def spend(self, invocation: str, binding: str) -> bool:
        """Before the value is asked for. False: it was used as often as it may be."""
        group = self._groups.get(binding)
        if group is None:
            return True
        spent = self._spent.setdefault(invocation, {})
        if spent.get(group.what, 0) >= (group.uses or 0):
            return False
        spent[group.what] = spent.get(group.what, 0) + 1
        return True

    def give_back(self, invocation: str, binding: str) -> None:
        """No value has left."""
        group, spent = self._groups.get(binding), self._spent.get(invocation, {})
        if group is not None and spent.get(group.what, 0) > 0:
            spent[group.what] -= 1

    def tickets(self, invocation: str, given: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """As a worker is to have them now: with the uses that are left."""
        return [self._left(invocation, each) for each in given]

    def ended(self, invocation: str) -> None:
        self._spent.pop(invocation, None)

    def _left(self, invocation: str, ticket: Mapping[str, Any]) -> Mapping[str, Any]:
        group = self._groups.get(str(ticket["binding"]))
        if group is None or group.uses is None:
            return ticket
        return {**ticket, "uses": max(0, group.uses - self._spent.get(invocation, {}).get(group.what, 0))}
