"""Ours beside another proxy, on one conversation: what may differ is on these lists, with its reason; all else is a finding."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tests.soak.conversations import HOST, Conversation
from tests.soak.messages import Fields, Got, Message

# Of a request, names that end at ours or come anew. RFC 9110 section 7.6.1: they belong to one connection, with what
# Connection nominates. Expect is answered by theirs and passed on by ours; the length stands in `body`.
_HOP = rb"connection|keep-alive|proxy-connection|te|trailer|transfer-encoding|upgrade|content-length|expect"
# Rule C8 of the design: where a credential may go, no field names another host or method.
_OVERRIDES = rb"x-forwarded-host|forwarded|x-original-url|x-rewrite-url|x-http-method-override"
# A request that is no WebSocket's has none of its fields (fields.outgoing); theirs passes them.
_SOCKET = rb"sec-websocket-.*"
# Rule 7: an answer says of no other place where the server is.
_ELSEWHERE = rb"alt-svc"
_ENDS_HERE = re.compile(b"|".join([_HOP, _OVERRIDES, _SOCKET, rb"proxy-authorization|http2-settings"]))
_ENDS_HERE_TOO = re.compile(b"|".join([_HOP, _ELSEWHERE, rb"sec-websocket-.*"]))
# Of one connection, or nominated by Connection in these conversations: theirs passes some of them on.
_NEVER = frozenset({b"keep-alive", b"proxy-connection", b"te", b"trailer", b"x-mine", b"alt-svc", b"x-forwarded-host"})
# Answers that can be read in two ways, or not at all: ours is 502 and theirs whatever it makes of them.
AMBIGUOUS = frozenset({"unframed", "twice", "folded", "noise"})
# Answers that end too early: ours passes on what came and cuts the connection; theirs has waited for all of it, and is 502.
CUT = frozenset({"cut", "torn"})
_REASON = b"x-egress-reason"


@dataclass
class Side:
    """What the server saw and the client got by one proxy."""

    seen: list[Message]
    frames: list[bytes]
    got: Got

    @property
    def whole(self) -> list[Message]:
        """Theirs waits for all of a body and ours does not, so that of a broken one ours lets a part through."""
        return [each for each in self.seen if each.whole]

    @property
    def refused_last(self) -> bool:
        return bool(self.got.answers) and bool(self.got.answers[-1].values(_REASON))


@dataclass
class Tally:
    """How often what was compared, for the reader: that it was not always the same."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def asked(message: Message) -> tuple[bytes, Fields, bytes]:
    """As it counts. The version is that of the connection; a host is written in one way."""
    line = message.first.rpartition(b" ")[0]
    return line, _kept(message.fields, _ENDS_HERE), message.body


def answered(message: Message) -> tuple[bytes, Fields, bytes, bool]:
    """As it counts: trailers are dropped by ours, framing is anew by both, and so may be a version."""
    status = message.first.partition(b" ")[2].rstrip(b" ")
    return status, _kept(message.fields, _ENDS_HERE_TOO), message.body, message.whole


def _kept(fields: Fields, ends: re.Pattern[bytes]) -> Fields:
    named = {part.strip().lower() for name, value in fields if name == b"connection" for part in value.split(b",")}
    kept = [(name, value) for name, value in fields if ends.fullmatch(name) is None and name not in named]
    return tuple(sorted(((name, _host(name, value)) for name, value in kept), key=lambda pair: pair[0]))


def _host(name: bytes, value: bytes) -> bytes:
    return re.sub(rb"\.?(:80|:443)?$", b"", value.lower()) if name == b"host" else value


def differences(talk: Conversation, ours: Side, theirs: Side, tally: Tally) -> list[str]:
    """Findings, in words."""
    good = [each for each in talk.said if not each.refused]
    found = _good(talk, len(good), ours, theirs, tally)
    last = talk.said[-1]
    if last.refused > 0:
        found += _hostile(last.refused, len(good), ours, theirs, tally)
    elif last.refused < 0:
        found += _damaged(len(good), ours, theirs, tally)
    elif ours.got.silent or theirs.got.silent:
        found.append(f"waits in vain: ours {ours.got.silent}, theirs {theirs.got.silent}")
    reached = len(theirs.whole) == len(talk.said)  # theirs ends with the server's connection, ours does not
    if reached and (ours.frames, ours.got.frames) != (theirs.frames, theirs.got.frames):
        found.append(f"frames: {ours.frames} {ours.got.frames}, theirs {theirs.frames} {theirs.got.frames}")
    return found


def _good(talk: Conversation, count: int, ours: Side, theirs: Side, tally: Tally) -> list[str]:
    found = []
    for number in range(min(count, len(ours.whole), len(theirs.whole))):
        tally.add(f"requests by {talk.way}")
        found += _passed_on(f"request {number}", ours.whole[number])
        mine, other = asked(ours.whole[number]), asked(theirs.whole[number])
        if mine != other:
            found.append(f"request {number} arrives as {mine}\n  theirs {other}")
    for number in range(min(count, len(ours.got.answers), len(theirs.got.answers))):
        found += _answer(_kind(talk, number), number, ours.got, theirs.got.answers[number], tally)
    return found + _ends(talk, count, ours, theirs)


def _answer(kind: str, number: int, ours: Got, theirs: Message, tally: Tally) -> list[str]:
    mine = ours.answers[number]
    if kind in AMBIGUOUS:
        tally.add("ambiguous answers")
        return [] if mine.status == 502 else [f"an ambiguous answer to {number} is passed on: {mine}"]
    if kind in CUT and theirs.status == 502:
        tally.add("answers that are cut")
        return [f"an answer that was cut is whole: {mine}"] if mine.whole else []
    found = _passed_on(f"answer {number}", mine)
    if kind == "hints" and 103 not in ours.interim[number]:
        found.append(f"the early hints of {number} are lost")
    if answered(mine) != answered(theirs):
        found.append(f"answer {number} comes as {answered(mine)}\n  theirs {answered(theirs)}")
    return found


def _passed_on(what: str, ours: Message) -> list[str]:
    """What theirs may pass on and ours never does."""
    wrong = sorted({name for name, _ in ours.fields} & _NEVER)
    return [f"{what} comes with {wrong} and trailers {ours.trailers}"] if wrong or ours.trailers else []


def _kind(talk: Conversation, number: int) -> str:
    target = talk.said[number].raw.split(b" ")[1].removeprefix(b"http://" + HOST)
    return target.split(b"/")[1].split(b"?")[0].decode("latin-1")


def _ends(talk: Conversation, count: int, ours: Side, theirs: Side) -> list[str]:
    """Whose connection ends first: after an answer that ends one, and never else."""
    mine, other = min(count, len(ours.got.answers)), min(count, len(theirs.got.answers))
    if mine == count or _ended(talk, ours.got.answers[:mine]):
        return []
    return [f"ours ends after {mine} of {count} answers, theirs after {other}"]


def _ended(talk: Conversation, answers: list[Message]) -> bool:
    if not answers:
        return _kind(talk, 0) in CUT | AMBIGUOUS
    return _ended_by(answers)


def _framed(answer: Message) -> bool:
    return answer.status in (204, 304) or bool(answer.values(b"content-length") or answer.values(b"transfer-encoding"))


def _hostile(status: int, before: int, ours: Side, theirs: Side, tally: Tally) -> list[str]:
    """Refused with its status, and nothing of it or behind it arrives. What theirs does is counted only."""
    if len(ours.got.answers) < before:
        return []  # the connection ended before: an answer that ends one was asked for
    tally.add(
        "hostile ones that theirs refuses too" if len(theirs.seen) <= before else "hostile ones that theirs passes"
    )
    if len(ours.seen) > before:
        return [f"a hostile request arrives: {ours.seen[before:]}"]
    last = ours.got.answers[before:]
    if [each.status for each in last] != [status] or not ours.refused_last:
        if _ended_by(ours.got.answers[:before]):
            return []
        return [f"a hostile request is answered {[each.first for each in last]}, not {status}"]
    return []


def _ended_by(answers: list[Message]) -> bool:
    """Whether the last of them ended the connection."""
    return bool(answers) and (not answers[-1].whole or answers[-1].says_close or not _framed(answers[-1]))


def _damaged(before: int, ours: Side, theirs: Side, tally: Tally) -> list[str]:
    """What ours lets through, theirs reads as the same, or ours is too kind."""
    mine, other = [asked(each) for each in ours.whole[before:]], [asked(each) for each in theirs.whole[before:]]
    if not mine:
        tally.add("damaged ones that ours refuses")
        return []
    if len(theirs.got.answers) < before or _ended_by(theirs.got.answers[:before]):
        tally.add("damaged ones that theirs never reads")  # its connection ended with the server's
        return []
    tally.add("damaged ones that both pass" if other else "damaged ones that ours alone passes")
    if not other:
        return [f"ours alone passes {mine}: theirs says {[each.first for each in theirs.got.answers[before:]]}"]
    if mine != other[: len(mine)]:
        return [f"a damaged request arrives as {mine}\n  theirs {other}"]
    return []
