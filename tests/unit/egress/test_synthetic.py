"""Names and the addresses that stand for them."""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_address

import pytest

from ringfence.host.egress.synthetic import BLOCK_V4, BLOCK_V6, NAMES, TOLD, Names, Reachable, key
from ringfence.host.kernel.outward import addresses
from ringfence.host.kernel.outward.matching import compile_rules
from ringfence.host.kernel.outward.rules import EgressRule, Mode, Verdict
from ringfence.host.kernel.outward.secret import Secret


def many(count: int) -> list[str]:
    return [f"host{n}.example.com" for n in range(count)]


def test_a_name_keeps_its_addresses_and_is_found_by_each() -> None:
    names = Names(b"key")
    given = [names.addresses(name) for name in many(500)]
    assert given == [names.addresses(name) for name in many(500)]
    for name, (v4, v6) in zip(many(500), given, strict=True):
        assert (names.name_of(v4), names.name_of(v6)) == (name, name)


def test_no_address_stands_for_two_and_none_is_ever_dialled() -> None:
    names = Names(b"key")
    given = [address for name in many(4096) for address in names.addresses(name)]
    assert max(Counter(given).values()) == 1
    for address in given:
        assert ip_address(address) in (BLOCK_V6 if ":" in address else BLOCK_V4)
        assert addresses.denied(address, ()) is not None


def test_an_unknown_address_has_no_name() -> None:
    names = Names(b"key")
    names.addresses("api.test")
    for address in ("93.184.216.34", "198.18.0.1", "::1", str(BLOCK_V6[1])):
        assert names.name_of(address) is None


def test_v6_is_found_in_any_text_of_it() -> None:
    names = Names(b"key")
    assert names.name_of(ip_address(names.addresses("api.test")[1]).exploded) == "api.test"


def test_after_a_restart_an_old_address_is_its_names_or_nobodys() -> None:
    """4,000 names of before and 4,000 others after: where places meet is for Host and SNI; that is few."""
    before, after = Names(b"key"), Names(b"key")
    old = {address: name for name in many(4000) for address in before.addresses(name)}
    for name in many(2000)[::-1]:
        after.addresses(name)
    for n in range(2000):
        after.addresses(f"other{n}.example.com")
    found = [(name, after.name_of(address)) for address, name in old.items()]
    wrong = [pair for pair in found if pair[1] not in (None, pair[0])]
    assert sum(pair[0] == pair[1] for pair in found) > 3900
    # 2,000 others on 131,070 places, 2,000 of them left by names not asked for again: 30 meet one, few move for another's.
    assert len(wrong) < 120


def crowded() -> Names:
    """So many that some have a second place; of TOLD at most one in 300 meets another, so these are chosen to."""
    names = Names(b"key")
    first: dict[str, str] = {}
    met: list[str] = []
    for n in range(40_000):
        name = f"host{n}.example.com"
        place = next(names._places(name))
        if place in first:
            met += [first.pop(place), name]
        first[place] = name
    for name in met[:300]:
        names.addresses(name)
    return names


def test_what_a_worker_tells_the_next_is_each_name_at_its_address_whatever_meets() -> None:
    before, after = crowded(), Names(b"key")
    told = before.given()
    assert any(address != next(before._places(name)) for name, address in told)  # some had to go elsewhere
    after.recall(told[::-1])  # in any order
    assert {name: after.addresses(name) for name, _ in told} == {name: before.addresses(name) for name, _ in told}
    assert sorted(after.given()) == sorted(told)


def test_the_names_that_are_told_are_those_that_were_used_last() -> None:
    names = Names(b"key")
    for name in many(NAMES):
        names.addresses(name)
    oldest = many(1)[0]
    assert len(names.given()) == TOLD and oldest not in dict(names.given())
    names.name_of(names.addresses(oldest)[0])
    assert names.given()[-1][0] == oldest


def test_what_cannot_have_been_told_is_passed_over() -> None:
    names = Names(b"key")
    theirs = Names(b"other").addresses("api.test")[0]
    own = names.addresses("here.test")[0]
    names.recall([("api.test", theirs), ("api.test", "8.8.8.8"), ("api.test", own), ("here.test", theirs)])
    assert names.given() == [("here.test", own)] and names.name_of(own) == "here.test"
    right = Names(b"key").addresses("api.test")[0]
    names.recall([("api.test", right)])  # the control
    assert names.name_of(right) == "api.test"


def test_another_user_has_other_addresses() -> None:
    keys = [key(Secret(each)) for each in (b"one", b"two")]
    assert Names(keys[0]).addresses("api.test") != Names(keys[1]).addresses("api.test")
    assert key(Secret(b"one")) == keys[0]


def test_the_least_used_names_make_room() -> None:
    names = Names(b"key", most=3)
    first = [names.addresses(name) for name in many(3)]
    assert names.name_of(first[0][0]) == many(3)[0]  # a connection is a use
    names.addresses("new.example.com")
    assert names.name_of(first[1][0]) is None
    assert names.name_of(first[1][1]) is None
    assert names.name_of(first[0][1]) == many(3)[0]


RULES = (
    EgressRule("r1", Verdict.ALLOW, "api.test", methods=frozenset({"GET"}), paths=("/v1/**",)),
    EgressRule("r2", Verdict.ASK, "*.ask.test"),
    EgressRule("r3", Verdict.ALLOW, "plain.test", ports=(80,), plain=True),
    EgressRule("r4", Verdict.ALLOW, "odd.test", ports=(8443,), mode=Mode.PASSTHROUGH),
    EgressRule("r5", Verdict.ALLOW, "**.wide.test"),
    EgressRule("r6", Verdict.DENY, "no.wide.test", ports=()),
)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("api.test", True),
        ("a.ask.test", True),
        ("plain.test", True),
        ("odd.test", True),
        ("a.b.wide.test", True),
        ("no.wide.test", False),
        ("wide.test", False),
        ("evil.test", False),
        ("secret.api.test", False),
        ("metadata.google.internal", False),
    ],
)
def test_names_that_some_rule_could_let_through(name: str, *, known: bool) -> None:
    assert Reachable(compile_rules(RULES), RULES)(name) is known


def test_without_rules_there_is_no_name() -> None:
    assert not Reachable(compile_rules(()), ())("api.test")


def test_a_name_whose_places_are_all_taken_takes_the_first() -> None:
    """A box can bring that about: it asks for names until those are found that lie on another's places."""
    names = Names(b"key")
    places = list(names._places("victim.test"))
    holders = [f"holder{n}.test" for n in range(len(places))]
    for place, holder in zip(places, holders, strict=True):
        names._given[holder] = (place, names._v6(holder))
        names._names.update((address, holder) for address in names._given[holder])
    assert names.addresses("victim.test")[0] == places[0]
    assert names.name_of(places[0]) == "victim.test"
    assert names.name_of(names._v6("holder0.test")) is None  # gone with both
    assert names.name_of(places[1]) == "holder1.test"
