"""Which header fields go on."""

from __future__ import annotations

import pytest

from ringfence.host.egress import fields


def test_what_a_client_nominates_goes_but_not_what_it_is_judged_by() -> None:
    sent = (
        (b"host", b"a"),
        (b"connection", b"x-one, Host, authorization"),
        (b"x-one", b"1"),
        (b"authorization", b"Bearer x"),
        (b"content-length", b"3"),
        (b"transfer-encoding", b"chunked"),
        (b"te", b"trailers"),
        (b"accept", b"*/*"),
    )
    assert fields.outgoing(sent, strict=False, websocket=False) == [
        (b"authorization", b"Bearer x"),
        (b"accept", b"*/*"),
    ]


def test_websocket_fields_go_with_websockets_alone() -> None:
    sent = ((b"sec-websocket-key", b"k"), (b"sec-websocket-protocol", b"p"), (b"sec-fetch-mode", b"m"))
    assert fields.outgoing(sent, strict=False, websocket=True) == list(sent)
    assert fields.outgoing(sent, strict=False, websocket=False) == [(b"sec-fetch-mode", b"m")]


OVERRIDES = (
    b"x-forwarded-host",
    b"x-http-method-override",
    b"x_http_method_override",
    b"x.original_url",
    b"x-original-method",
    b"x-envoy-original-path",
    b"x-override-url",
)


def test_overrides_go_where_nothing_but_the_host_is_judged_alone() -> None:
    sent = tuple((name, b"evil.test") for name in OVERRIDES)
    assert fields.outgoing(sent, strict=False, websocket=False) == list(sent)
    assert fields.outgoing(sent, strict=True, websocket=False) == []


def test_a_length_is_written_in_one_way() -> None:
    assert fields.framing(((b"content-length", b"010"), (b"a", b"b"))) == [(b"content-length", b"10")]
    assert fields.incoming(((b"content-length", b"007"),), framing=True) == [(b"content-length", b"7")]


@pytest.mark.parametrize(
    ("values", "coded"),
    [
        ([], False),
        ([b"identity"], False),
        ([b"Identity, ,"], False),
        ([b"identity", b"gzip"], True),
        ([b"identity, GZIP"], True),
        ([b"x"], True),
    ],
)
def test_codings_of_all_fields_count(values: list[bytes], *, coded: bool) -> None:
    assert fields.coded(tuple((b"content-encoding", each) for each in values)) is coded


@pytest.mark.parametrize(
    ("name", "value", "personal"),
    [
        (b"authorization", b"Negotiate abc", True),
        (b"authorization", b"ntlm abc", True),
        (b"www-authenticate", b"Basic realm=x, NTLM", True),
        (b"www-authenticate", b"Negotiate", True),
        (b"authorization", b"Bearer negotiate", False),
        (b"authorization", b"Negotiated x", False),
        (b"x-note", b"NTLM", False),
    ],
)
def test_schemes_that_prove_the_connection(name: bytes, value: bytes, *, personal: bool) -> None:
    assert fields.personal([(name, value)]) is personal


def test_answers_keep_their_length_and_are_chunked_anew() -> None:
    assert fields.incoming(((b"content-length", b"3"), (b"alt-svc", b"h3")), framing=True) == [
        (b"content-length", b"3")
    ]
    chunked = ((b"transfer-encoding", b"chunked"), (b"connection", b"close"))
    assert fields.incoming(chunked, framing=True) == [(b"transfer-encoding", b"chunked")]
    assert fields.incoming(chunked, framing=False) == []


@pytest.mark.parametrize(
    ("name", "value", "coded"),
    [
        (b"im", b"gzip", True),
        (b"content-type", b"text/html; charset=UTF-16LE", True),
        (b"content-type", b'text/plain;charset = "utf-7"', True),
        (b"content-type", b"text/plain; charset=ISO-10646-UCS-2", True),
        (b"content-type", b"text/plain; charset=utf-8", False),
        (b"content-type", b"text/plain; charset=iso-8859-1", False),
        (b"content-type", b"application/json", False),
    ],
)
def test_an_answer_in_another_alphabet_is_coded(name: bytes, value: bytes, *, coded: bool) -> None:
    assert fields.coded(((name, value),)) is coded
