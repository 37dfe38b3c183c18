"""Uses of a stand-in are the command's, whichever worker asks and whichever of its bindings the request is for."""

from __future__ import annotations

from ringfence.host.egress.standins import grouped
from ringfence.host.egress.uses import Uses
from ringfence.host.kernel.outward.credentials import Binding, Use


def bound(id: str, uses: int | None, *names: str) -> Binding:
    return Binding(id, "crd_1", f"{id[-1]}.test", environment=names, uses=uses)


def made(*bindings: Binding) -> tuple[Uses, list[Binding]]:
    uses = Uses()
    return uses, uses.bind(bindings, grouped(bindings))


def test_as_often_as_it_may_and_each_command_for_itself() -> None:
    uses, _ = made(bound("bnd_a", 2, "TOKEN"), bound("bnd_b", None, "OTHER"))
    assert [uses.spend("inv_1", "bnd_a") for _ in range(3)] == [True, True, False]
    assert uses.spend("inv_2", "bnd_a")
    assert all(uses.spend("inv_1", "bnd_b") for _ in range(100))  # the control
    uses.give_back("inv_1", "bnd_a")
    assert [uses.spend("inv_1", "bnd_a") for _ in range(2)] == [True, False]


def test_bindings_of_one_stand_in_share_its_uses() -> None:
    uses, bindings = made(bound("bnd_a", 2, "TOKEN"), bound("bnd_b", None, "TOKEN"), bound("bnd_c", 7, "OTHER"))
    assert [each.uses for each in bindings] == [2, 2, 7]
    assert [uses.spend("inv_1", each) for each in ("bnd_a", "bnd_b", "bnd_b")] == [True, True, False]


def test_the_next_worker_has_what_is_left() -> None:
    uses, _ = made(bound("bnd_a", 2, "TOKEN"))
    ticket = {"digest": "d", "binding": "bnd_a", "uses": 2}
    other = {"digest": "e", "binding": "bnd_z", "uses": None}
    assert uses.tickets("inv_1", [ticket, other]) == [ticket, other]
    for left in (1, 0):
        assert uses.spend("inv_1", "bnd_a")
        assert uses.tickets("inv_1", [ticket, other]) == [{**ticket, "uses": left}, other]
    uses.ended("inv_1")
    assert uses.tickets("inv_1", [ticket]) == [ticket]


def test_a_change_of_bindings_forgets_no_use() -> None:
    uses, _ = made(bound("bnd_a", 1, "TOKEN"))
    assert uses.spend("inv_1", "bnd_a")
    again = [bound("bnd_a", 1, "TOKEN"), Binding("bnd_n", "crd_2", "n.test", use=Use.INJECT)]
    uses.bind(again, grouped(again))
    assert not uses.spend("inv_1", "bnd_a")
