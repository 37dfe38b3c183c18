"""From rules and a request to a decision. Pure, and the same for CONNECT, absolute-form, transparent connections and
DNS.

Rules are indexed once. A decision takes time for the labels and segments of the request, not for the number of rules.

Must never see what `authority.py` and `targets.py` have not made canonical, and never raise for a canonical request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward import addresses, authority
from ringfence.host.kernel.outward.checking import check_rule
from ringfence.host.kernel.outward.credentials import Binding
from ringfence.host.kernel.outward.index import Entry, Group, Index, rank
from ringfence.host.kernel.outward.paths import literal_pattern
from ringfence.host.kernel.outward.rules import Decision, EgressRule, Layer, Mode, Request, Verdict

_DENY, _ALLOW, _ASK = Verdict.DENY, Verdict.ALLOW, Verdict.ASK


def compile_rules(rules: Iterable[EgressRule]) -> Matcher:
    """Invalid: a rule's host or path is no pattern; then none of the rules is in force."""
    by_layer: dict[Layer, list[EgressRule]] = defaultdict(list)
    for rule in rules:
        by_layer[rule.layer].append(rule)
    return Matcher(tuple((layer, Index(by_layer[layer])) for layer in Layer if by_layer[layer]))


class Matcher:
    """All rules of one user, of all layers. Immutable."""

    __slots__ = ("_layers", "_slashes")

    def __init__(self, layers: tuple[tuple[Layer, Index], ...]) -> None:
        self._layers = layers
        self._slashes = any(index.slashes for _, index in layers)

    def connection(self, host: str, port: int, tls: bool) -> Decision:
        """Before anything of a request is known. DENY: no request could be let through. ALLOW, ASK: some could, each
        has to be judged. PASSTHROUGH: this is the decision, no request is judged."""
        asked = Request(host, port, tls)
        if (floor := _floor(host)) is not None:
            return floor
        return _connection(asked, [_chances(layer, index.groups(host), asked) for layer, index in self._layers])

    def request(self, asked: Request) -> Decision:
        """The decision. Without a method: that of the connection."""
        if not asked.method:
            return self.connection(asked.host, asked.port, asked.tls)
        if (floor := _floor(asked.host)) is not None:
            return floor
        found = [(layer, each) for layer, index in self._layers if (each := index.deciding(asked)) is not None]
        if not found:
            return _unnamed(asked)
        rule = min((each for _, each in found), key=rank).rule
        if rule.answer is _ALLOW:
            return Decision(_ALLOW, rule, rule.mode, f"{rule.id} allows it")
        return _withheld(asked, rule, found)

    def alone(self, layer: Layer) -> Matcher | None:
        """What this layer says by itself; None: nothing."""
        mine = tuple(each for each in self._layers if each[0] is layer)
        return Matcher(mine) if mine else None

    def narrow(self, host: str) -> bool:
        """Whether a rule for this host names methods, paths or a query."""
        return any(group.narrow for _, index in self._layers for group in index.groups(host))

    def encoded_slash(self, host: str) -> bool:
        """Whether a rule for this host names %2F in its paths: then `targets.target` may let one through."""
        return self._slashes and any(
            entry.slash for _, index in self._layers for group in index.groups(host) for entry in group.entries
        )


def covers(binding: Binding, asked: Request) -> bool:
    """Whether a credential may be used in this request, but for the position in it. Never without TLS, for an
    address, or before there is a request. Invalid: the binding is not well-formed."""
    return compile_binding(binding).covers(asked)


def compile_binding(binding: Binding) -> Cover:
    """Invalid: no host for a credential, or a path is no pattern."""
    allow = EgressRule(
        binding.id, _ALLOW, binding.host, binding.ports, methods=binding.methods, paths=binding.paths, websocket=True
    )
    return Cover(allow)


class Cover:
    """Where one binding holds. Immutable."""

    __slots__ = ("_entry", "_group")

    def __init__(self, allow: EgressRule) -> None:
        self._group = Group.of([allow])
        self._entry = self._group.entries[0]

    def covers(self, asked: Request) -> bool:
        if not (asked.tls and asked.method) or authority.literal(asked.host) is not None:
            return False
        pattern = self._entry.pattern
        return pattern.names and pattern.covers(asked.host) and self._group.deciding(asked) is not None


def unopened(host: str, own: Collection[str] = ()) -> str | None:
    """Why a rule for an address lets nothing out, for people; None: it does, or it is a name. `own`: the host's addresses."""
    address = authority.literal(host)
    why = None if address is None else addresses.denied(address, own)
    return why and f"{host} is {why}: no rule opens it, the operator can open a name for it ([egress] pins, internal)"


def _floor(host: str) -> Decision | None:
    address = authority.literal(host)
    if addresses.metadata_name(host) if address is None else addresses.metadata(address):
        return Decision(_DENY, None, Mode.INTERCEPT, "the metadata services of clouds are never reached")
    return None


def _unnamed(asked: Request) -> Decision:
    what = f"{asked.host}:{asked.port}{'' if asked.tls else ' without TLS'}"
    named = f"{asked.method} of this path at {what}" if asked.method else what
    why = unopened(asked.host) or f"no rule names {named}"
    return Decision(_DENY, None, Mode.INTERCEPT, why, _missing(asked))


def _withheld(asked: Request, rule: EgressRule, found: Sequence[tuple[Layer, Entry]]) -> Decision:
    """`found`: what each layer says."""
    if rule.answer is _ASK:
        return _held(asked, rule, Mode.INTERCEPT)
    helps = not any(entry.rule.answer is _DENY and _final(layer, entry, asked.host) for layer, entry in found)
    return Decision(_DENY, rule, rule.mode, f"{rule.id} denies it", _missing(asked) if helps else None)


def _held(asked: Request, rule: EgressRule, mode: Mode) -> Decision:
    """Until somebody says yes to exactly this; where no rule can say that, nobody is asked."""
    missing = _missing(asked, mode)
    if missing is None:
        why = "no rule can name exactly this: its method or the length of its path"
        return Decision(_DENY, rule, mode, f"{rule.id} asks first, and {unopened(asked.host) or why}")
    return Decision(_ASK, rule, mode, f"{rule.id} asks first", missing)


def _final(layer: Layer, deny: Entry, host: str) -> bool:
    """Whether no rule of the user gets past this deny: another layer's, or the user's own for exactly this host."""
    return layer is not Layer.USER or deny.pattern.only(host)


def _missing(asked: Request, mode: Mode = Mode.INTERCEPT) -> EgressRule | None:
    """What a user would add for exactly this; None: no such rule can be, or it would let nothing out. Without the query:
    that may hold what is nobody's business."""
    if unopened(asked.host) is not None:
        return None
    address = authority.literal(asked.host)
    draft = EgressRule(
        id="",
        answer=_ALLOW,
        host=asked.host if address is None else f"{asked.host}/{address.max_prefixlen}",
        ports=(asked.port,),
        plain=not asked.tls,
        methods=frozenset({asked.method}) if asked.method else frozenset(),
        paths=(literal_pattern(asked.path),) if asked.path else (),
        mode=mode,
        websocket=asked.websocket,
    )
    try:
        return check_rule(draft)
    except Invalid:
        return None


@dataclass(frozen=True, slots=True)
class _Chances:
    """What one layer may come to say about the requests of a connection: rules in the order in which they are asked,
    up to the first that holds for every request."""

    layer: Layer
    entries: tuple[Entry, ...]

    @property
    def refusal(self) -> Entry | None:
        """The deny of every request, with nothing before it that might let one through."""
        last = self.entries[-1] if self.entries else None
        denies = all(each.rule.answer is _DENY for each in self.entries)
        return last if last is not None and denies and last.whole else None

    def of(self, answer: Verdict) -> list[Entry]:
        return [each for each in self.entries if each.rule.answer is answer]


def _chances(layer: Layer, groups: Iterable[Group], asked: Request) -> _Chances:
    met: list[Entry] = []
    for group in groups:
        for entry in group.profiles:
            if entry.connects(asked.port, asked.tls):
                met.append(entry)
                if entry.whole:
                    return _Chances(layer, tuple(met))
    return _Chances(layer, tuple(met))


def _connection(asked: Request, chances: Sequence[_Chances]) -> Decision:
    refusals = [(each.layer, entry) for each in chances if (entry := each.refusal) is not None]
    if refusals:
        return _withheld(asked, refusals[0][1].rule, refusals)
    allows = [entry for each in chances for entry in each.of(_ALLOW)]
    asks = [entry for each in chances for entry in each.of(_ASK)]
    decisive = allows or asks
    if not decisive:
        return _unnamed(asked)
    through = _passthrough(chances, decisive)
    rule = (through or decisive[0]).rule
    mode = Mode.INTERCEPT if through is None else Mode.PASSTHROUGH
    if rule.answer is _ALLOW:
        return Decision(_ALLOW, rule, mode, f"{rule.id} allows {'it' if through else 'some of it'}")
    return _held(asked, rule, mode)


def _passthrough(chances: Sequence[_Chances], decisive: Sequence[Entry]) -> Entry | None:
    """The rule by which bytes go unread: all that could let something through say so, one of them for everything,
    nothing before it in its layer asks about some requests, and no deny waits for methods or paths."""
    if any(each.of(_DENY) for each in chances) or any(each.rule.mode is Mode.INTERCEPT for each in decisive):
        return None
    answer = decisive[0].rule.answer
    for each in chances:
        last = each.entries[-1] if each.entries else None
        if last is not None and last.whole and all(entry.rule.answer is answer for entry in each.entries):
            return last
    return None
