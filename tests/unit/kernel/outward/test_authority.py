"""Names and authorities: the attack list A, and what other parsers make of the same bytes."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

import httpx2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward.authority import Malformed, authority, host, literal, unicode_warning

LONGEST = ".".join(["a" * 63] * 3 + ["b" * 61])  # 253


@pytest.mark.parametrize(
    ("raw", "canonical"),
    [
        ("API.GitHub.COM", "api.github.com"),  # A1
        ("api.github.com.", "api.github.com"),  # A2
        ("_acme-challenge.api.test", "_acme-challenge.api.test"),
        ("localhost", "localhost"),
        ("xn--pple-43d.com", "xn--pple-43d.com"),  # A7: never decoded
        ("3com.com", "3com.com"),
        ("1.2.3.4a", "1.2.3.4a"),
        ("a-.test", "a-.test"),
        (LONGEST, LONGEST),
        (LONGEST + ".", LONGEST),
        ("192.0.2.7", "192.0.2.7"),
        ("[2001:DB8:0:0::1]", "2001:db8::1"),
        ("[::1]", "::1"),
        ("::1", "::1"),
        ("[::ffff:127.0.0.1]", "127.0.0.1"),
        ("[::ffff:7f00:1]", "127.0.0.1"),  # D64
        ("[::127.0.0.1]", "::7f00:1"),
    ],
)
def test_the_one_canonical_form(raw: str, canonical: str) -> None:
    assert host(raw) == host(raw.encode()) == host(canonical) == canonical


@pytest.mark.parametrize(
    "raw",
    [
        "",
        ".",
        "evil.com..",  # A2
        "..evil.com",
        ".evil.com",
        "a..b",
        "[evil.com]",  # A3
        "[127.0.0.1]",
        "[::1",
        "::1]",
        "[[::1]]",
        "[]",
        "[::1%25eth0]",
        "fe80::1%lo",
        "a[::1]",
        "[::1].evil.com",
        "127.0.0.1\0.google.com",  # A4
        "evil.com\n",
        "evil.com\r\nX: y",
        " evil.com",
        "evil.com ",
        "evil\t.com",
        "evil.com\x7f",
        "evil.com/",
        "evil.com?x",
        "evil.com#x",
        "api.test\\evil.com",  # A10
        "api.test@evil.com",
        "evil%2ecom",
        "evil*.com",
        "b\u00fccher.test",
        "evil\u3002com",  # an ideographic full stop, which IDNA takes for a dot
        "\uff45vil.com",
        "a" * 64 + ".com",
        LONGEST + "c",
        "2130706433",  # A5
        "0x7f.1",
        "0177.0.0.1",
        "0177.1",
        "127.1",
        "0",
        "2852039166",
        "1.2.3",
        "1.2.3.4.5",
        "256.1.1.1",
        "1.2.3.04",
        "1.2.3.0x4",
        "evil.0x7f",
        "evil.123",
        "127.0.0.1.",
        "2130706433.",
        "0x7f000001",
        "0x",
        "+1.2.3.4",
    ],
)
def test_what_has_no_single_meaning_is_refused(raw: str) -> None:
    with pytest.raises(Malformed) as caught:
        host(raw)
    assert (caught.value.http_status, caught.value.exit_code, caught.value.code) == (400, 2, "malformed")
    assert isinstance(caught.value, Invalid)
    with pytest.raises(Malformed):
        host(raw.encode("utf-8"))


def test_a_reason_has_nothing_of_the_bytes() -> None:
    with pytest.raises(Malformed) as caught:
        host("canary\n.test")
    assert "canary" not in caught.value.reason


@pytest.mark.parametrize("byte", range(256))
def test_each_single_byte(byte: int) -> None:
    raw = b"a" + bytes([byte]) + b"z.test"
    if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in "-_."):
        assert host(raw) == raw.decode().lower()
    else:
        with pytest.raises(Malformed):
            host(raw)


@pytest.mark.parametrize(
    ("raw", "default", "expected"),
    [
        ("api.test", 443, ("api.test", 443)),
        ("API.test.:8443", 443, ("api.test", 8443)),
        ("api.test:1", None, ("api.test", 1)),
        ("api.test:65535", 443, ("api.test", 65535)),
        ("[::1]:443", None, ("::1", 443)),
        ("[2001:db8::1]", 80, ("2001:db8::1", 80)),
        ("192.0.2.1:80", 443, ("192.0.2.1", 80)),
    ],
)
def test_authorities(raw: str, default: int | None, expected: tuple[str, int]) -> None:
    assert authority(raw, default) == authority(raw.encode(), default) == expected


@pytest.mark.parametrize(
    "raw",
    [
        "api.github.com@evil.com",  # A10
        "api.github.com:443@evil.com:443",
        "api.github.com\\@evil.com",
        "@evil.com",
        "api.test:",
        "api.test:0",
        "api.test:65536",
        "api.test:99999999999",
        "api.test:0443",
        "api.test:+443",
        "api.test: 443",
        "api.test:443 ",
        "api.test:4_4_3",
        "api.test:\u0664\u0664\u0663",  # digits of Arabic, which int() reads
        "api.test:443:443",
        "api.test:https",
        "::1",
        "::1:443",
        "[::1]443",
        "[::1]x:443",
        "[::1:443",
        ":443",
        "",
        "api.test:443/",
    ],
)
def test_authorities_that_are_refused(raw: str) -> None:
    with pytest.raises(Malformed):
        authority(raw, 443)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("a@b", "userinfo"),
        ("::1", "without brackets"),
        ("[::1", "not closed"),
        ("a:x", "1 to 65535"),
        ("a b", "character"),
        ("b\u00fccher.test", "not ASCII"),
        ("1.2.3", "dotted quad"),
        ("a..b", "label of the host is empty"),
    ],
)
def test_the_reason_says_what_is_wrong(raw: str, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        authority(raw, 443)


@pytest.mark.parametrize("raw", ["api.test", "[::1]"])
def test_a_connect_names_its_port(raw: str) -> None:
    with pytest.raises(Malformed, match="no port"):
        authority(raw, None)


def test_literals() -> None:
    assert literal("api.test") is None
    assert literal("abc1") is None
    assert literal("a0x.test") is None
    assert literal("192.0.2.1") == ip_address("192.0.2.1")
    assert literal("::1") == ip_address("::1")
    for wrong in ("0177.0.0.1", "2130706433", "0x7f.1", "evil.0x1", "::1%lo", "x:y"):
        with pytest.raises(Malformed):
            literal(wrong)


def test_a_lookalike_is_shown_with_its_letters() -> None:
    warning = unicode_warning("xn--pple-43d.com")
    assert warning is not None
    assert "\u0430pple.com" in warning and "U+0430 CYRILLIC SMALL LETTER A" in warning
    assert unicode_warning("apple.com") is None


@pytest.mark.parametrize("name", ["xn--99999999999.com", "xn--0.com", "xn--.com", "xn--a-ecp.ru"])
def test_a_warning_is_printable_whatever_the_label(name: str) -> None:
    warning = unicode_warning(name)
    assert warning is not None
    assert warning.isprintable() and (("does not decode" in warning) is (name in {"xn--99999999999.com", "xn--0.com"}))


def test_direction_marks_are_not_shown_as_they_are() -> None:
    label = "xn--" + "a\u202ecom".encode("punycode").decode()
    warning = unicode_warning(f"{label}.test")
    assert warning is not None
    assert "\u202e" not in warning and "U+202E" in warning


LABELS = st.sampled_from(
    [
        "api",
        "test",
        "evil",
        "com",
        "127",
        "0",
        "1",
        "0x7f",
        "0177",
        "255",
        "256",
        "xn--a",
        "_x",
        "-",
        "1a",
        "0xg",
        "2130706433",
    ]
)
NOISE = st.sampled_from(
    ["", ".", "..", "[", "]", ":", "@", "%", "\\", "/", "\0", "\t", "\u3002", "\u00df", ":443", "::1", "#", "?"]
)
TEXTS = st.lists(st.one_of(LABELS, NOISE, st.just(".")), max_size=8).map("".join) | st.text(max_size=12)


def _read(text: str) -> str | None:
    """What we make of it; None: refused."""
    try:
        return host(text)
    except Malformed:
        return None


def _plain(text: str) -> str:
    """Another parser's host in the form of ours."""
    name = text.lower().removesuffix(".").strip("[]")
    try:
        address = ip_address(name)
    except ValueError:
        return name
    return str(getattr(address, "ipv4_mapped", None) or address)


@given(TEXTS)
@example("127.0.0.1\0.google.com")
@example("API.test.")
@example("[::ffff:127.0.0.1]")
def test_no_url_parser_reads_another_host(text: str) -> None:
    ours = _read(text)
    if ours is None:
        return
    shown = f"[{text}]" if ":" in text and not text.startswith("[") else text
    assert _plain(urlsplit(f"https://{shown}/").hostname or "") == ours
    try:
        theirs = httpx2.URL(f"https://{shown}/").raw_host.decode()
    except httpx2.InvalidURL:
        return  # stricter than we are about hyphens; what they do not send goes nowhere
    assert _plain(theirs) == ours


@given(TEXTS | st.from_regex(r"(0x)?[0-9a-f]{1,4}(\.(0x)?[0-9a-f]{1,4}){0,3}", fullmatch=True))
@example("2130706433")
@example("0177.0.0.1")
@example("0x7f.1")
@example("127.1")
def test_what_the_resolver_takes_for_an_address_is_one_or_refused(text: str) -> None:
    """inet_aton is what getaddrinfo asks first."""
    try:
        number = socket.inet_aton(text)
    except (OSError, ValueError):
        return
    ours = _read(text)
    assert ours is None or (literal(ours), ours) == (ip_address(number), text)


@given(st.binary(min_size=16, max_size=16))
def test_every_form_of_an_ipv6_address_is_the_same_host(packed: bytes) -> None:
    address = ip_address(packed)
    forms = {str(address), address.exploded, address.compressed.upper(), socket.inet_ntop(socket.AF_INET6, packed)}
    assert {host(f"[{form}]") for form in forms} == {str(getattr(address, "ipv4_mapped", None) or address)}


@given(TEXTS)
def test_canonical_of_canonical(text: str) -> None:
    ours = _read(text)
    if ours is not None:
        assert host(ours) == ours
        assert ours == ours.lower() and ours.isascii() and ours.isprintable()


@given(TEXTS, st.integers(0, 70000))
def test_an_authority_is_its_host_and_its_port(text: str, port: int) -> None:
    try:
        found, number = authority(f"{text}:{port}", None)
    except Malformed:
        return
    assert (found, number) == (host(text), port)
    assert 1 <= port <= 65535
    parts = urlsplit(f"https://{text}:{port}/")
    assert (_plain(parts.hostname or ""), parts.port, parts.username) == (found, port, None)
