"""Two real ends of the wire, through framing and state; and every row of the table of methods through both."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from ringfence.guest.pid1 import _NOTES, _REQUESTS, GENERATION
from ringfence.wire import messages
from ringfence.wire.framing import MAX_FRAME, LineBuffer, LocalProtocolError, encode
from ringfence.wire.messages import METHODS, Kind, Method, Side
from ringfence.wire.reports import Unacknowledged
from ringfence.wire.state import GUEST, HOST, LOOP, LOOP_HOST, NOTIFY, REQUEST, RUN, Connection, Event

ROWS = list(METHODS.values())


class Link:
    """A wire that delivers in pieces of `size` bytes."""

    def __init__(self, size: int = 7) -> None:
        self.host, self.guest = Connection(HOST), Connection(GUEST)
        self._lines = {HOST: LineBuffer(), GUEST: LineBuffer()}
        self._size = size

    def carry(self, speaker: Connection) -> list[Event]:
        hearer = self.guest if speaker is self.host else self.host
        data, lines = speaker.data_to_send(), self._lines[hearer.side]
        pieces = [data[start : start + self._size] for start in range(0, len(data), self._size)]
        return [hearer.receive(line) for piece in pieces for line in lines.feed(piece)]

    def greet(self) -> None:
        self.host.request("hello", sample(messages.Hello))
        [event] = self.carry(self.host)
        self.guest.reply(event.id, sample(messages.HelloReply))
        [reply] = self.carry(self.guest)
        assert reply.ok is not None


def sample(kind: Any) -> Any:
    """A value of a type of the wire, as JSON has it."""
    origin, args = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return {field.name: sample(hints[field.name]) for field in dataclasses.fields(kind)}
    if origin is list:
        return [sample(args[0])]
    if origin is dict:
        return {"k\u00e9y": sample(args[1])}
    if origin is Literal:
        return args[0]
    if origin in (types.UnionType, typing.Union):
        return sample(args[0])
    samples: dict[Any, Any] = {str: "t\u00ebxt \U0001f600", int: 7, float: 0.5, bool: True, Any: {"any": [1, None]}}
    return samples[kind]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_passes_between_two_real_ends(row: Method) -> None:
    link = Link()
    if row.name == "hello":
        link.greet()
        return
    link.greet()
    params = sample(row.params)
    speaker, hearer = (link.host, link.guest) if row.side is Side.HOST else (link.guest, link.host)
    if row.side is Side.LOOP:
        speaker, hearer = Connection(LOOP), Connection(LOOP_HOST)
    _say(speaker, row, params)
    [event] = _relayed(link, speaker, hearer)
    assert event.kind == (REQUEST if row.kind is Kind.REQUEST else NOTIFY)
    assert (event.method, event.params) == (row.name, params)
    assert event.seq == (1 if row.kind is Kind.REPORT else None)
    if row.kind is Kind.REQUEST:
        assert row.result is not None
        hearer.reply(event.id, sample(row.result))
        [reply] = _relayed(link, hearer, speaker)
        assert (reply.method, reply.ok) == (row.name, sample(row.result))


def _say(speaker: Connection, row: Method, params: dict[str, Any]) -> None:
    if row.kind is Kind.REQUEST:
        speaker.request(row.name, params)
    else:
        speaker.notify(row.name, params, seq=1 if row.kind is Kind.REPORT else None)


def _relayed(link: Link, speaker: Connection, hearer: Connection) -> list[Event]:
    """Directly, or for a loop through both ends of the box's wire, wrapped by PID 1 or by the host."""
    if speaker.side in (HOST, GUEST):
        return link.carry(speaker)
    carrier = link.guest if speaker.side == LOOP else link.host
    for line in LineBuffer().feed(speaker.data_to_send()):
        carrier.relay("r1", line)
    events = link.carry(carrier)
    assert [(event.kind, event.run) for event in events] == [(RUN, "r1")] * len(events)
    return [hearer.receive(event.frame) for event in events]


@pytest.mark.parametrize("size", [1, 2, 1000, 1 << 20])
def test_a_long_dialogue_is_the_same_however_it_is_cut(size: int) -> None:
    link = Link(size)
    link.greet()
    numbers = [link.host.request("cmd.signal", {"key": f"x/{n}", "signal": n}) for n in range(1, 41)]
    events = link.carry(link.host)
    assert [event.id for event in events] == numbers
    for event in reversed(events):  # replies in any order
        link.guest.reply(event.id, {"n": event.params["signal"]})
    replies = link.carry(link.guest)
    assert [reply.id for reply in replies] == numbers[::-1]
    assert link.host.in_flight == 0


def test_reports_survive_a_lost_wire_under_the_same_numbers() -> None:
    kept = Unacknowledged()
    for round_ in range(1, 4):  # three wires, each lost after delivery; the acknowledgement arrives over the last one
        link = Link()
        link.greet()
        assert kept.add("cmd.ended", {"key": str(round_)})[0] == round_
        for frame in kept.frames():
            link.guest.send_encoded(frame)
        heard = [(event.seq, event.params["key"]) for event in link.carry(link.guest)]
        assert heard == [(n, str(n)) for n in range(1, round_ + 1)]
    link.host.notify("ack", {"seqs": [1, 2, 3]})
    [ack] = link.carry(link.host)
    kept.acknowledge(ack.params["seqs"])
    assert kept.size == 0


def test_what_was_in_flight_on_a_lost_wire_ends_once_at_both_ends() -> None:
    link = Link()
    link.greet()
    numbers = [link.host.request("cmd.signal", {"key": "x", "signal": 1}) for _ in range(3)]
    link.carry(link.host)
    link.guest.close()
    assert [number for number, _ in link.host.close()] == numbers
    with pytest.raises(LocalProtocolError):
        link.guest.reply(numbers[0], {})


def test_the_guest_handles_every_method_of_the_host_and_no_other() -> None:
    host = {row.name: row.kind for row in ROWS if row.side is Side.HOST}
    assert {name for name, kind in host.items() if kind is Kind.REQUEST} == set(_REQUESTS)
    assert {name for name, kind in host.items() if kind is Kind.NOTIFY} == set(_NOTES)
    assert GENERATION == messages.GENERATION


def test_no_row_allows_more_than_a_frame() -> None:
    assert all(0 < row.max_bytes <= MAX_FRAME for row in ROWS)
    with pytest.raises(LocalProtocolError):
        encode({"m": "x", "p": {"data": "x" * MAX_FRAME}})
