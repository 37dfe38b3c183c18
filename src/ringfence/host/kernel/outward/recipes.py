"""How credentials of well-known services are bound: hosts, places in a request, variables, look. Data and its
expansion; pure.

The bindings of one expansion are for one credential. Those that name the same variable share one placeholder: its
digest stands in a ticket of each. Hosts, headers and variables are the services' and tools' documented ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward.checking import check_binding
from ringfence.host.kernel.outward.credentials import Binding, Position, Scheme, Use
from ringfence.host.kernel.outward.grants import KIND
from ringfence.host.kernel.outward.registries import NPM, PYPI_UPLOAD

_BEARER = Position()
_TOKEN = Position(scheme=Scheme.TOKEN)
_PASSWORD = Position(scheme=Scheme.BASIC_PASSWORD)


@dataclass(frozen=True, slots=True)
class Place:
    """One binding of a recipe. `host` "": the caller names it."""

    host: str
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    name: str
    note: str
    places: tuple[Place, ...]
    environment: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()  # variables instead, when the caller names another host than the service's own
    shape: str = "generic"
    header: bool = False  # the caller names a header
    kind: str = "opaque"  # of the credential; of an oauth_refresh other recipes take the access token as well


_ALL = (
    Recipe("bearer", "Authorization: Bearer", (Place("", (_BEARER,)),)),
    Recipe("basic", "the password of Authorization: Basic", (Place("", (_PASSWORD,)),)),
    Recipe("header", "all of a header's value", (Place("", (Position(scheme=Scheme.RAW),)),), header=True),
    Recipe(
        "github",
        "GitHub's interface, git over https, uploads, archives and raw files; with a host: GitHub Enterprise",
        (
            Place("api.github.com", (_BEARER, _TOKEN, _PASSWORD)),
            Place("github.com", (_PASSWORD, _BEARER, _TOKEN)),
            Place("uploads.github.com", (_BEARER, _TOKEN)),  # `gh release upload`
            Place("codeload.github.com", (_BEARER, _TOKEN)),  # archives of private repositories
            Place("raw.githubusercontent.com", (_BEARER, _TOKEN)),  # their files
        ),
        ("GH_TOKEN", "GITHUB_TOKEN"),
        ("GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN"),
        "github",
    ),
    Recipe(
        "npm",
        "npm's registry",
        (Place(NPM, (_BEARER, _PASSWORD)),),
        ("NPM_TOKEN", "NODE_AUTH_TOKEN"),
        shape="npm",
    ),
    Recipe(
        "pypi",
        "uploads to PyPI; the user's name is __token__",
        (Place(PYPI_UPLOAD, (_PASSWORD,)),),
        ("TWINE_PASSWORD", "UV_PUBLISH_TOKEN", "FLIT_PASSWORD"),
        shape="pypi",
    ),
    Recipe("openai", "OpenAI's interface", (Place("api.openai.com", (_BEARER,)),), ("OPENAI_API_KEY",), shape="openai"),
    Recipe(
        "anthropic",
        "Anthropic's interface",
        (Place("api.anthropic.com", (Position("x-api-key", Scheme.RAW), _BEARER)),),
        ("ANTHROPIC_API_KEY",),  # not ANTHROPIC_AUTH_TOKEN beside it: the SDK would send both
        shape="anthropic",
    ),
    Recipe(
        "oauth-refresh",
        "access tokens that the vault gets for a refresh token",
        (Place("", (_BEARER,)),),
        kind=KIND,
    ),
)
RECIPES: Mapping[str, Recipe] = MappingProxyType({each.name: each for each in _ALL})


def expand(
    recipe: str,
    host: str | None = None,
    header: str | None = None,
    *,
    credential: str = "",
    environment: Sequence[str] | None = None,
    ports: tuple[int, ...] = (443,),
    methods: frozenset[str] = frozenset(),
    paths: tuple[str, ...] = (),
    use: Use = Use.PLACEHOLDER,
    shape: str | None = None,
    uses: int | None = None,
) -> tuple[Binding, ...]:
    """Checked bindings without ids. `host` takes the place of the service's own; `environment` that of the recipe's
    variables. Invalid: no such recipe, a host or header is missing or not asked for, or a binding makes no sense.
    """
    found = RECIPES.get(recipe)
    if found is None:
        raise Invalid(f"no recipe {recipe[:80]!a}", remedy=f"take one of {', '.join(RECIPES)}")
    if found.header != (header is not None):
        remedy = "name one, such as x-api-key" if found.header else "take the recipe `header`"
        raise Invalid(f"the recipe {recipe} {'needs a' if found.header else 'has its own'} header", remedy=remedy)
    variables = tuple(environment) if environment is not None else _variables(found, host)
    draft = Binding(
        "",
        credential,
        "",
        ports,
        methods,
        paths,
        use=use,
        environment=variables,
        shape=shape or found.shape,
        uses=uses,
        recipe=recipe,
    )
    return tuple(
        check_binding(replace(draft, host=place.host, positions=_headed(place.positions, header)))
        for place in _places(found, host)
    )


def _variables(found: Recipe, host: str | None) -> tuple[str, ...]:
    return found.elsewhere if host is not None and found.elsewhere else found.environment


def _places(found: Recipe, host: str | None) -> tuple[Place, ...]:
    """With another host it is one place, with the positions of all."""
    if host is not None:
        every = tuple(dict.fromkeys(each for place in found.places for each in place.positions))
        return (Place(host, every),)
    if any(not place.host for place in found.places):
        raise Invalid(f"the recipe {found.name} needs a host", remedy="name one, such as api.example.com")
    return found.places


def _headed(positions: tuple[Position, ...], header: str | None) -> tuple[Position, ...]:
    return positions if header is None else tuple(replace(each, header=header) for each in positions)
