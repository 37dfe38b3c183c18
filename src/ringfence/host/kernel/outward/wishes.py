"""What people wish for in a rule or a binding, and what it becomes. Pure.

A wish has what somebody said and nothing else; defaults, recipes and presets are filled in here, and `checking.py`
judges the result. Must never widen what was said.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward import grants, variables
from ringfence.host.kernel.outward.checking import check_binding, check_rule
from ringfence.host.kernel.outward.credentials import Binding, Position, Scheme, Use
from ringfence.host.kernel.outward.presets import preset
from ringfence.host.kernel.outward.recipes import RECIPES, expand
from ringfence.host.kernel.outward.rules import EgressRule, Layer, Mode, Verdict
from ringfence.host.kernel.outward.secret import Secret

# Bytes. What a request had in its head is masked in its answer, wherever it stands: of 8 random letters one in 10^11
# places has them by chance, of 3 one in 17,000, which is some in each page. Tokens that services give have 16 and more.
MIN_HEADED = 8
NOWHERE = "nowhere.invalid"  # RFC 6761 6.4: no such name is ever there. Of what is mounted, which no host limits


@dataclass(frozen=True, slots=True)
class BindingWish:
    """Where a credential is to be used. A recipe, or a host with a header, a scheme or a parameter of the query;
    neither: Authorization: Bearer. `environment` None: the recipe's variables, or one that is named as the credential
    is."""

    recipe: str = ""
    host: str = ""
    header: str = ""
    scheme: Scheme | None = None
    query: str = ""
    ports: tuple[int, ...] = (443,)
    methods: frozenset[str] = frozenset()
    paths: tuple[str, ...] = ()
    environment: tuple[str, ...] | None = None
    use: Use = Use.PLACEHOLDER
    shape: str = ""
    uses: int | None = None
    ranges: bool = False


@dataclass(frozen=True, slots=True)
class RuleWish:
    """A rule, or those of a preset. `ports` None: 443; with `plain` 80 too; of a deny every port. `note`: of a preset
    too, behind its name."""

    answer: Verdict
    host: str = ""
    preset: str = ""
    ports: tuple[int, ...] | None = None
    methods: frozenset[str] = frozenset()
    paths: tuple[str, ...] = ()
    query: tuple[tuple[str, str], ...] = ()
    plain: bool = False
    websocket: bool = False
    passthrough: bool = False
    forward_literal: bool = False
    up_bytes: int | None = None
    down_bytes: int | None = None
    note: str = ""


def bindings(wish: BindingWish, credential: str, name: str = "") -> tuple[Binding, ...]:
    """Checked, without ids. `name`: of the credential. Invalid, with a remedy."""
    if wish.use is Use.MOUNTED and not (wish.environment or wish.recipe):
        raise Invalid("nothing says which variable has the value", remedy="name one: --env NAME, or a --recipe")
    made = _bindings(wish, credential)
    if wish.use is Use.INJECT or wish.environment is not None or not name:
        return made
    # A stand-in that no command is given could be spent by none.
    return tuple(each if each.environment else replace(each, environment=(variable(name),)) for each in made)


def variable(name: str) -> str:
    """Of commands, for the credential of that name: `deploy-key` is DEPLOY_KEY. One that a shell or the way out needs
    for itself, or that begins with a digit, gets SECRET_ before it."""
    plain = "".join(each if each.isalnum() else "_" for each in name.upper())
    return plain if variables.allowed(plain) else f"SECRET_{plain}"[: variables.MAX_LENGTH]


def _bindings(wish: BindingWish, credential: str) -> tuple[Binding, ...]:
    if wish.query or wish.scheme is not None:
        return (check_binding(_at_a_place(wish, credential)),)
    recipe = wish.recipe or ("header" if wish.header else "bearer")
    found = expand(
        recipe,
        _host(wish) or None,
        wish.header or None,
        credential=credential,
        environment=_variables(wish),
        ports=wish.ports,
        methods=wish.methods,
        paths=wish.paths,
        use=wish.use,
        shape=wish.shape or None,
        uses=wish.uses,
    )
    return tuple(replace(each, recipe=wish.recipe, ranges=wish.ranges) for each in found)


def kind_of(wish: BindingWish | None) -> str | None:
    """Of the credential, as far as the wish says; None: any."""
    recipe = RECIPES.get(wish.recipe) if wish is not None else None
    return grants.KIND if recipe is not None and recipe.kind == grants.KIND else None


def check_kind(kind: str, wish: BindingWish) -> None:
    """Invalid, with a remedy."""
    if kind != grants.KIND and kind_of(wish) == grants.KIND:
        raise Invalid(
            "the credential is one value, and no grant that access tokens are got for",
            remedy="store the grant under another name, with --recipe oauth-refresh; or bind this one with bearer",
        )
    if kind == grants.KIND and wish.use is Use.MOUNTED:
        raise Invalid("an access token ends, and cannot stay in an environment", remedy="leave --mounted away")


def to_store(kind: str, value: Secret, *, headed: bool) -> Secret:
    """As it is sealed. `headed`: it is bound to a place in a request's head. Invalid, which says nothing of the value:
    no grant, or it cannot stand in a head."""
    if kind == grants.KIND:
        return grants.sealed(grants.given(value))
    return check_headed(value) if headed else value


def check_headed(value: Secret) -> Secret:
    """Invalid: it cannot stand in a request's head, or cannot be told from other text in an answer."""
    if any(b < 0x20 or b == 0x7F for b in value.reveal()):
        raise Invalid(
            "the value has control characters, such as a line's end, and cannot stand in a header",
            remedy="give the token alone: printf %s TOKEN | ringfence secret set ...",
        )
    if len(value) < MIN_HEADED:
        raise Invalid(
            f"the value has {len(value)} bytes: wherever they stand in an answer they would be masked, and it could not be "
            "read",
            remedy=f"take a token of {MIN_HEADED} bytes or more; or leave the binding away, or bind it with --mounted",
        )
    return value


def is_bare(wish: BindingWish) -> bool:
    """It names no place: what is meant is where the credential may be sent anyway."""
    return replace(wish, environment=None) == BindingWish()


def rules(wish: RuleWish, layer: Layer) -> tuple[EgressRule, ...]:
    """Checked, without ids. Invalid, with a remedy."""
    if not wish.preset:
        return (check_rule(_rule(wish, layer)),)
    if _bare(wish) != RuleWish(wish.answer):
        raise Invalid("a preset has hosts, methods, paths and limits of its own", remedy="leave the others away")
    if wish.answer is Verdict.DENY:
        raise Invalid("a preset is allowed or asked about", remedy="deny the host: ringfence egress deny U HOST")
    return tuple(
        check_rule(
            replace(
                each,
                id="",
                answer=wish.answer if each.answer is Verdict.ALLOW else each.answer,
                note=f"{each.note}: {wish.note}" if wish.note else each.note,
            )
        )
        for each in preset(wish.preset, layer)
    )


def _bare(wish: RuleWish) -> RuleWish:
    return replace(wish, preset="", note="")


def _rule(wish: RuleWish, layer: Layer) -> EgressRule:
    if not wish.host:
        raise Invalid("no host", remedy="name a host, *.NAME, **.NAME or a preset")
    usual = EgressRule("", wish.answer, wish.host)
    return replace(
        usual,
        ports=_ports(wish) if wish.ports is None else wish.ports,
        plain=wish.plain,
        methods=wish.methods,
        paths=wish.paths,
        query=wish.query,
        mode=Mode.PASSTHROUGH if wish.passthrough else Mode.INTERCEPT,
        websocket=wish.websocket,
        forward_literal=wish.forward_literal,
        up_bytes=usual.up_bytes if wish.up_bytes is None else wish.up_bytes,
        down_bytes=usual.down_bytes if wish.down_bytes is None else wish.down_bytes,
        layer=layer,
        note=wish.note,
    )


def _ports(wish: RuleWish) -> tuple[int, ...]:
    if wish.answer is Verdict.DENY:
        return ()
    return (80, 443) if wish.plain else (443,)


def _at_a_place(wish: BindingWish, credential: str) -> Binding:
    """Of a place in the head that no recipe has."""
    if wish.recipe or (wish.query and (wish.header or wish.scheme is not None)):
        raise Invalid("two places in the head are named", remedy="take one of --recipe, --query, --header and --scheme")
    if not _host(wish):
        raise Invalid("no host", remedy="name the host that takes the credential, such as api.example.com")
    scheme = wish.scheme if wish.scheme is not None else Scheme.RAW
    place = Position(header=wish.header or "authorization", scheme=scheme, query=wish.query)
    return Binding(
        "",
        credential,
        _host(wish),
        wish.ports,
        wish.methods,
        wish.paths,
        (place,),
        wish.use,
        _variables(wish) or (),
        wish.shape or "generic",
        wish.uses,
        ranges=wish.ranges,
    )


def _host(wish: BindingWish) -> str:
    """What is mounted is in clear in the box, so that no host limits it."""
    return wish.host or (NOWHERE if wish.use is Use.MOUNTED and not wish.recipe else "")


def _variables(wish: BindingWish) -> tuple[str, ...] | None:
    """What is injected has no stand-in that a variable could hold."""
    return () if wish.use is Use.INJECT else wish.environment
