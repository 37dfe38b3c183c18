"""Placeholders by digest: whose, until when, how often."""

from __future__ import annotations

import pytest

from ringfence.host.egress.refusals import Code, Refusal
from ringfence.host.egress.tickets import Ticket, Tickets


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ticket(digest: str = "d", uses: int | None = None) -> Ticket:
    return Ticket(digest, "crd_1", "bnd_1", 10.0, uses)


def code(tickets: Tickets, invocation: str, digest: str = "d") -> Code:
    with pytest.raises(Refusal) as caught:
        tickets.find(invocation, digest)
    return caught.value.code


def test_who_finds_what() -> None:
    clock = Clock()
    tickets = Tickets(clock)
    tickets.replace("inv_a", [ticket()])
    assert tickets.find("inv_a", "d").invocation == "inv_a"
    assert tickets.find("", "d").invocation == "inv_a"  # transparent: attributed by the stand-in
    assert code(tickets, "inv_b") is Code.FOREIGN
    assert code(tickets, "inv_a", "other") is Code.UNKNOWN
    clock.now = 10.0
    assert code(tickets, "inv_a") is Code.EXPIRED


def test_an_ended_invocation_s_is_expired_and_not_unknown() -> None:
    tickets = Tickets(Clock())
    tickets.replace("inv_a", [ticket()])
    tickets.replace("inv_a", [])
    assert code(tickets, "inv_a") is Code.EXPIRED
    assert code(tickets, "") is Code.EXPIRED


def test_ended_ones_are_bounded() -> None:
    tickets = Tickets(Clock())
    for number in range(5000):
        tickets.replace("inv_a", [ticket(str(number))])
    assert code(tickets, "inv_a", "0") is Code.UNKNOWN
    assert code(tickets, "inv_a", "4000") is Code.EXPIRED


def test_uses_stay_spent_when_the_table_is_sent_again() -> None:
    tickets = Tickets(Clock())
    tickets.replace("inv_a", [ticket(uses=2)])
    tickets.spend(tickets.find("inv_a", "d"))
    tickets.replace("inv_a", [ticket(uses=2), ticket("e")])
    tickets.spend(tickets.find("inv_a", "d"))
    assert code(tickets, "inv_a") is Code.SPENT
    tickets.find("inv_a", "e")


def test_two_that_found_it_do_not_both_spend_it() -> None:
    tickets = Tickets(Clock())
    tickets.replace("inv_a", [ticket(uses=1)])
    first, second = tickets.find("inv_a", "d"), tickets.find("inv_a", "d")
    tickets.spend(first)
    with pytest.raises(Refusal):
        tickets.spend(second)


@pytest.mark.parametrize("more", [3, None])
def test_an_owner_who_allows_more_is_heard(more: int | None) -> None:
    """Of one that is used up, and of a request that has it in hand meanwhile."""
    tickets = Tickets(Clock())
    tickets.replace("inv_a", [ticket(uses=1)])
    found = tickets.find("inv_a", "d")
    tickets.spend(found)
    assert code(tickets, "inv_a") is Code.SPENT
    tickets.replace("inv_a", [ticket(uses=more)])
    tickets.spend(found)
    tickets.spend(tickets.find("inv_a", "d"))


def test_fewer_than_there_were() -> None:
    tickets = Tickets(Clock())
    tickets.replace("inv_a", [ticket()])
    found = tickets.find("inv_a", "d")
    tickets.replace("inv_a", [ticket(uses=1)])
    tickets.spend(found)
    assert code(tickets, "inv_a") is Code.SPENT
