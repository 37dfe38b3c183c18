"""Rules of one layer, indexed by the labels of their host and the segments of their paths. Pure.

The parts of `matching.py`, which has the order between layers. Must never depend on the order in which rules came,
but for which of two that say the same is named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ringfence.host.kernel.outward import authority
from ringfence.host.kernel.outward.paths import EVERY, Paths, path_pattern
from ringfence.host.kernel.outward.patterns import ANY, MANY, ONE, HostPattern, host_pattern, query_matches
from ringfence.host.kernel.outward.rules import EgressRule, Mode, Request, Verdict
from ringfence.host.kernel.outward.targets import ENCODED_SLASH

_DENY = Verdict.DENY
# Which of one host's rules is asked first.
_RANK: Mapping[Verdict, int] = MappingProxyType({_DENY: 0, Verdict.ALLOW: 1, Verdict.ASK: 2})


@dataclass(frozen=True, slots=True)
class Entry:
    rule: EgressRule
    pattern: HostPattern
    paths: tuple[str, ...]  # canonical
    everywhere: bool  # every path, but one with an encoded slash: that is named in `paths`, or denied

    @property
    def slash(self) -> bool:
        return any(ENCODED_SLASH in path for path in self.paths)

    @property
    def whole(self) -> bool:
        """Whether it decides whatever the request is."""
        rule = self.rule
        return self.everywhere and not (rule.methods or rule.query)

    def connects(self, port: int, tls: bool) -> bool:
        """A deny is for connections without TLS too, and without ports for every port."""
        rule = self.rule
        if rule.answer is _DENY:
            return not rule.ports or port in rule.ports
        return port in rule.ports and (tls or rule.plain)

    def admits(self, asked: Request) -> bool:
        """All but host and path."""
        rule = self.rule
        if not self.connects(asked.port, asked.tls) or (rule.methods and asked.method not in rule.methods):
            return False
        widely = rule.answer is _DENY
        if asked.websocket and not (widely or rule.websocket):
            return False
        return not rule.query or query_matches(rule.query, asked.query, widely=widely)


def entry_of(rule: EgressRule) -> Entry:
    paths = tuple(path_pattern(each) for each in rule.paths)
    named = tuple(each for each in paths if each != EVERY)
    return Entry(rule, host_pattern(rule.host), named, everywhere=not rule.paths or len(named) < len(paths))


def rank(entry: Entry) -> int:
    return _RANK[entry.rule.answer]


class Group:
    """The rules of one layer for one pattern of hosts."""

    __slots__ = ("_everywhere", "_grants", "_refusals", "entries", "narrow", "profiles")

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = tuple(sorted(entries, key=_order))  # then the oldest first
        # All that a connection can tell apart of them: hundreds of rules for one host are of few kinds.
        kinds: dict[tuple[object, ...], Entry] = {}
        for entry in self.entries:
            kinds.setdefault(_profile(entry), entry)
        self.profiles = tuple(kinds.values())
        self.narrow = not all(each.whole for each in self.entries)
        self._everywhere = tuple(each for each in self.entries if each.everywhere)
        self._refusals = _paths((each for each in self.entries if each.rule.answer is _DENY), widely=True)
        self._grants = _paths((each for each in self.entries if each.rule.answer is not _DENY), widely=False)

    @classmethod
    def of(cls, rules: Iterable[EgressRule]) -> Group:
        """Of rules for the same hosts. Invalid."""
        return cls([entry_of(rule) for rule in rules])

    def deciding(self, asked: Request) -> Entry | None:
        """Whatever the host."""
        best: Entry | None = None
        for entry in self._candidates(asked.path):
            if (best is not None and rank(entry) >= rank(best)) or not entry.admits(asked):
                continue
            if entry.rule.answer is _DENY:
                return entry
            best = entry
        return best

    def _candidates(self, path: str) -> Iterator[Entry]:
        """What names the path before what does not: of two that say the same the narrower one is named, and its
        limits hold."""
        if self._refusals is not None:
            yield from self._refusals.matching(path)
        if self._grants is not None:
            yield from self._grants.matching(path)
        escaped = ENCODED_SLASH in path
        yield from (each for each in self._everywhere if not escaped or each.rule.answer is _DENY)


def _order(entry: Entry) -> tuple[int, bool, bool]:
    """What holds for some requests, then what holds for all; of the latter what has them read first."""
    return rank(entry), entry.whole, entry.rule.mode is Mode.PASSTHROUGH


def _profile(entry: Entry) -> tuple[object, ...]:
    rule = entry.rule
    return rank(entry), rule.ports, rule.plain, rule.mode, entry.whole


def _paths(entries: Iterable[Entry], *, widely: bool) -> Paths[Entry] | None:
    items = [(path, entry) for entry in entries for path in entry.paths]
    return Paths(items, widely=widely) if items else None


class Index:
    """The rules of one layer by host."""

    __slots__ = ("_by_pattern", "_everything", "_networks", "slashes")

    def __init__(self, rules: Iterable[EgressRule]) -> None:
        found: dict[HostPattern, list[Entry]] = defaultdict(list)
        for rule in rules:
            entry = entry_of(rule)
            found[entry.pattern].append(entry)
        self.slashes = any(each.slash for entries in found.values() for each in entries)
        self._by_pattern: dict[tuple[str, str], Group] = {}
        networks: dict[tuple[int, int], dict[int, Group]] = defaultdict(dict)
        for pattern, entries in found.items():
            group = Group(entries)
            if pattern.network is not None:
                net = pattern.network
                networks[net.version, net.prefixlen][int(net.network_address)] = group
            else:
                self._by_pattern[pattern.kind, pattern.name] = group
        self._networks = sorted(networks.items(), reverse=True)  # the longest prefix first
        self._everything = _refusing(found.get(HostPattern(ANY), []))

    def groups(self, host: str) -> Iterator[Group]:
        """The most specific first."""
        address = authority.literal(host)
        if address is not None:
            yield from self._of_address(address)
            return
        known = self._by_pattern
        if (group := known.get(("", host))) is not None:
            yield group
        suffix = host.partition(".")[2]
        if suffix and (group := known.get((ONE, suffix))) is not None:
            yield group
        while suffix:
            if (group := known.get((MANY, suffix))) is not None:
                yield group
            suffix = suffix.partition(".")[2]
        if (group := known.get((ANY, ""))) is not None:
            yield group

    def _of_address(self, address: authority.Address) -> Iterator[Group]:
        number = int(address)
        for (version, prefix), groups in self._networks:
            if version == address.version:
                host_bits = address.max_prefixlen - prefix
                if (group := groups.get(number >> host_bits << host_bits)) is not None:
                    yield group
        if self._everything is not None:
            yield self._everything

    def deciding(self, asked: Request) -> Entry | None:
        for group in self.groups(asked.host):
            if (entry := group.deciding(asked)) is not None:
                return entry
        return None


def _refusing(entries: list[Entry]) -> Group | None:
    """`*` is every name; a deny of it is every address too."""
    refusals = [each for each in entries if each.rule.answer is _DENY]
    return Group(refusals) if refusals else None
