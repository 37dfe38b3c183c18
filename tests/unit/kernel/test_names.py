"""Names are accepted unchanged or refused with a remedy; none is ever turned into another."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.kernel.errors import NameInvalid
from ringfence.host.kernel.names import check_tenant_name, check_thread_name, check_user_name

CHECKS = [check_tenant_name, check_user_name, check_thread_name]
NFC, NFD = "ren\u00e9", "rene\u0301"


@pytest.mark.parametrize("name", ["alice", "a_b", "A_B", "a.b", "7", "经济", NFC, "a-b", "Ωmega", "สวัสดี", "x" * 64])
@pytest.mark.parametrize("check", CHECKS)
def test_accepted_as_it_is(check: Callable[[str], str], name: str) -> None:
    assert check(name) == name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "is empty"),
        ("a/b", "U+002F"),
        ("a%2fb", "U+0025"),
        (".", "starts with"),
        ("..", "starts with"),
        (".a", "starts with"),
        ("-a", "starts with"),
        ("a.", "ends with a dot"),
        ("x" * 300, "has 300 characters; the limit is"),
        ("a\0b", "control character U+0000"),
        ("a\nb", "control character U+000A"),
        ("a b", "U+0020"),
        ("a\u202eb", "U+202E"),
        ("a\u200bb", "U+200B"),
        ("a\u3164b", "invisible character U+3164"),
        ("a\ufe0f", "invisible character U+FE0F"),
        ("\udcff", "surrogate character U+DCFF"),
        ("a\U000e0061", "U+E0061"),
        ("\u0301a", "starts with"),
        (NFD, "NFC"),
    ],
)
@pytest.mark.parametrize("check", CHECKS)
def test_refused_with_reason_and_remedy(check: Callable[[str], str], name: str, says: str) -> None:
    with pytest.raises(NameInvalid) as refused:
        check(name)
    assert says in refused.value.message
    assert refused.value.remedy
    assert refused.value.message.isascii(), "a refusal never prints the character that it refuses"


def test_the_composed_spelling_is_in_the_remedy() -> None:
    with pytest.raises(NameInvalid) as refused:
        check_user_name(NFD)
    assert repr(NFC) in refused.value.remedy


def test_the_name_without_its_dots_is_in_the_remedy() -> None:
    with pytest.raises(NameInvalid) as refused:
        check_user_name("bob..")
    assert "'bob'" in refused.value.remedy


def test_each_noun_has_its_own_marks() -> None:
    assert check_user_name("a@b.example+x") == "a@b.example+x"
    assert check_thread_name("#team:plan") == "#team:plan"
    for name in ("a@b", "a+b"):
        with pytest.raises(NameInvalid):
            check_tenant_name(name)
    with pytest.raises(NameInvalid):
        check_user_name("#team")


@given(st.text(max_size=80))
def test_whatever_is_accepted_is_visible_composed_and_no_path(name: str) -> None:
    try:
        accepted = check_user_name(name)
    except NameInvalid:
        return
    assert accepted == name == unicodedata.normalize("NFC", name)
    assert 1 <= len(name) <= 64
    assert "/" not in name
    assert "\0" not in name
    assert name[0] != "."
    assert not any(unicodedata.category(character)[0] in "CZ" for character in name)
