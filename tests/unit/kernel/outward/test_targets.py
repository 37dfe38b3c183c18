"""Request targets: the attack list D23 and D24."""

from __future__ import annotations

import posixpath
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringfence.host.kernel.outward.authority import Malformed
from ringfence.host.kernel.outward.targets import LONGEST, TooLong, canonical, segments, target


@pytest.mark.parametrize(
    ("raw", "path", "query"),
    [
        (b"/", "/", ""),
        (b"/repos/a/b", "/repos/a/b", ""),
        (b"/a/", "/a/", ""),
        (b"/%7euser", "/~user", ""),
        (b"/%61dmin", "/admin", ""),  # whoever denies /admin means this too
        (b"/%40types/node", "/@types/node", ""),
        (b"/a%20b", "/a%20b", ""),
        (b"/caf%c3%a9", "/caf%C3%A9", ""),
        (b"/a%3fb", "/a%3Fb", ""),
        (b"/a%3bb", "/a%3Bb", ""),
        (b"/100%25", "/100%25", ""),
        (b"/50%25%20off", "/50%25%20off", ""),
        (b"/5%25.x/%25%C3%A9", "/5%25.x/%25%C3%A9", ""),
        (b"/a%2525b", None, ""),
        (b"/...", "/...", ""),
        (b"/.git/config", "/.git/config", ""),
        (b"/a..b/.x", "/a..b/.x", ""),
        (b"/x?", "/x", ""),
        (b"/x?a=%2f..%2F&b=+;c=//?d", "/x", "a=%2f..%2F&b=+;c=//?d"),  # D24: as it is
        (b"/info/refs?service=git-upload-pack", "/info/refs", "service=git-upload-pack"),
    ],
)
def test_the_reading(raw: bytes, path: str | None, query: str) -> None:
    if path is None:
        with pytest.raises(Malformed):
            target(raw)
        return
    found = target(raw)
    assert (found.raw, found.path, found.query) == (raw, path, query)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"*",
        b"http://evil.test/",
        b"evil.test:443",
        b"x",
        b"//evil.test/",
        b"/a//b",
        b"/a/",  # the control: accepted
        b"/repos/../admin",
        b"/..",
        b"/.",
        b"/./a",
        b"/a/.",
        b"/a/..",
        b"/%2e%2e/admin",
        b"/.%2e/admin",
        b"/%2E/admin",
        b"/repos/..%2fadmin",
        b"/a%2fb",
        b"/a%2Fb",
        b"/a%5cb",
        b"/a\\b",
        b"/..\\admin",
        b"/a%00",
        b"/a%0d%0aX:y",
        b"/a%7f",
        b"/a#b",
        b"/a?b#c",
        b"/a;x=1",
        b"/..;/admin",
        b"/..%3b/admin",
        b"/a b",
        b"/a\tb",
        b"/a\0b",
        b"/a\x7f",
        b"/caf\xc3\xa9",
        b"/%ff",
        b"/%c0%ae%c0%ae/",  # an overlong dot
        b"/%c3",
        b"/%",
        b"/%2",
        b"/%zz",
        b"/%2 x",
        b"/%252e%252e/",  # read twice, it climbs
        b"/%252fa",
        b"/%255c",
        b"/%2500",
        b"/public/%25%32%65%25%32%65/admin",  # the second escape escaped itself
        b"/%252%65%252%65/",
        b"/%25%32%66a",
        b"/%25%35%63",
        b"/%25%33%62",
        b"/%25%30%30",
        b"/s%2565cret",  # /secret to who decodes twice
        b"/%25%36%31dmin",
        b"/a?b\x01",
        b"/a?b c",
    ],
)
def test_what_somebody_may_read_otherwise_is_refused(raw: bytes) -> None:
    if raw == b"/a/":
        assert target(raw).path == "/a/"
        return
    with pytest.raises(Malformed):
        target(raw)


def test_the_length() -> None:
    assert len(target(b"/" + b"a" * (LONGEST - 1)).raw) == LONGEST == 8192
    with pytest.raises(TooLong) as caught:
        target(b"/" + b"a" * LONGEST)
    assert caught.value.http_status == 414


def test_an_encoded_slash_only_where_a_rule_names_one() -> None:
    with pytest.raises(Malformed) as caught:
        target(b"/@types%2fnode")
    assert "%2F" in caught.value.remedy
    assert target(b"/@types%2fnode", encoded_slash=True).path == "/@types%2Fnode"
    assert segments("/@types%2Fnode/x") == ["@types", "%2Fnode", "x"]


@pytest.mark.parametrize(
    "raw", [b"/a%2f..", b"/a%2f..%2fb", b"/a%2f./b", b"/%2fa", b"/a%2f/b", b"/a/%2fb", b"/a%2f%2fb", b"/..%2fa"]
)
def test_with_an_encoded_slash_the_rest_stays_refused(raw: bytes) -> None:
    with pytest.raises(Malformed):
        target(raw, encoded_slash=True)


PIECES = st.sampled_from(
    [
        "/",
        "a",
        "admin",
        ".",
        "..",
        "%2e",
        "%2F",
        "%5c",
        "%00",
        "%25",
        "%41",
        "%7E",
        "%c3%a9",
        "%ff",
        ";",
        "\\",
        "~",
        "%3b",
        "%",
        "*",
        "@",
        *("2", "e", "5", "c", "0", "%32", "%35", "%65", "%66", "%36", "%31", "%30", "%33", "%62"),
    ]
)
PATHS = st.lists(PIECES, max_size=10).map(lambda each: "/" + "".join(each))


@given(PATHS, st.booleans())
@example("/%2e%2e/admin", False)
@example("/public/%25%32%65%25%32%65/admin", False)
def test_canonical_of_canonical(path: str, slash: bool) -> None:
    try:
        read = canonical(path, encoded_slash=slash)
    except Malformed:
        return
    assert canonical(read, encoded_slash=slash) == read


@given(PATHS)
@example("/%252%65%252%65/admin")
@example("/s%2565cret")
def test_no_server_reads_another_path(path: str) -> None:
    """Decoded once and twice, with dots resolved, slashes merged and parameters cut: it is what was judged."""
    try:
        read = canonical(path)
    except Malformed:
        return
    plain = unquote_to_bytes(path)
    assert unquote_to_bytes(read) == plain
    resolved = posixpath.normpath(plain.decode()) + ("/" if len(plain) > 1 and plain.endswith(b"/") else "")
    assert resolved.encode() == plain
    cut = "/".join(each.split(";")[0] for each in path.split("/"))
    assert cut == path
    assert unquote_to_bytes(plain) == plain  # who decodes twice reads the same


@given(st.binary(max_size=40))
def test_a_target_is_read_or_malformed(raw: bytes) -> None:
    try:
        found = target(b"/" + raw)
    except Malformed:
        return
    assert found.raw == b"/" + raw
    assert found.path.isascii() and found.path.isprintable() and " " not in found.path
    assert found.query == raw.partition(b"?")[2].decode()
