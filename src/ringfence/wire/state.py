"""One end of a connection: what may be said now, what is in flight, what has ended. No I/O and no clock.

Both ends use this class. It must never send by itself: frames collect in it until `data_to_send` takes them. A request
that was in flight ends exactly once: by its reply, or by `close`.

    NEW --hello, answered--> GREETED --end of the wire, or a broken rule--> CLOSED

The host greets. Before that nothing but the hello and its reply may pass; afterwards each end may ask and notify.
Ids of requests grow: an id that is not greater than the last one is a duplicate. The frames of an agent loop pass
through wrapped and unread (`framing.wrap_run`); each loop's own dialogue is a Connection too, without a hello.
"""

from ringfence.wire.framing import LocalProtocolError, RemoteProtocolError, decode, encode, unwrap_run, wrap_run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_IN_FLIGHT = 64
"""Requests of one end without a reply; one more is a broken rule, not a queue."""

NEW, GREETED, CLOSED = "new", "greeted", "closed"
HOST, GUEST, LOOP, LOOP_HOST = "host", "guest", "loop", "loop_host"
REQUEST, NOTIFY, REPLY, RUN = "request", "notify", "reply", "run"

STATES: dict[tuple[str, str, str], str] = {
    # (who says it, state, what) -> next state; what is not here may not be said
    (HOST, NEW, "hello"): NEW,
    (GUEST, NEW, "hello reply"): GREETED,
    (GUEST, NEW, "hello error"): NEW,
    (HOST, GREETED, REQUEST): GREETED,
    (HOST, GREETED, NOTIFY): GREETED,
    (HOST, GREETED, REPLY): GREETED,
    (HOST, GREETED, RUN): GREETED,
    (GUEST, GREETED, REQUEST): GREETED,
    (GUEST, GREETED, NOTIFY): GREETED,
    (GUEST, GREETED, REPLY): GREETED,
    (GUEST, GREETED, RUN): GREETED,
    (LOOP, GREETED, REQUEST): GREETED,
    (LOOP, GREETED, NOTIFY): GREETED,
    (LOOP, GREETED, REPLY): GREETED,
    (LOOP_HOST, GREETED, REQUEST): GREETED,
    (LOOP_HOST, GREETED, NOTIFY): GREETED,
    (LOOP_HOST, GREETED, REPLY): GREETED,
}
PEER = {HOST: GUEST, GUEST: HOST, LOOP: LOOP_HOST, LOOP_HOST: LOOP}

_FIELDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    # kind -> (fields it must have, fields it may have)
    REQUEST: (frozenset({"id", "m", "p"}), frozenset({"id", "m", "p"})),
    NOTIFY: (frozenset({"m", "p"}), frozenset({"m", "p", "seq"})),
    REPLY: (frozenset({"re"}), frozenset({"re", "ok", "err"})),
}


class Event:
    """What one frame means. Which fields are set depends on `kind`."""

    __slots__ = ("code", "frame", "id", "kind", "message", "method", "ok", "params", "run", "seq")

    def __init__(self, kind: str) -> None:
        self.kind = kind  # REQUEST, NOTIFY, REPLY or RUN
        self.id = 0  # request, reply: of the request
        self.method = ""  # request, notify, reply: of the request
        self.params: dict[str, Any] = {}  # request, notify
        self.seq: int | None = None  # notify: a report, to be acknowledged
        self.ok: dict[str, Any] | None = None  # reply: the result, None when it is an error
        self.code = ""  # reply: of the error
        self.message = ""  # reply: of the error
        self.run = ""  # run: its id
        self.frame = b""  # run: the frame, not read; request: as it came

    def __repr__(self) -> str:
        return f"<Event {self.kind} {self.method or self.run} {self.id or ''}>"


class Connection:
    """One end. `side`: HOST or GUEST for the wire of a box, LOOP or LOOP_HOST for the dialogue of one run."""

    __slots__ = ("_asked", "_last_asked", "_last_taken", "_out", "_taken", "side", "state")

    def __init__(self, side: str) -> None:
        self.side = side
        self.state = NEW if side in (HOST, GUEST) else GREETED
        self._out: list[bytes] = []
        self._asked: dict[int, str] = {}  # ours in flight: id -> method
        self._taken: dict[int, str] = {}  # theirs that we have not answered
        self._last_asked = 0
        self._last_taken = 0

    # --- saying

    def request(self, method: str, params: "dict[str, Any]") -> int:
        """The id of the new request. LocalProtocolError: not now, too many in flight, cannot be encoded."""
        if len(self._asked) >= MAX_IN_FLIGHT:
            raise LocalProtocolError(f"{MAX_IN_FLIGHT} requests are in flight, the limit")
        self._may_say(method if method == "hello" else REQUEST)
        number = self._last_asked + 1
        frame = encode({"id": number, "m": method, "p": params})
        self._last_asked = number
        self._asked[number] = method
        self._out.append(frame)
        return number

    def notify(self, method: str, params: "dict[str, Any]", seq: int | None = None) -> None:
        """`seq`: it is a report (see `reports`). LocalProtocolError as above."""
        self._may_say(NOTIFY)
        body: dict[str, Any] = {"m": method, "p": params}
        if seq is not None:
            body["seq"] = seq
        self._out.append(encode(body))

    def reply(self, number: int, ok: "dict[str, Any]") -> None:
        """LocalProtocolError: there is no such request, or it was answered."""
        self._answer(number, {"re": number, "ok": ok}, "reply")

    def reply_error(self, number: int, code: str, message: str) -> None:
        self._answer(number, {"re": number, "err": {"code": code, "message": message}}, "error")

    def relay(self, run: bytes | str, frame: bytes) -> None:
        """A frame of, or for, an agent loop; not read."""
        self._may_say(RUN)
        self._out.append(wrap_run(run, frame))

    def send_encoded(self, frame: bytes) -> None:
        """A notification that was encoded before, e.g. a report that is sent again."""
        self._may_say(NOTIFY)
        self._out.append(frame)

    def data_to_send(self) -> bytes:
        """What was said since the last call."""
        if not self._out:
            return b""
        out, self._out = self._out, []
        return out[0] if len(out) == 1 else b"".join(out)

    # --- hearing

    def receive(self, line: bytes) -> Event:
        """One line without its newline. RemoteProtocolError: the connection is to be closed."""
        wrapped = unwrap_run(line)
        if wrapped is not None:
            self._may_hear(RUN)
            event = Event(RUN)
            event.run, event.frame = wrapped
            return event
        body = decode(line)
        kind = REPLY if "re" in body else REQUEST if "id" in body else NOTIFY
        must, may = _FIELDS[kind]
        if not must <= body.keys() <= may:
            raise RemoteProtocolError(f"a {kind} with the fields {sorted(body)[:8]}")
        event = _HEAR[kind](self, body)
        if kind == REQUEST:
            event.frame = line
        return event

    @property
    def in_flight(self) -> int:
        """Requests of ours without a reply."""
        return len(self._asked)

    def unanswered(self) -> list[int]:
        """Ids of their requests that we have not answered."""
        return list(self._taken)

    def close(self) -> list[tuple[int, str]]:
        """The wire has ended: (id, method) of each request of ours that will never be answered, each once."""
        lost, self._asked = list(self._asked.items()), {}
        self._taken, self._out = {}, []
        self.state = CLOSED
        return lost

    # --- rules

    def _may_say(self, what: str) -> None:
        after = STATES.get((self.side, self.state, what))
        if after is None:
            raise LocalProtocolError(f"the {self.side} may not say a {what} while the connection is {self.state}")
        self.state = after

    def _may_hear(self, what: str) -> None:
        after = STATES.get((PEER[self.side], self.state, what))
        if after is None:
            raise RemoteProtocolError(f"a {what} while the connection is {self.state}")
        self.state = after

    def _answer(self, number: int, body: "dict[str, Any]", how: str) -> None:
        method = self._taken.get(number)
        if method is None:
            raise LocalProtocolError(f"request {number} is not open")
        frame = encode(body)
        self._may_say(f"hello {how}" if method == "hello" else REPLY)
        del self._taken[number]
        self._out.append(frame)

    def _hear_request(self, body: "dict[str, Any]") -> Event:
        number, method = body["id"], _method(body)
        if type(number) is not int or number <= self._last_taken:
            raise RemoteProtocolError(f"a request with the id {str(number)[:20]} after {self._last_taken}")
        if len(self._taken) >= MAX_IN_FLIGHT:
            raise RemoteProtocolError(f"more than {MAX_IN_FLIGHT} requests in flight")
        self._may_hear(method if method == "hello" else REQUEST)
        self._last_taken = number
        self._taken[number] = method
        event = Event(REQUEST)
        event.id, event.method, event.params = number, method, _params(body)
        return event

    def _hear_notify(self, body: "dict[str, Any]") -> Event:
        event = Event(NOTIFY)
        event.method, event.params = _method(body), _params(body)
        self._may_hear(NOTIFY)
        if "seq" in body:
            seq = body["seq"]
            if type(seq) is not int or seq < 1:
                raise RemoteProtocolError("a report without a sequence number")
            event.seq = seq
        return event

    def _hear_reply(self, body: "dict[str, Any]") -> Event:
        number = body["re"]
        method = self._asked.get(number) if type(number) is int else None
        if method is None:
            raise RemoteProtocolError("a reply to no request in flight")
        event = Event(REPLY)
        event.id, event.method = number, method
        _fill_reply(event, body)
        how = "reply" if event.ok is not None else "error"
        self._may_hear(f"hello {how}" if method == "hello" else REPLY)
        del self._asked[number]
        return event


_HEAR = {
    REQUEST: Connection._hear_request,
    NOTIFY: Connection._hear_notify,
    REPLY: Connection._hear_reply,
}


def _method(body: "dict[str, Any]") -> str:
    method = body["m"]
    if type(method) is not str or not 1 <= len(method) <= 64:
        raise RemoteProtocolError("a frame without a method")
    return method


def _params(body: "dict[str, Any]") -> "dict[str, Any]":
    params = body["p"]
    if type(params) is not dict:
        raise RemoteProtocolError("a frame without parameters")
    return params


def _fill_reply(event: Event, body: "dict[str, Any]") -> None:
    ok, error = body.get("ok"), body.get("err")
    if type(ok) is dict and "err" not in body:
        event.ok = ok
        return
    if type(error) is not dict or "ok" in body or error.keys() != {"code", "message"}:
        raise RemoteProtocolError("a reply with neither a result nor an error")
    code, message = error["code"], error["message"]
    if type(code) is not str or type(message) is not str:
        raise RemoteProtocolError("a reply with an error that is not text")
    event.code, event.message = code, message
