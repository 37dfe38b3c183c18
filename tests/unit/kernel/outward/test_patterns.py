"""Patterns of hosts against each other, compared with what they cover of all names that can be made of a few labels."""

from __future__ import annotations

from itertools import product

import pytest

from ringfence.host.kernel.outward.patterns import HostPattern, host_pattern

LABELS = ("a", "b", "c")
NAMES = [".".join(each) for count in (1, 2, 3, 4) for each in product(LABELS, repeat=count)]
TEXTS = ("a", "a.b", "b.a.b", "*.b", "**.b", "*.a.b", "**.a.b", "*.c", "**.c.a.b", "*", "a.a.a.b")
PATTERNS = [host_pattern(each) for each in TEXTS]
RANGES = ("0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "11.0.0.0/8", "::/0", "fd00::/8", "fd00:1::/32")


def _covered(pattern: HostPattern) -> set[str]:
    return {name for name in NAMES if pattern.covers(name)}


@pytest.mark.parametrize("text", TEXTS)
def test_within_is_what_the_names_say(text: str) -> None:
    pattern = host_pattern(text)
    assert str(pattern) == text
    for other in PATTERNS:
        assert pattern.within(other) is (_covered(pattern) <= _covered(other)), (text, str(other))
        assert pattern.meets(other) is bool(_covered(pattern) & _covered(other)), (text, str(other))


def test_ranges_lie_in_ranges() -> None:
    inside = {
        (one, other)
        for one in RANGES
        for other in RANGES
        if one != other and host_pattern(one).within(host_pattern(other))
    }
    assert inside == {
        ("10.0.0.0/8", "0.0.0.0/0"),
        ("10.1.0.0/16", "0.0.0.0/0"),
        ("11.0.0.0/8", "0.0.0.0/0"),
        ("10.1.0.0/16", "10.0.0.0/8"),
        ("fd00::/8", "::/0"),
        ("fd00:1::/32", "::/0"),
        ("fd00:1::/32", "fd00::/8"),
    }
    assert not any(host_pattern(each).within(host_pattern("*")) for each in RANGES)
    assert not any(pattern.within(host_pattern(each)) for pattern in PATTERNS for each in RANGES)


def test_what_a_credential_may_be_bound_to() -> None:
    assert {text for text in (*TEXTS, *RANGES) if host_pattern(text).names} == set(TEXTS) - {"*"}


@pytest.mark.parametrize(
    ("pattern", "host", "only"),
    [
        ("a.b", "a.b", True),
        ("a.b", "b", False),
        ("*.b", "a.b", False),
        ("10.0.0.1/32", "10.0.0.1", True),
        ("10.0.0.0/31", "10.0.0.0", False),
        ("fd00::1/128", "fd00::1", True),
    ],
)
def test_a_single_host(pattern: str, host: str, only: bool) -> None:
    assert host_pattern(pattern).only(host) is only
