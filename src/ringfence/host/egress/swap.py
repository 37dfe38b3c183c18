"""Stand-ins in a request's head, and what takes their place: planned on the judged head, done when the secrets are there. Pure.

One pass: what was put in is not looked at again, and a token is exchanged as a whole or not at all. Only the positions of its
binding count, only over verified TLS to a name. It must never put a secret into a body, a trailer or a path, and never let a
stand-in pass unseen where the rule does not say so.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

from ringfence.host.egress.refusals import Code, Refusal
from ringfence.host.egress.tickets import Ticket
from ringfence.host.kernel.outward import placeholders
from ringfence.host.kernel.outward.credentials import Binding, Position, Scheme, Use
from ringfence.host.kernel.outward.secret import Secret

Field = tuple[bytes, bytes]
Finding = Callable[[str], Ticket]
"""Digest to ticket of the asking invocation, or Refusal."""
_SCHEMES = {b"bearer": Scheme.BEARER, b"token": Scheme.TOKEN, b"basic": Scheme.BASIC_PASSWORD}
_SCHEME = re.compile(rb"([!-~]+)[ \t]+(.*)", re.DOTALL)  # RFC 9110 section 11.4 has a space; servers take a tab too
_SENDABLE = re.compile(rb"[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?")  # what a header's value may be
# Who says which password belongs to it is asked for a user too, and takes any: GitHub's word for it.
_ANY_USER = b"x-access-token"
_LOWER = placeholders.MARKER.lower()  # names of fields come in lower case


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes as they came, or the place of one secret."""

    text: bytes = b""
    ticket: Ticket | None = None  # None beside a binding: injected, nothing stood there
    binding: Binding | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """One field, or the query, that is written anew. `at`: the field's index; NEW: behind the others; QUERY."""

    at: int
    parts: tuple[Part, ...]
    before: bytes = b""  # what stays before an encoded pair: `Basic `
    basic: bool = False
    name: bytes = b""  # of a new field


NEW, QUERY = -1, -2


@dataclass(frozen=True, slots=True)
class Plan:
    places: tuple[Place, ...] = ()

    @property
    def used(self) -> tuple[Part, ...]:
        return tuple(part for place in self.places for part in place.parts if part.binding is not None)


@dataclass(frozen=True, slots=True)
class Scope:
    """What decides whether a secret may go: the judged request, as functions of the policy in force."""

    secure: bool  # TLS, verified, to a name
    find: Finding
    binding: Callable[[str], Binding | None]
    covers: Callable[[Binding], bool]
    injected: Sequence[Binding]  # bindings of Use.INJECT that cover the request
    forward_literal: bool


def plan(target: bytes, fields: Sequence[Field], scope: Scope) -> Plan:
    """Refusal: a stand-in that may not be used so."""
    places: list[Place] = []
    for at, (name, value) in enumerate(fields):
        if not _interesting(name, value):
            continue
        try:
            place = _field(at, name.decode(), value, scope)
        except Refusal:
            if not scope.forward_literal:
                raise
            place = None  # it goes on as it is
        if place is not None:
            places.append(place)
    if _marked(target):
        try:
            places.append(_query(target, scope))
        except Refusal:
            if not scope.forward_literal:
                raise
    places.extend(_new(fields, scope))
    return Plan(tuple(places))


def done(plan: Plan, target: bytes, fields: Sequence[Field], secrets: Sequence[Secret]) -> tuple[bytes, list[Field]]:
    """`secrets`: one for each of `plan.used`, in order. Refusal: a value that cannot stand there."""
    left = iter(secrets)
    written = list(fields)
    for place in plan.places:
        values = [part.text if part.binding is None else next(left).reveal() for part in place.parts]
        if place.at == QUERY:
            target = b"".join(
                text if part.binding is None else quote(text, safe="").encode()
                for part, text in zip(place.parts, values, strict=True)
            )
            continue
        text = b"".join(values)
        if place.basic:
            text = base64.b64encode(text)
        value = place.before + text
        if _SENDABLE.fullmatch(value) is None:
            raise Refusal(
                Code.CREDENTIAL, "the stored value cannot stand in a header: it has a line end or another control"
            )
        if place.at == NEW:
            written.append((place.name, value))
        else:
            written[place.at] = (written[place.at][0], value)
    return target, written


def _interesting(name: bytes, value: bytes) -> bool:
    basic = value[:5].lower() == b"basic" and value[5:6] in (b" ", b"\t")
    return placeholders.MARKER in value or basic or _LOWER in name


def _marked(target: bytes) -> bool:
    if placeholders.MARKER in target and placeholders.find(target):
        return True
    return b"%" in target and bool(placeholders.find(unquote_to_bytes(target)))


def _field(at: int, name: str, value: bytes, scope: Scope) -> Place | None:
    """None: there is no stand-in in it."""
    if _LOWER in (named := name.encode()) and placeholders.find(named.replace(_LOWER, placeholders.MARKER)):
        raise Refusal(Code.MISPLACED, "a stand-in stands in the name of a header")
    said = _SCHEME.fullmatch(value)
    word, rest = said.groups() if said is not None else (value, b"")
    scheme = _SCHEMES.get(word.lower())
    if scheme is Scheme.BASIC_PASSWORD:
        pair = _decoded(rest.translate(None, b" \t"))
        if pair is not None and placeholders.find(pair):
            return _basic(at, name, word, pair, scope)
    found = placeholders.find(value)
    if not found:
        return None
    if scheme in {Scheme.BEARER, Scheme.TOKEN}:
        token, before = rest.strip(b" \t"), word + b" "
    else:
        scheme, token, before = Scheme.RAW, value, b""
    return Place(at, (_exchanged(token, Position(name, scheme), scope),), before)


def _basic(at: int, name: str, word: bytes, pair: bytes, scope: Scope) -> Place:
    user, colon, password = pair.partition(b":")
    parts = []
    for text, scheme in ((user, Scheme.BASIC_USER), (password, Scheme.BASIC_PASSWORD)):
        marked = placeholders.find(text)
        parts.append(_exchanged(text, Position(name, scheme), scope) if marked else Part(text))
        if scheme is Scheme.BASIC_USER:
            parts.append(Part(colon))
    return Place(at, tuple(parts), word + b" ", basic=True)


def _query(target: bytes, scope: Scope) -> Place:
    path, _, query = target.partition(b"?")
    if placeholders.find(path) or placeholders.find(unquote_to_bytes(path)):
        raise Refusal(Code.MISPLACED, "a stand-in stands in the path, and no credential is ever used there")
    parts = [Part(path + b"?")]
    for number, pair in enumerate(query.split(b"&")):
        name, equals, value = pair.partition(b"=")
        parts.append(Part((b"&" if number else b"") + name + equals))
        if not _marked(pair):
            parts.append(Part(value))
        elif placeholders.find(name) or not placeholders.find(value):
            raise Refusal(Code.MISPLACED, "a stand-in stands in the query as no value of a parameter")
        else:
            parts.append(_exchanged(value, Position(query=name.decode("latin-1")), scope))
    return Place(QUERY, tuple(parts))


def _exchanged(token: bytes, position: Position, scope: Scope) -> Part:
    spans = placeholders.find(token)
    if spans != [(0, len(token))]:
        for start, end in spans:
            scope.find(placeholders.digest(token[start:end]))  # Refusal: not even one that may be used
        raise Refusal(Code.MISPLACED, "a stand-in stands inside of something else")
    ticket = scope.find(placeholders.digest(token))
    named = (scope.binding(each) for each in (ticket.binding, *ticket.more))
    bindings = [each for each in named if each is not None and each.use is Use.PLACEHOLDER]
    if not bindings:
        raise Refusal(Code.EXPIRED, "the credential of this stand-in is not bound any more")
    if not scope.secure:
        raise Refusal(Code.MISPLACED, "a credential goes out over https to a name alone")
    bindings = [each for each in bindings if scope.covers(each)]
    if not bindings:
        raise Refusal(Code.MISPLACED, "the credential of this stand-in is not bound to this host, method and path")
    binding = next((each for each in bindings if any(_same(position, at) for at in each.positions)), None)
    if binding is None:
        raise Refusal(Code.MISPLACED, "the credential of this stand-in is not bound to this place of a request")
    return Part(ticket=ticket, binding=binding)


def _same(position: Position, allowed: Position) -> bool:
    if position.query or allowed.query:
        return position.query == allowed.query
    return position.header == allowed.header and position.scheme == allowed.scheme


def _new(fields: Sequence[Field], scope: Scope) -> list[Place]:
    """What is injected: into headers that the client sends not at all."""
    taken = {name for name, _ in fields}
    places = []
    for binding in scope.injected if scope.secure else ():
        position = next((each for each in binding.positions if not each.query), None)
        if position is None or position.header.encode() in taken:
            continue
        taken.add(position.header.encode())
        places.append(_injection(position, binding))
    return places


def _injection(position: Position, binding: Binding) -> Place:
    secret, name = Part(binding=binding), position.header.encode()
    match position.scheme:
        case Scheme.BEARER:
            return Place(NEW, (secret,), b"Bearer ", name=name)
        case Scheme.TOKEN:
            return Place(NEW, (secret,), b"token ", name=name)
        case Scheme.BASIC_PASSWORD:
            return Place(NEW, (Part(_ANY_USER + b":"), secret), b"Basic ", basic=True, name=name)
        case Scheme.BASIC_USER:
            return Place(NEW, (secret, Part(b":")), b"Basic ", basic=True, name=name)
        case Scheme.RAW:
            return Place(NEW, (secret,), name=name)


def _decoded(text: bytes) -> bytes | None:
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
