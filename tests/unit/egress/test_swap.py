"""The plan of an exchange and what it writes, without sockets; properties over heads of any shape."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.egress import swap
from ringfence.host.egress.refusals import Code, Refusal
from ringfence.host.egress.tickets import Ticket
from ringfence.host.kernel.outward import placeholders
from ringfence.host.kernel.outward.credentials import Binding, Position, Scheme, Use
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.shapes import SHAPES

PH = placeholders.make(SHAPES["github"], b"1" * 17).encode()
OTHER = placeholders.make(SHAPES["github"], b"2" * 17).encode()
SECRET = Secret(b"the-secret")
EVERY = (
    Position(),
    Position(scheme=Scheme.TOKEN),
    Position(scheme=Scheme.BASIC_PASSWORD),
    Position(scheme=Scheme.BASIC_USER),
    Position("x-key", Scheme.RAW),
    Position(query="key"),
)


def scope(
    *, positions: tuple[Position, ...] = EVERY, literal: bool = False, inject: tuple[Binding, ...] = ()
) -> swap.Scope:
    binding = Binding("bnd_1", "crd_1", "api.test", positions=positions)
    known = {
        placeholders.digest(each): Ticket(placeholders.digest(each), "crd_1", "bnd_1", 1.0, None)
        for each in (PH, OTHER)
    }

    def find(digest: str) -> Ticket:
        if digest not in known:
            raise Refusal(Code.UNKNOWN, "unknown")
        return known[digest]

    return swap.Scope(True, find, {"bnd_1": binding}.get, lambda _: True, inject, literal)


def through(target: bytes, *fields: tuple[bytes, bytes], **given: object) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    plan = swap.plan(target, fields, scope(**given))  # type: ignore[arg-type]
    return swap.done(plan, target, fields, [SECRET] * len(plan.used))


def test_two_in_one_pair_and_two_in_one_request() -> None:
    pair = base64.b64encode(PH + b":" + OTHER)
    target, fields = through(b"/?key=" + PH + b"&a=b", (b"authorization", b"Basic " + pair), (b"x-key", OTHER))
    assert target == b"/?key=the-secret&a=b"
    assert fields == [
        (b"authorization", b"Basic " + base64.b64encode(b"the-secret:the-secret")),
        (b"x-key", b"the-secret"),
    ]


def test_only_the_positions_of_the_binding() -> None:
    for target, name, value in (
        (b"/", b"authorization", b"token " + PH),
        (b"/", b"x-key", PH),
        (b"/?key=" + PH, b"a", b"b"),
        (b"/", b"authorization", b"Basic " + base64.b64encode(b"x:" + PH)),
    ):
        with pytest.raises(Refusal) as caught:
            through(target, (name, value), positions=(Position(),))
        assert caught.value.code is Code.MISPLACED
    assert through(b"/", (b"authorization", b"Bearer " + PH), positions=(Position(),))[1][0][1] == b"Bearer the-secret"


def test_basic_without_padding_and_none_at_all() -> None:
    pair = base64.b64encode(b"xy:" + PH).rstrip(b"=")
    _, fields = through(b"/", (b"authorization", b"Basic " + pair))
    assert base64.b64decode(fields[0][1][6:]) == b"xy:the-secret"
    for value in (b"Basic ", b"Basic !!!", b"Basic " + base64.b64encode(b"no-colon")):
        assert through(b"/", (b"authorization", value))[1] == [(b"authorization", value)]


def test_a_base64_value_elsewhere_is_looked_into_too() -> None:
    with pytest.raises(Refusal):
        through(b"/", (b"x-auth", b"Basic " + base64.b64encode(b"x:" + PH)))


@pytest.mark.parametrize(
    ("scheme", "value"),
    [
        (Scheme.BEARER, b"Bearer the-secret"),
        (Scheme.TOKEN, b"token the-secret"),
        (Scheme.RAW, b"the-secret"),
        (Scheme.BASIC_USER, b"Basic " + base64.b64encode(b"the-secret:")),
        (Scheme.BASIC_PASSWORD, b"Basic " + base64.b64encode(b"x-access-token:the-secret")),
    ],
)
def test_injection(scheme: Scheme, value: bytes) -> None:
    inject = (Binding("bnd_2", "crd_1", "api.test", positions=(Position(scheme=scheme),), use=Use.INJECT),)
    assert through(b"/", (b"a", b"b"), inject=inject)[1] == [(b"a", b"b"), (b"authorization", value)]
    own = (b"authorization", b"own")
    assert through(b"/", own, inject=inject)[1] == [own]


@given(
    st.lists(
        st.tuples(st.sampled_from([b"authorization", b"x-key", b"cookie", b"x-a"]), st.binary(max_size=60)), max_size=5
    ),
    st.binary(max_size=60),
)
def test_what_holds_no_stand_in_is_left_as_it_is(fields: list[tuple[bytes, bytes]], query: bytes) -> None:
    assert through(b"/?" + query, *fields) == (b"/?" + query, fields)


@given(st.binary(max_size=20), st.binary(max_size=20), st.sampled_from([b"authorization", b"x-key", b"cookie"]))
def test_no_stand_in_ever_passes(before: bytes, after: bytes, name: bytes) -> None:
    """Exchanged whole, or refused; and the same for a query."""
    value = before + PH + after
    for target, field in ((b"/", (name, value)), (b"/?key=" + value, (b"a", b"b"))):
        try:
            sent, fields = through(target, field)
        except Refusal:
            continue
        whole = sent + b"".join(each[1] for each in fields)
        assert not placeholders.find(whole)
        assert b"the-secret" in whole


@pytest.mark.parametrize("gap", [b"\t", b"  ", b" \t "])
def test_whatever_white_space_follows_the_scheme(gap: bytes) -> None:
    """A tab is none of the RFC's, and taken by servers: a stand-in behind one must not pass unseen."""
    pair = base64.b64encode(b"u:" + PH)
    assert through(b"/", (b"authorization", b"Basic" + gap + pair))[1] == [
        (b"authorization", b"Basic " + base64.b64encode(b"u:the-secret"))
    ]
    assert through(b"/", (b"authorization", b"Bearer" + gap + PH))[1] == [(b"authorization", b"Bearer the-secret")]
    halves = pair[:8] + gap + pair[8:]
    assert through(b"/", (b"authorization", b"Basic " + halves))[1][0][1].startswith(b"Basic ")
    assert placeholders.MARKER not in base64.b64decode(
        through(b"/", (b"authorization", b"Basic " + halves))[1][0][1][6:]
    )
