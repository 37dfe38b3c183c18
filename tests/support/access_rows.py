"""The rows of tests/contract/test_access.py: who gets what at which route, and the rows of what leaves a box."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ringfence.host.kernel.outward.rules import Verdict
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.wishes import BindingWish, RuleWish
from tests.support.access_rig import ALICE, WHO, Scene
from tests.support.engine_rig import OPERATOR

U = "/v1/tenants/{tenant}/users/{user}"
T = "/v1/tenants/{tenant}/threads/{thread}"


@dataclass(frozen=True)
class Row:
    """`statuses`: in the order of WHO. `seen`: which of alice's canaries the answer holds, exactly; nobody else's has any.
    What the address says itself is not counted."""

    statuses: str
    seen: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    query: str = ""
    run: str = "done"

    def status(self, who: str) -> int:
        return int(self.statuses.split()[WHO.index(who)])

    def kinds(self, who: str) -> set[str]:
        return set(self.seen.get(who, "").split())


def row(statuses: str, body: Mapping[str, Any] | None = None, query: str = "", run: str = "done", **seen: str) -> Row:
    return Row(statuses, each(seen), body, query, run)


def each(seen: Mapping[str, str]) -> dict[str, str]:
    """`reads` and `operators`: for two of WHO each."""
    pairs = {"reads": ("owner", "reader"), "operators": ("operator", "glass")}
    return {who: kinds for name, kinds in seen.items() for who in pairs.get(name, (name,))}


#              anonymous box foreign stranger member owner reader operator glass
ANYBODY = "          200 200     200      200    200   200    200      200   200"
LOGGED_IN = "        401 401     200      200    200   200    200      200   200"
OF_TENANT = "        401 401     404      200    200   200    200      200   200"
OPERATORS_MAKE = "   401 401     403      403    403   403    403      201   201"
OPERATORS_NO_CA = "  401 401     403      403    403   403    403      503   503"
OPERATORS_REFUSE = " 401 401     403      403    403   403    403      409   409"
OWN_READ = "         401 401     404      404    404   200    200      200   200"
OWN_CHANGE = "       401 401     404      404    404   200    403      200   200"
OWN_MAKE = "         401 401     404      404    404   201    403      201   201"
OWN_DELETE = "       401 401     404      404    404   204    403      204   204"
LIMITS = "           401 401     404      404    404   403    403      200   200"
REMOVAL = "          401 401     404      404    404   403    403      200   200"
REMOVE = "           401 401     404      404    404   403    403      204   204"
TENANT_MAKE = "      401 401     404      201    201   201    403      201   201"
MEMBER_READ = "      401 401     404      404    200   200    200      200   200"
MEMBER_CHANGE = "    401 401     404      404    204   204    403      204   204"
TEXT_READ = "        401 401     404      404    200   200    200      403   200"
POST = "             401 401     404      404    202   202    403      403   403"
OWN_RUN = "          401 401     404      404    403   202    403      202   202"
OPERATORS_READ = "   401 401     403      403    403   403    403      200   200"
OWN_ANSWER = "       401 401     404      404    404   200    403      403   403"
GLASS = "            401 401     404      404    403   403    403      200   200"

OPERATORS_MAKE_RULE = {"answer": "deny", "host": "of-WHO.test"}
A_VALUE = {"value_b64": "Y2FuYXJ5LXZhbHVl"}  # canary-value
SECRET = f"{U}/secrets/{{secret}}"
OUTWARD: dict[str, Row] = {
    "GET /v1/tenants/{tenant}/secrets": row(OPERATORS_READ, operators="secret name host"),
    "PUT /v1/tenants/{tenant}/secrets/{secret}": row(OPERATORS_READ, A_VALUE),
    "DELETE /v1/tenants/{tenant}/secrets/{secret}": row(OPERATORS_READ),
    "PUT /v1/tenants/{tenant}/secrets/{secret}/reach": row(OPERATORS_READ, {"host": "of-WHO.test"}),
    "DELETE /v1/tenants/{tenant}/secrets/{secret}/reach": row(OPERATORS_READ),
    f"GET {U}/secrets": row(OWN_READ, reads="secret host", operators="secret host"),
    f"PUT {SECRET}": row(OWN_CHANGE, A_VALUE, owner="host", operators="host"),
    f"PUT {SECRET}/grants/{{to}}": row(OWN_DELETE),
    f"DELETE {SECRET}/grants/{{to}}": row(OWN_DELETE),
    f"PUT {SECRET}/reach": row(OWN_CHANGE, {"host": "of-WHO.test"}, owner="host", operators="host"),
    f"DELETE {SECRET}/reach": row(OWN_CHANGE),
    f"POST {SECRET}/bindings": row(OWN_MAKE, {"recipe": "bearer", "host": "of-WHO.test"}),
    f"DELETE {U}/bindings/{{binding}}": row(OWN_CHANGE),
    f"DELETE {SECRET}": row(OWN_CHANGE),
    "GET /v1/vault": row(OPERATORS_READ),
    "POST /v1/vault/rotate": row(OPERATORS_READ),
    "POST /v1/vault/restored": row(OPERATORS_READ),
    f"DELETE {U}/ca": row(OPERATORS_NO_CA),
    "GET /v1/egress": row(OPERATORS_READ),
    "POST /v1/egress": row(OPERATORS_MAKE, OPERATORS_MAKE_RULE),
    "DELETE /v1/egress/{rule}": row(OPERATORS_READ),
    "GET /v1/tenants/{tenant}/egress": row(OPERATORS_READ),
    "POST /v1/tenants/{tenant}/egress": row(OPERATORS_MAKE, OPERATORS_MAKE_RULE),
    "DELETE /v1/tenants/{tenant}/egress/{rule}": row(OPERATORS_READ),
    f"GET {U}/egress": row(OWN_READ, reads="host", operators="host"),
    f"POST {U}/egress": row(OWN_MAKE, {"answer": "allow", "host": "of-WHO.test"}),
    f"POST {U}/egress-test": row(
        OWN_READ,
        {"method": "GET", "url": f"https://{ALICE['host']}/"},
        reads="secret host",
        operators="secret host",
    ),
    f"GET {U}/egress-log": row(OWN_READ, reads="secret host", operators="secret host"),
    f"DELETE {U}/egress/{{rule}}": row(OWN_CHANGE, owner="host", operators="host"),
}

# A run of hers is at work: what would end it is refused.
OWN_BUSY = "         401 401     404      404    404   409    403      409   409"
OPERATORS_BUSY = "   401 401     404      404    404   403    403      409   409"
COPIES: dict[str, Row] = {
    f"POST {U}/box/pause": row(OWN_BUSY, {}),
    f"GET {U}/box/logs": row(OWN_READ),
    f"POST {U}/box/resume": row(OWN_CHANGE, owner="box", operators="box"),
    f"POST {U}/box/upgrade": row(LIMITS, operators="box"),
    f"POST {U}/box/snapshots": row(OWN_MAKE, {}),
    f"GET {U}/box/snapshots": row(OWN_CHANGE),
    f"POST {U}/box/snapshots/{{snapshot}}/restore": row(OWN_BUSY, {}),
    f"DELETE {U}/box/snapshots/{{snapshot}}": row(OWN_DELETE),
    f"POST {U}/box/reset": row(OWN_BUSY, {}),
    f"POST {U}/box/archive": row(OWN_BUSY, {}),
    f"POST {U}/box/clone/{{to}}": row(
        "        401 401     404      404    404   403    403      422   422", {"drain": -1.0}
    ),
    f"POST {U}/box/recover": row(OPERATORS_BUSY, {"action": "fsck"}),
    f"GET {U}/box/export": row(LIMITS, operators="path"),
}


async def _copy_again(s: Scene) -> None:
    taken = await s.engine.copies.snapshot(OPERATOR, "default", "alice")
    s.names["snapshot"] = taken.snapshot.id


async def _secret_again(s: Scene) -> None:
    """Also bound, at the host that only alice and operators may see."""
    wish = BindingWish(host=ALICE["host"])
    value = Secret(ALICE["value"].encode())
    made = await s.engine.secrets.set(OPERATOR, "default", "alice", ALICE["secret"], value, shared=True, wish=wish)
    s.names["binding"] = next(each.id for each in made.bindings if each.host == ALICE["host"])


async def _tenants_secret_again(s: Scene) -> None:
    await s.engine.secrets.set_tenant(OPERATOR, "default", ALICE["secret"], Secret(b"canary-value"))


def _rule_again(tenant: str, user: str, host: str) -> Callable[[Scene], Awaitable[None]]:
    async def again(s: Scene) -> None:
        there = (await s.engine.egress.ls(OPERATOR, tenant, user)).rules
        found = next((each for each in there if each.host == host), None)
        if found is None:
            found = (await s.engine.egress.add(OPERATOR, tenant, user, RuleWish(Verdict.ALLOW, host))).rules[0]
        s.names["rule"] = found.id

    return again


BEFORE: dict[str, Callable[[Scene], Awaitable[None]]] = {
    "DELETE /v1/tenants/{tenant}/secrets/{secret}": _tenants_secret_again,
    "PUT /v1/tenants/{tenant}/secrets/{secret}/reach": _tenants_secret_again,
    "DELETE /v1/tenants/{tenant}/secrets/{secret}/reach": _tenants_secret_again,
    f"DELETE {SECRET}": _secret_again,
    f"DELETE {U}/bindings/{{binding}}": _secret_again,
    f"POST {U}/egress-test": _secret_again,
    f"GET {U}/egress-log": _secret_again,
    "DELETE /v1/egress/{rule}": _rule_again("", "", "for-all.test"),
    "DELETE /v1/tenants/{tenant}/egress/{rule}": _rule_again("default", "", "for-some.test"),
    f"DELETE {U}/egress/{{rule}}": _rule_again("default", "alice", ALICE["host"]),
    f"DELETE {U}/box/snapshots/{{snapshot}}": _copy_again,
    f"POST {U}/box/snapshots/{{snapshot}}/restore": _copy_again,
}
"""What a cell needs that the one before it may have used up."""
