"""Placeholders of a command: the same after a restart, another's for another command, shared where a recipe says so."""

from __future__ import annotations

from dataclasses import replace

from ringfence.host.egress.standins import grouped, model_key, stand_ins
from ringfence.host.kernel.outward import placeholders
from ringfence.host.kernel.outward.credentials import Binding, Use
from ringfence.host.kernel.outward.recipes import expand

KEY = b"k" * 32


def bound(*, use: Use = Use.PLACEHOLDER, id: str = "bnd_1", uses: int | None = None) -> Binding:
    return Binding(id, "crd_1", "api.test", use=use, environment=("TOKEN",), shape="github", uses=uses)


def test_the_same_invocation_has_the_same_and_no_other_has() -> None:
    groups = grouped([bound()])
    first, again = stand_ins(KEY, "inv_1", groups, 1.0), stand_ins(KEY, "inv_1", groups, 1.0)
    assert first == again
    texts = {
        stand_ins(key, invocation, groups, 1.0).environment["TOKEN"] for key in (KEY, b"x") for invocation in ("a", "b")
    }
    assert len(texts) == 4
    text = first.environment["TOKEN"]
    assert placeholders.find(text.encode()) == [(0, len(text))] and text.startswith("ghp_")
    [ticket] = first.tickets
    assert ticket["digest"] == placeholders.digest(text) and text not in str(ticket)


def test_bindings_of_a_recipe_share_one() -> None:
    recipe = expand("github", credential="crd_1")
    bindings = [replace(each, id=f"bnd_{n}") for n, each in enumerate(recipe)]
    given = stand_ins(KEY, "inv_1", grouped(bindings), 1.0)
    assert given.environment["GH_TOKEN"] == given.environment["GITHUB_TOKEN"]
    [ticket] = given.tickets
    assert (ticket["binding"], tuple(ticket["more"])) == ("bnd_0", tuple(each.id for each in bindings[1:]))


def test_what_is_injected_or_mounted_has_none() -> None:
    assert grouped([bound(use=Use.INJECT), bound(use=Use.MOUNTED)]) == ()


def test_the_least_number_of_uses_holds() -> None:
    [group] = grouped([bound(uses=5), bound(id="bnd_2", uses=2), bound(id="bnd_3")])
    assert group.uses == 2


def test_a_key_for_models_is_no_placeholder_of_a_credential() -> None:
    keys = {model_key(KEY, each) for each in ("inv_1", "inv_2")}
    assert len(keys) == 2 and not keys & set(stand_ins(KEY, "inv_1", grouped([bound()]), 1.0).environment.values())
