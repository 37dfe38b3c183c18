"""Whose turn it is: everybody's, one after the other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.kernel.fairness import Waiting, in_turn
from ringfence.host.kernel.ids import RunId, UserId

START = datetime(2026, 1, 1, tzinfo=UTC)


def line(*users: str) -> list[Waiting]:
    """In the order in which they came."""
    return [Waiting(RunId(f"{n}{user}"), UserId(user), START + timedelta(seconds=n)) for n, user in enumerate(users)]


def order(waiting: list[Waiting], served: dict[str, int], at_work: dict[str, int], each: int = 0) -> list[str]:
    been = {UserId(user): n for user, n in served.items()}
    busy = {UserId(user): n for user, n in at_work.items()}
    return [str(one.run) for one in in_turn(waiting, been, busy, each)]


def test_one_user_is_served_oldest_first() -> None:
    assert order(line("a", "a", "a"), {"a": 7}, {}) == ["0a", "1a", "2a"]


def test_users_take_turns_though_one_has_many() -> None:
    assert order(line("a", "a", "a", "b", "c"), {}, {}) == ["0a", "3b", "4c", "1a", "2a"]


def test_who_was_served_longest_ago_is_next_though_others_came_earlier() -> None:
    assert order(line("a", "b", "c"), {"a": 3, "b": 2}, {}) == ["2c", "1b", "0a"]


def test_no_more_than_each_may_have() -> None:
    waiting = line("a", "a", "a", "b")
    assert order(waiting, {}, {"a": 1}, each=2) == ["0a", "3b"]
    assert order(waiting, {}, {"a": 5}, each=2) == ["3b"]
    assert order(waiting, {}, {"a": 5}, each=0) == ["0a", "3b", "1a", "2a"]


@given(st.lists(st.sampled_from("abcde"), max_size=30), st.dictionaries(st.sampled_from("abcde"), st.integers(1, 99)))
def test_nobody_is_lost_and_nobody_waits_for_two_of_another(users: list[str], served: dict[str, int]) -> None:
    waiting = line(*users)
    got = order(waiting, served, {})
    assert sorted(got) == sorted(str(one.run) for one in waiting)
    for user in set(users):
        own = [n for n, run in enumerate(got) if run.endswith(user)]
        assert [got[n] for n in own] == [str(one.run) for one in waiting if one.user == user]
        for other in set(users) - {user}:
            before = [run for run in got[: own[0]] if run.endswith(other)]
            assert len(before) <= 1, "one of each other user at most"


def test_of_two_who_have_waited_as_long_no_id_decides() -> None:
    """The names are the other way round in the second: the same user's run is first."""
    for many, one in (("a", "z"), ("z", "a")):
        waiting = [Waiting(RunId(f"{n}{who}"), UserId(who), START) for n, who in enumerate((many, many, one))]
        assert order(waiting, {}, {}) == [f"2{one}", f"0{many}", f"1{many}"]


def test_who_is_named_first_comes_first_when_all_is_equal() -> None:
    for first, second in (("a", "z"), ("z", "a")):
        waiting = [Waiting(RunId(f"{n}{who}"), UserId(who), START) for n, who in enumerate((first, second))]
        assert order(waiting, {}, {}) == [f"0{first}", f"1{second}"]
