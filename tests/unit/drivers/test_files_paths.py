"""Where a user's path lies in the tree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.drivers.files_paths import LONGEST, shown, tree_path
from ringfence.host.kernel.errors import Invalid, Refused, RingfenceError


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"a", b"home/a"),
        (b".", b"home"),
        (b"./a//b/./c", b"home/a/b/c"),
        (b"a/", b"home/a/"),
        (b"a/.", b"home/a/"),
        (b"a/../b", b"home/a/../b"),
        (b"/home/user", b"home"),
        (b"/home/user/", b"home"),
        (b"//home//user//a", b"home/a"),
        (b"/./home/./user/a", b"home/a"),
        (b"/workspace", b"workspace"),
        (b"/workspace/a b", b"workspace/a b"),
        (b"/tmp/x", b"tmp/x"),
        (b"tmp/x", b"home/tmp/x"),
        (b"workspace", b"home/workspace"),
        (b"..a", b"home/..a"),
        (b"...", b"home/..."),
        (b"~/x", b"home/~/x"),
        (b"%2e%2e/x", b"home/%2e%2e/x"),
        (b"\xff\n", b"home/\xff\n"),
    ],
)
def test_where_it_lies(path: bytes, expected: bytes) -> None:
    assert tree_path(path) == expected


ELSEWHERE = [
    *(b"..", b"../x", b"a/../../x", b"./..", b"/", b"/home", b"/home/", b"/home/user2/x", b"/home/userx", b"/tmpx"),
    *(b"/home/user/..", b"/home/user/../user/x", b"/workspace/../home/user/x", b"/tmp/../etc/passwd", b"/etc/passwd"),
    *(b"/proc/self/environ", b"/opt/ringfence", b"/home/../home/user/x"),
]


@pytest.mark.parametrize("path", ELSEWHERE)
def test_what_leads_elsewhere(path: bytes) -> None:
    with pytest.raises(Refused) as caught:
        tree_path(path)
    assert "/workspace" in caught.value.remedy


@pytest.mark.parametrize("path", [b"", b"\0", b"a\0b", b"/home/user/\0", b"a" * (LONGEST + 1)])
def test_what_is_no_path(path: bytes) -> None:
    with pytest.raises(Invalid) as caught:
        tree_path(path)
    assert caught.value.remedy


@given(st.lists(st.sampled_from([b"", b".", b"..", b"a", b"home", b"user", b"tmp", b"workspace"]), max_size=9))
def test_no_prefix_of_a_mapped_path_climbs(parts: list[bytes]) -> None:
    try:
        mapped = tree_path(b"/".join(parts))
    except RingfenceError:
        return
    top, *rest = mapped.split(b"/")
    assert top in (b"home", b"workspace", b"tmp")
    depth = 0
    for part in rest:
        depth += {b"..": -1, b"": 0}.get(part, 1)
        assert depth >= 0


@given(st.binary(max_size=400))
def test_a_path_is_shown_in_one_harmless_line(path: bytes) -> None:
    text = shown(path)
    assert len(text) <= 200
    assert text.isprintable()
    text.encode()
