"""Recipes: where credentials of well-known services may go, and nowhere else."""

from __future__ import annotations

import pytest

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward.checking import check_binding
from ringfence.host.kernel.outward.credentials import Position, Scheme, Use
from ringfence.host.kernel.outward.matching import covers
from ringfence.host.kernel.outward.recipes import RECIPES, expand
from ringfence.host.kernel.outward.registries import NPM, PYPI_UPLOAD
from ringfence.host.kernel.outward.rules import Request
from ringfence.host.kernel.outward.shapes import SHAPES

BEARER = Position("authorization", Scheme.BEARER)
PASSWORD = Position("authorization", Scheme.BASIC_PASSWORD)
TOKEN = Position("authorization", Scheme.TOKEN)


def test_github_is_its_interface_and_git() -> None:
    api, git, *more = expand("github", credential="crd_1")
    assert (api.host, git.host, api.shape) == ("api.github.com", "github.com", "github")
    assert {BEARER, TOKEN} <= set(api.positions) and PASSWORD in git.positions
    assert api.environment == git.environment == ("GH_TOKEN", "GITHUB_TOKEN")
    assert {api.credential, git.credential} == {"crd_1"} and {api.recipe} == {"github"}
    assert [each.host for each in more] == ["uploads.github.com", "codeload.github.com", "raw.githubusercontent.com"]
    assert all(BEARER in each.positions and each.environment == api.environment for each in more)
    assert covers(api, Request("api.github.com", 443, True, "GET", "/user"))
    assert not covers(api, Request("api.github.com.evil.test", 443, True, "GET", "/user"))


def test_github_enterprise_is_one_host_with_variables_of_its_own() -> None:
    (only,) = expand("github", "GHE.Example.com")
    assert only.host == "ghe.example.com" and "GH_ENTERPRISE_TOKEN" in only.environment
    assert set(only.positions) == {BEARER, TOKEN, PASSWORD}


@pytest.mark.parametrize(
    ("name", "hosts", "position", "variable"),
    [
        ("npm", {NPM}, BEARER, "NPM_TOKEN"),
        ("pypi", {PYPI_UPLOAD}, PASSWORD, "TWINE_PASSWORD"),
        ("openai", {"api.openai.com"}, BEARER, "OPENAI_API_KEY"),
        ("anthropic", {"api.anthropic.com"}, Position("x-api-key", Scheme.RAW), "ANTHROPIC_API_KEY"),
        ("anthropic", {"api.anthropic.com"}, BEARER, "ANTHROPIC_API_KEY"),
    ],
)
def test_services(name: str, hosts: set[str], position: Position, variable: str) -> None:
    made = expand(name)
    assert {each.host for each in made} == hosts
    assert all(position in each.positions and variable in each.environment for each in made)


def test_the_general_ones() -> None:
    assert expand("bearer", "api.test")[0].positions == (BEARER,)
    assert expand("basic", "api.test")[0].positions == (PASSWORD,)
    assert expand("header", "api.test", "PRIVATE-TOKEN")[0].positions == (Position("private-token", Scheme.RAW),)
    (made,) = expand(
        "bearer",
        "*.api.test",
        environment=["T"],
        ports=(8443,),
        methods=frozenset({"GET"}),
        paths=("/a",),
        use=Use.INJECT,
    )
    assert (made.host, made.environment, made.ports, made.paths, made.use) == (
        "*.api.test",
        ("T",),
        (8443,),
        ("/a",),
        Use.INJECT,
    )
    assert RECIPES["oauth-refresh"].kind == "oauth_refresh"


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_makes_bindings_that_could_be_stored(name: str) -> None:
    for made in expand(name, "api.test", "x-key" if RECIPES[name].header else None):
        assert check_binding(made) == made
        assert made.shape in SHAPES and made.use is Use.PLACEHOLDER


@pytest.mark.parametrize(
    ("name", "host", "header"),
    [
        ("nope", "api.test", None),
        ("bearer", None, None),
        ("header", "api.test", None),
        ("bearer", "api.test", "x-key"),
        ("header", "api.test", "Host"),
        ("bearer", "*", None),
        ("github", "10.0.0.1", None),
    ],
)
def test_what_cannot_be_bound(name: str, host: str | None, header: str | None) -> None:
    with pytest.raises(Invalid) as caught:
        expand(name, host, header)
    assert caught.value.remedy
