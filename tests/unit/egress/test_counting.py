"""What a flush of the traffic lane may name."""

from __future__ import annotations

from ringfence.host.egress.counting import DENIED, NAMELESS, Counting
from ringfence.host.egress.needs import Traffic


def item(host: str, verdict: str = "deny") -> Traffic:
    return Traffic(host, 53, verdict, "denied", "", "DNS", 1, 0, 0)


def test_so_many_denied_names_and_the_rest_without_one() -> None:
    counting = Counting()
    for n in range(2 * DENIED):
        counting.add(item(f"n{n}.test"))
    counting.add(item("n0.test"))
    items, dropped = counting.drain()
    assert {each.host for each in items} == {*(f"n{n}.test" for n in range(DENIED)), NAMELESS}
    assert sum(each.requests for each in items) == 2 * DENIED + 1 and dropped == 0
    assert next(each.requests for each in items if each.host == NAMELESS) == DENIED


def test_the_next_flush_names_others_and_what_is_allowed_has_its_name() -> None:
    counting = Counting()
    for n in range(DENIED):
        counting.add(item(f"n{n}.test"))
    counting.add(item("api.test", "allow"))
    assert "api.test" in {each.host for each in counting.drain()[0]}
    counting.add(item("later.test"))
    assert [each.host for each in counting.drain()[0]] == ["later.test"]
