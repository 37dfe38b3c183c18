"""Wishes to rules and bindings: defaults, recipes, presets, and what makes no sense."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward.credentials import Position, Scheme, Use
from ringfence.host.kernel.outward.rules import EgressRule, Layer, Mode, Verdict
from ringfence.host.kernel.outward.wishes import NOWHERE, BindingWish, RuleWish, bindings, rules

ALLOW, DENY, ASK = Verdict.ALLOW, Verdict.DENY, Verdict.ASK


def test_ports_by_answer() -> None:
    for wish, ports in (
        (RuleWish(ALLOW, "a.test"), (443,)),
        (RuleWish(ASK, "a.test"), (443,)),
        (RuleWish(DENY, "a.test"), ()),
        (RuleWish(ALLOW, "a.test", plain=True), (80, 443)),
        (RuleWish(DENY, "a.test", ports=(22,)), (22,)),
    ):
        (made,) = rules(wish, Layer.USER)
        assert made.ports == ports


def test_every_word_of_a_rule() -> None:
    wish = RuleWish(
        ALLOW,
        "A.test.",
        ports=(8443, 443),
        methods=frozenset({"GET"}),
        paths=("/x/*",),
        query=(("k", "v"),),
        websocket=True,
        forward_literal=True,
        up_bytes=1,
        down_bytes=2,
        note="n",
    )
    assert rules(wish, Layer.TENANT) == (
        EgressRule(
            "", ALLOW, "a.test", (443, 8443), False, frozenset({"GET"}), ("/x/*",), (("k", "v"),), Mode.INTERCEPT,
            True, True, 1, 2, Layer.TENANT, "n",
        ),
    )  # fmt: skip
    (unread,) = rules(RuleWish(ALLOW, "a.test", passthrough=True), Layer.USER)
    assert unread.mode is Mode.PASSTHROUGH


def test_presets() -> None:
    made = rules(RuleWish(ASK, preset="git-read:a.test"), Layer.TENANT)
    assert [each.answer for each in made] == [ASK, ASK, DENY, DENY]
    assert {(each.id, each.layer, each.note) for each in made} == {("", Layer.TENANT, "preset git-read")}
    noted = rules(RuleWish(ALLOW, preset="git-read:a.test", note="for the mirror"), Layer.USER)
    assert {each.note for each in noted} == {"preset git-read: for the mirror"}


@pytest.mark.parametrize(
    "wish",
    [
        RuleWish(ALLOW),
        RuleWish(DENY, preset="pypi"),
        RuleWish(ALLOW, preset="pypi", methods=frozenset({"GET"})),
        RuleWish(ALLOW, preset="pypi", up_bytes=1),
        RuleWish(ALLOW, "a.test", preset="pypi"),
        RuleWish(ALLOW, "a.test", passthrough=True, paths=("/",)),
        RuleWish(DENY, "a.test", websocket=True),
    ],
)
def test_rules_that_make_no_sense(wish: RuleWish) -> None:
    with pytest.raises(Invalid) as caught:
        rules(wish, Layer.USER)
    assert caught.value.remedy


def test_bindings_by_recipe_and_by_hand() -> None:
    github = bindings(BindingWish("github"), "crd_1")
    assert [each.host for each in github][:2] == ["api.github.com", "github.com"]
    assert {(each.recipe, each.environment) for each in github} == {("github", ("GH_TOKEN", "GITHUB_TOKEN"))}
    (bearer,) = bindings(BindingWish(host="A.test", environment=("TOKEN",)), "crd_1")
    assert (bearer.host, bearer.positions, bearer.environment, bearer.recipe) == (
        "a.test",
        (Position(),),
        ("TOKEN",),
        "",
    )
    (header,) = bindings(BindingWish(host="a.test", header="X-Api-Key"), "crd_1")
    assert header.positions == (Position("x-api-key", Scheme.RAW),)
    (user,) = bindings(BindingWish(host="a.test", scheme=Scheme.BASIC_USER), "crd_1")
    assert user.positions == (Position("authorization", Scheme.BASIC_USER),)
    (query,) = bindings(BindingWish(host="a.test", query="key"), "crd_1")
    assert query.positions == (Position("", Scheme.RAW, "key"),)
    (elsewhere,) = bindings(BindingWish("github", host="git.corp.test"), "crd_1")
    assert elsewhere.environment == ("GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN")


def test_what_is_not_a_placeholder() -> None:
    (injected,) = bindings(BindingWish("npm", use=Use.INJECT), "crd_1")
    assert injected.environment == (), "nothing stands for it"
    (mounted,) = bindings(BindingWish(use=Use.MOUNTED, environment=("KEY",)), "crd_1")
    assert (mounted.host, mounted.environment) == (NOWHERE, ("KEY",))
    (at,) = bindings(BindingWish("npm", use=Use.MOUNTED), "crd_1")
    assert at.environment == ("NPM_TOKEN", "NODE_AUTH_TOKEN")


@pytest.mark.parametrize(
    "wish",
    [
        BindingWish(),
        BindingWish("header", host="a.test"),
        BindingWish("github", header="x-api-key"),
        BindingWish("github", scheme=Scheme.RAW),
        BindingWish(host="a.test", query="k", header="x-api-key"),
        BindingWish(query="k"),
        BindingWish(use=Use.MOUNTED),
        BindingWish(host="*"),
        BindingWish(host="a.test", environment=("LD_PRELOAD",)),
        BindingWish(host="a.test", header="host"),
        BindingWish(host="a.test", query="k", use=Use.INJECT),
    ],
)
def test_bindings_that_make_no_sense(wish: BindingWish) -> None:
    with pytest.raises(Invalid) as caught:
        bindings(wish, "crd_1")
    assert caught.value.remedy
    assert replace(wish) == wish


@pytest.mark.parametrize(
    "wish", [BindingWish("github"), BindingWish(host="a.test", query="key"), BindingWish(host="a.test")]
)
def test_ranges_are_for_who_asks_for_them(wish: BindingWish) -> None:
    assert not any(each.ranges for each in bindings(wish, "crd_1"))
    assert all(each.ranges for each in bindings(replace(wish, ranges=True), "crd_1"))
