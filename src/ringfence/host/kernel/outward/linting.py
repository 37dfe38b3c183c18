"""What of a set of rules surely does not do what was meant: rules that never decide, rules that open more than people
think.

For people, at `egress lint` and when a rule is added; nothing is refused for it. Pure. Says nothing when it is not
sure. Must never look at more than MAX_LOOKS pairs: anybody with a token may ask, and everybody else waits meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from ringfence.host.kernel.outward import addresses
from ringfence.host.kernel.outward.authority import unicode_warning
from ringfence.host.kernel.outward.checking import READING, anybodys
from ringfence.host.kernel.outward.index import Entry, entry_of, rank
from ringfence.host.kernel.outward.patterns import ANY, MANY, ONE, HostPattern
from ringfence.host.kernel.outward.rules import EgressRule, Layer, Mode, Verdict

MAX_LOOKS = 50_000  # at some 3 us each: 0.15 s
_DENY, _ALLOW, _ASK = Verdict.DENY, Verdict.ALLOW, Verdict.ASK


def lint(rules: Iterable[EgressRule]) -> list[str]:
    """One line each, in the order of the rules, and a last one when not all of them could be compared. Invalid: one of
    them does not compile."""
    entries = [entry_of(rule) for rule in rules]
    known = _Known(entries)
    lines: list[str] = []
    for number, entry in enumerate(entries):
        void = _shadowed(entry, number, known) or _overruled(entry, known)
        lines += [void] if void else _loose(entry)
    if known.looks <= 0:
        lines.append(f"not all of these {len(entries)} rules were compared with each other: they are too many")
    return lines


class _Group:
    """Rules of one layer for the same hosts, each with its number."""

    def __init__(self) -> None:
        self._everywhere: list[tuple[int, Entry]] = []
        self._by_path: dict[str, list[tuple[int, Entry]]] = defaultdict(list)
        self.answers: set[Verdict] = set()

    def add(self, number: int, entry: Entry) -> None:
        self.answers.add(entry.rule.answer)
        if entry.everywhere:
            self._everywhere.append((number, entry))
        for path in entry.paths:
            self._by_path[path].append((number, entry))

    def wider(self, entry: Entry) -> Iterator[tuple[int, Entry]]:
        """All that may include it: those of every path, and those of one of its own paths."""
        yield from self._everywhere
        if not entry.everywhere:
            yield from self._by_path.get(entry.paths[0], ())


class _Known:
    """The rules, by what is looked for. `looks`: how many pairs may still be looked at."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.looks = MAX_LOOKS
        self._groups: dict[Layer, dict[HostPattern, _Group]] = defaultdict(lambda: defaultdict(_Group))
        for number, entry in enumerate(entries):
            self._groups[entry.rule.layer][entry.pattern].add(number, entry)

    def look(self) -> bool:
        """False: no more."""
        self.looks -= 1
        return self.looks > 0

    def of_layer(self, layer: Layer) -> dict[HostPattern, _Group]:
        return self._groups.get(layer, {})

    def same(self, entry: Entry) -> Iterator[tuple[int, Entry]]:
        """Of its layer, for the same hosts: what may include it."""
        return self._within_looks(self._groups[entry.rule.layer][entry.pattern].wider(entry))

    def above(self, entry: Entry) -> Iterator[tuple[int, Entry]]:
        """Of other layers, for these hosts and maybe more: what may include it."""
        for layer, groups in self._groups.items():
            if layer is not entry.rule.layer:
                for pattern in self._wider(entry.pattern, groups):
                    yield from self._within_looks(groups[pattern].wider(entry))

    def _wider(self, pattern: HostPattern, groups: dict[HostPattern, _Group]) -> Iterator[HostPattern]:
        """Those of `groups` that have all of its hosts. Names are looked for by their ancestors, ranges one by one."""
        if pattern.network is not None:
            yield from (each for each in groups if self.look() and pattern.within(each))
            return
        ancestors = pattern.name.split(".")
        names = [".".join(ancestors[start:]) for start in range(len(ancestors))]
        candidates = [pattern, *(HostPattern(kind, name) for name in names for kind in (ONE, MANY)), HostPattern(ANY)]
        yield from (each for each in dict.fromkeys(candidates) if each in groups and pattern.within(each))

    def _within_looks(self, found: Iterator[tuple[int, Entry]]) -> Iterator[tuple[int, Entry]]:
        for each in found:
            if not self.look():
                return
            yield each


def _shadowed(entry: Entry, number: int, known: _Known) -> str:
    """By a rule of the same layer for the same hosts: one that is asked before it, or says the same of more."""
    for place, other in known.same(entry):
        if place == number or rank(other) > rank(entry) or not _includes(other, entry):
            continue
        if rank(other) < rank(entry):
            return (
                f"{entry.rule.id} never decides: {other.rule.id} ({other.rule.answer} {other.pattern}) is asked first"
            )
        twins = _includes(entry, other)
        if _limits(entry) == _limits(other) and (not twins or place < number):
            return f"{entry.rule.id} adds nothing to {other.rule.id} ({other.rule.answer} {other.pattern})"
    return ""


def _limits(entry: Entry) -> tuple[object, ...]:
    """What a rule says besides its answer."""
    rule = entry.rule
    return rule.mode, rule.forward_literal, rule.up_bytes, rule.down_bytes


def _overruled(entry: Entry, known: _Known) -> str:
    """By another layer: its deny stands over an allow or ask, its allow over an ask. A user's own rule for one host is
    what that user wants."""
    for _, other in known.above(entry):
        meant = other.rule.layer is Layer.USER and not other.pattern.kind
        if meant or rank(other) >= rank(entry) or not _includes(other, entry):
            continue
        if not _excepted(other, entry, known):
            over = f"{other.rule.id} ({other.rule.answer} {other.pattern} of the {other.rule.layer})"
            return f"{entry.rule.id} ({entry.rule.answer} {entry.pattern}) never decides: {over} stands over it"
    return ""


def _excepted(other: Entry, entry: Entry, known: _Known) -> bool:
    """Whether the layer of `other` has a rule for narrower hosts that speaks for some of these instead, or may have."""
    for pattern, group in known.of_layer(other.rule.layer).items():
        if not known.look():
            return True
        if pattern == other.pattern or not (pattern.meets(entry.pattern) and pattern.within(other.pattern)):
            continue
        if group.answers != {other.rule.answer}:
            return True
    return False


def _includes(wide: Entry, narrow: Entry) -> bool:
    """Whether `wide` matches every request that `narrow` does, hosts apart. False when that is not plain to see."""
    a, b = wide.rule, narrow.rule
    deny = a.answer is _DENY
    return (
        ((deny and not a.ports) or (bool(b.ports) and set(b.ports) <= set(a.ports)))
        and (not a.methods or (bool(b.methods) and b.methods <= a.methods))
        and set(a.query) <= set(b.query)
        and (deny or (a.plain >= b.plain and a.websocket >= b.websocket))
        and (
            (wide.everywhere and (deny or not narrow.slash))
            or (not narrow.everywhere and set(narrow.paths) <= set(wide.paths))
        )
    )


def _loose(entry: Entry) -> list[str]:
    rule = entry.rule
    return [
        f"{rule.id} ({rule.answer} {entry.pattern}) {words}" for holds, words in _LOOSE if holds(entry)
    ] + _imitation(entry)


def _imitation(entry: Entry) -> list[str]:
    warning = unicode_warning(entry.pattern.name) if entry.pattern.name else None
    return [f"{entry.rule.id}: {warning}"] if warning else []


def _writes(entry: Entry) -> bool:
    rule = entry.rule
    return rule.answer is _ALLOW and _wild(entry.pattern) and (not rule.methods or not rule.methods <= READING)


def _wild(pattern: HostPattern) -> bool:
    """For more hosts than anybody knows: a wildcard, or a range that is wider than any one network's."""
    if pattern.network is not None:
        return pattern.network.prefixlen < (8 if pattern.network.version == 4 else 32)
    return pattern.kind in (ANY, ONE, MANY)


def _inner(entry: Entry) -> bool:
    """All of its addresses are ones that nobody dials unless the operator has opened them."""
    network = entry.pattern.network
    return (
        network is not None
        and entry.rule.answer is not _DENY
        and all(addresses.denied(each, ()) for each in (network[0], network[-1]))
    )


def _top(entry: Entry) -> bool:
    return entry.rule.answer is _ALLOW and entry.pattern.kind in (ONE, MANY) and anybodys(entry.pattern.name)


def _some_ports(entry: Entry) -> bool:
    return entry.rule.answer is _DENY and bool(entry.rule.ports)


def _unread(entry: Entry) -> bool:
    return entry.rule.mode is Mode.PASSTHROUGH and entry.pattern.kind == ANY


_LOOSE: tuple[tuple[Callable[[Entry], bool], str], ...] = (
    (_unread, "lets every name through unread"),
    (_top, "is for names of everybody: anybody can have one below it"),
    (_writes, "lets writes through to every host of it: data can leave there"),
    (_inner, "opens nothing by itself: its addresses are internal, and the operator must have opened them as well"),
    (_some_ports, "is for its ports only; without ports it is for every one"),
)
