"""The state table of a connection end, and what is in flight."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.wire.framing import LineBuffer, LocalProtocolError, RemoteProtocolError, encode
from ringfence.wire.state import (
    CLOSED,
    GREETED,
    GUEST,
    HOST,
    LOOP,
    LOOP_HOST,
    MAX_IN_FLIGHT,
    NEW,
    NOTIFY,
    REPLY,
    REQUEST,
    RUN,
    STATES,
    Connection,
    Event,
)


def deliver(speaker: Connection, hearer: Connection) -> list[Event]:
    """A wire without loss."""
    lines = LineBuffer()
    return [hearer.receive(line) for line in lines.feed(speaker.data_to_send())]


def greeted() -> tuple[Connection, Connection]:
    host, guest = Connection(HOST), Connection(GUEST)
    host.request("hello", {})
    [event] = deliver(host, guest)
    guest.reply(event.id, {})
    deliver(guest, host)
    assert host.state == guest.state == GREETED
    return host, guest


def test_a_hello_and_its_reply_open_both_ends() -> None:
    greeted()


def test_a_hello_that_is_refused_leaves_both_new() -> None:
    host, guest = Connection(HOST), Connection(GUEST)
    host.request("hello", {})
    [event] = deliver(host, guest)
    guest.reply_error(event.id, "incompatible", "generation 9")
    [reply] = deliver(guest, host)
    assert (reply.ok, reply.code, reply.message) == (None, "incompatible", "generation 9")
    assert host.state == guest.state == NEW


@pytest.mark.parametrize("side", [HOST, GUEST])
def test_nothing_is_said_before_the_hello(side: str) -> None:
    end = Connection(side)
    for call in (lambda: end.notify("ack", {}), lambda: end.request("x", {}), lambda: end.relay("r", b"{}")):
        with pytest.raises(LocalProtocolError, match="new"):
            call()
    assert end.data_to_send() == b""


def test_the_guest_does_not_greet() -> None:
    with pytest.raises(LocalProtocolError):
        Connection(GUEST).request("hello", {})
    with pytest.raises(RemoteProtocolError):
        Connection(HOST).receive(b'{"id":1,"m":"hello","p":{}}')


@pytest.mark.parametrize("line", [b'{"m":"ack","p":{}}', b'{"id":1,"m":"cmd.spawn","p":{}}', b'{"run":"r","f":{}}'])
@pytest.mark.parametrize("side", [HOST, GUEST])
def test_nothing_is_heard_before_the_hello(side: str, line: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="new"):
        Connection(side).receive(line)


def test_a_second_hello_is_refused() -> None:
    host, guest = greeted()
    with pytest.raises(LocalProtocolError):
        host.request("hello", {})
    with pytest.raises(RemoteProtocolError):
        guest.receive(b'{"id":2,"m":"hello","p":{}}')


def test_requests_notifications_and_frames_of_loops_pass_both_ways() -> None:
    for speaker, hearer in (greeted(), greeted()[::-1]):
        number = speaker.request("x", {"a": 1})
        speaker.notify("y", {"b": 2}, seq=3)
        speaker.relay("r1", b'{"m":"z"}')
        request, note, run = deliver(speaker, hearer)
        assert (request.kind, request.id, request.method, request.params) == (REQUEST, number, "x", {"a": 1})
        assert (note.kind, note.method, note.params, note.seq) == (NOTIFY, "y", {"b": 2}, 3)
        assert (run.kind, run.run, run.frame) == (RUN, "r1", b'{"m":"z"}')
        hearer.reply(number, {"c": 3})
        [reply] = deliver(hearer, speaker)
        assert (reply.kind, reply.id, reply.method, reply.ok) == (REPLY, number, "x", {"c": 3})
        assert speaker.in_flight == 0


def test_ids_grow_and_a_duplicate_is_refused_even_after_its_reply() -> None:
    _, guest = greeted()
    guest.receive(b'{"id":5,"m":"x","p":{}}')
    guest.reply(5, {})
    for number in (5, 4, 0, -1):
        with pytest.raises(RemoteProtocolError, match="id"):
            guest.receive(b'{"id":%d,"m":"x","p":{}}' % number)
    guest.receive(b'{"id":6,"m":"x","p":{}}')


def test_a_request_is_answered_once() -> None:
    host, guest = greeted()
    number = host.request("x", {})
    deliver(host, guest)
    guest.reply(number, {})
    with pytest.raises(LocalProtocolError, match="not open"):
        guest.reply(number, {})
    line = guest.data_to_send()[:-1]
    host.receive(line)
    with pytest.raises(RemoteProtocolError, match="no request"):
        host.receive(line)


def test_the_number_of_requests_in_flight_is_bounded_at_both_ends() -> None:
    host, guest = greeted()
    for _ in range(MAX_IN_FLIGHT):
        host.request("x", {})
    deliver(host, guest)
    with pytest.raises(LocalProtocolError, match=str(MAX_IN_FLIGHT)):
        host.request("x", {})
    with pytest.raises(RemoteProtocolError, match=str(MAX_IN_FLIGHT)):
        guest.receive(b'{"id":1000,"m":"x","p":{}}')


def test_the_end_of_the_wire_ends_each_request_once() -> None:
    host, guest = greeted()
    numbers = [host.request("x", {}), host.request("y", {}), host.request("z", {})]
    deliver(host, guest)
    guest.reply(numbers[1], {})
    deliver(guest, host)
    assert host.close() == [(numbers[0], "x"), (numbers[2], "z")]
    assert host.close() == []
    assert host.state == CLOSED
    with pytest.raises(RemoteProtocolError):
        host.receive(b'{"re":%d,"ok":{}}' % numbers[0])
    with pytest.raises(LocalProtocolError):
        host.notify("ack", {})


def test_what_cannot_be_said_takes_no_id() -> None:
    host, guest = greeted()
    with pytest.raises(LocalProtocolError):
        host.request("x", {"a": object()})
    assert host.in_flight == 0
    host.request("x", {})
    assert len(deliver(host, guest)) == 1


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b'{"m":"x"}',
        b'{"m":"x","p":[]}',
        b'{"m":1,"p":{}}',
        b'{"m":"","p":{}}',
        b'{"m":"x","p":{},"more":1}',
        b'{"id":2,"m":"x","p":{},"seq":1}',
        b'{"id":true,"m":"x","p":{}}',
        b'{"id":"2","m":"x","p":{}}',
        b'{"id":2.0,"m":"x","p":{}}',
        b'{"m":"x","p":{},"seq":0}',
        b'{"m":"x","p":{},"seq":true}',
        b'{"re":99,"ok":{}}',
        b'{"re":true,"ok":{}}',
        b'{"re":[],"ok":{}}',
        b'{"re":1,"ok":{},"id":1}',
    ],
)
def test_what_is_no_envelope_is_refused(line: bytes) -> None:
    for end in greeted():
        with pytest.raises(RemoteProtocolError):
            end.receive(line)


@pytest.mark.parametrize(
    "reply",
    [b"", b',"ok":1', b',"ok":{},"err":{}', b',"err":{}', b',"err":"x"', b',"err":{"code":1,"message":"x"}'],
)
def test_a_reply_is_a_result_or_an_error(reply: bytes) -> None:
    host, _ = greeted()
    number = host.request("x", {})
    with pytest.raises(RemoteProtocolError):
        host.receive(b'{"re":%d%b}' % (number, reply))


def test_a_loop_needs_no_hello_and_its_host_answers() -> None:
    loop, host = Connection(LOOP), Connection(LOOP_HOST)
    number = loop.request("step.begin", {"n": 1})
    [event] = deliver(loop, host)
    host.reply_error(event.id, "not_found", "no such run")
    [reply] = deliver(host, loop)
    assert (reply.id, reply.code) == (number, "not_found")


def test_every_state_but_the_last_can_be_left_and_nothing_leads_out_of_it() -> None:
    assert {state for _, state, _ in STATES} == {NEW, GREETED}
    assert set(STATES.values()) == {NEW, GREETED}


@given(st.lists(st.binary(max_size=60) | st.sampled_from([b'{"id":1,"m":"hello","p":{}}', b'{"m":"ack","p":{}}'])))
def test_any_lines_are_events_or_a_remote_error(lines: list[bytes]) -> None:
    for side in (HOST, GUEST, LOOP, LOOP_HOST):
        end = Connection(side)
        try:
            for line in lines:
                event = end.receive(line)
                assert event.kind in (REQUEST, NOTIFY, REPLY, RUN)
        except RemoteProtocolError:
            pass


def test_an_encoded_notification_is_sent_as_it_is() -> None:
    _host, guest = greeted()
    frame = encode({"m": "cmd.ended", "p": {}, "seq": 1})
    guest.send_encoded(frame)
    assert guest.data_to_send() == frame
