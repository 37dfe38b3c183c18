"""How far a credential that others may use reaches: where its owner lets it be sent. Pure.

Of a tenant's or a shared credential the owner says the places, as bindings of nobody's; whoever else binds it does so
at one of them, or at fewer hosts of one. They lie with the credential, under its seal: what was altered opens no value.
Must never let a binding be wider in anything than one place, nor take a text that it cannot read for a place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ringfence.host.kernel.canonical import canonical_json
from ringfence.host.kernel.errors import Failed, Invalid, Refused
from ringfence.host.kernel.ids import UserId
from ringfence.host.kernel.outward.credentials import Binding, Credential, Owner, Use
from ringfence.host.kernel.outward.patterns import host_pattern
from ringfence.host.kernel.outward.spelled import binding_digest, binding_from_json, binding_to_json

MAX_PLACES = 64  # a recipe has two; a binding as JSON is 0.2 to 5 KiB
MAX_BYTES = 64 * 1024


def anothers(credential: Credential, user: UserId) -> bool:
    """Whether it is not the user's own, so that its reach bounds what the user binds."""
    return credential.user != user


def places(credential: Credential) -> tuple[Binding, ...]:
    """Without ids. Empty: nobody but its owner binds it; so it is when the text cannot be read."""
    if not credential.reach:
        return ()
    try:
        return tuple(binding_from_json(each) for each in json.loads(credential.reach))
    except (Failed, ValueError, TypeError, AttributeError):
        return ()


def extended(credential: Credential, more: Iterable[Binding]) -> str:
    """The reach with these places too; what is mounted is nobody else's. Invalid: there are too many."""
    if credential.owner is Owner.USER:
        return ""
    bare = [replace(each, id="", credential="") for each in more if each.use is not Use.MOUNTED]
    every = list({binding_digest(each): each for each in (*places(credential), *bare)}.values())
    text = canonical_json([binding_to_json(each) for each in every]).decode() if every else ""
    if len(every) > MAX_PLACES or len(text.encode()) > MAX_BYTES:
        raise Invalid(
            f"{credential.name!r} would reach {len(every)} places; the limit is {MAX_PLACES}, and {MAX_BYTES} bytes",
            remedy="take wildcards, or begin anew: ringfence secret reach U NAME --none",
        )
    return text


def within(binding: Binding, reach: Sequence[Binding]) -> bool:
    return any(_within(binding, each) for each in reach)


def _within(binding: Binding, place: Binding) -> bool:
    """Paths are the place's, or some of them: to name one where the place names none would let a request out that asks
    a service for a token (begetting.py), which is the owner's to say."""
    methods = not place.methods or (bool(binding.methods) and binding.methods <= place.methods)
    paths = set(binding.paths) <= set(place.paths) and bool(binding.paths) == bool(place.paths)
    uses = place.uses is None or (binding.uses is not None and binding.uses <= place.uses)
    return (
        host_pattern(binding.host).within(host_pattern(place.host))
        and set(binding.ports) <= set(place.ports)
        and methods
        and paths
        and set(binding.positions) <= set(place.positions)
        and binding.use in (Use.PLACEHOLDER, place.use)
        and uses
        and (place.ranges or not binding.ranges)
    )


def check_within(credential: Credential, binding: Binding) -> None:
    """Refused, with what its owner may do. Of one that is not the binder's own."""
    reach = places(credential)
    if within(binding, reach):
        return
    whose = "an operator" if credential.owner is Owner.TENANT else "its owner"
    wide = " --tenant-wide" if credential.owner is Owner.TENANT else ""
    if not reach:
        raise Refused(
            f"where {credential.name!r} may be sent is not said: nobody but its owner binds it",
            remedy=f"{whose} says it: ringfence secret reach{wide} U {credential.name} --host H, or --recipe R",
        )
    hosts = ", ".join(sorted({each.host for each in reach}))
    raise Refused(
        f"{credential.name!r} may not be sent there, or not so: {whose} has said {hosts[:300]}",
        remedy=f"bind it as it is: ringfence secret bind U {credential.name}; or {whose} says more: "
        f"ringfence secret reach{wide}",
    )


def sends(credential: Credential, host: str, method: str) -> bool:
    """Whether some place has that host, a canonical name, and method."""
    return any(
        host_pattern(each.host).covers(host) and (not each.methods or method in each.methods)
        for each in places(credential)
    )
