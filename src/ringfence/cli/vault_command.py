"""`ringfence vault`: whether it is open, and rotation of the key that wraps. For operators."""

from __future__ import annotations

from typing import Any

import typer

from ringfence.cli import say_it
from ringfence.cli.calls import call
from ringfence.cli.options import Json, Tenant, User

vault = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="The vault's key: state and rotation.")
NOT_WELL = 5
_MEND = "  none of it counts: take it away (egress rm, secret unbind), add anew what is meant, and look who writes to the database"
_RESTORED = (
    "  the database says that it was put back, and this host did not do it: what is older in it is refused. If another host of a "
    "shared database did: ringfence vault restored; if none did, look who writes to it"
)


@vault.command("status")
def status(json: Json = False) -> int:
    """Show which key wraps, what cannot be read, and what was altered in the database; exit 5 when it is sealed or there is any."""
    found = call(lambda client: client.vault())
    if json:
        say_it.as_json(found)
    else:
        say_it.facts({name: value for name, value in found.items() if name not in ("sealed", "remedy", "altered")})
        say_it.line(f"sealed      {say_it.plain(found['sealed']) or 'no'}")
        if found["sealed"]:
            say_it.note(f"  {say_it.plain(found['remedy'])}")
        for each in found["altered"]:
            say_it.line(f"altered     {say_it.plain(_whose(each))}: {say_it.plain(each['why'])}")
        if found["altered"]:
            say_it.note(_MEND)
        if found["restored"]:
            say_it.note(_RESTORED)
    return NOT_WELL if any(found[each] for each in ("sealed", "unreadable", "altered", "restored")) else 0


@vault.command("restored")
def restored(json: Json = False) -> None:
    """Say that the shared database was put back by another host, so that what is older in it is right."""
    number = call(lambda client: client.vault_restored())
    say_it.as_json({"generation": number}) if json else say_it.line(f"agreed: generation {number} of the database")


@vault.command("forget-ca")
def forget_ca(user: User, tenant: Tenant = "default", json: Json = False) -> None:
    """Give up the CA of a user, such as one that does not open: the user's boxes get another at their next start."""
    call(lambda client: client.forget_ca(user), tenant=tenant)
    said = f"the CA of {say_it.plain(user)} is given up; then: ringfence box stop {say_it.plain(user)}"
    say_it.as_json({"user": user, "forgotten": True}) if json else say_it.line(said)


@vault.command("rotate")
def rotate(json: Json = False) -> int:
    """Wrap every value, and sign every roll, by the present key. May be cut off anywhere and asked again; exit 1 when a key is missing."""
    found = call(lambda client: client.rotate_vault())
    if json:
        say_it.as_json(found)
    else:
        say_it.line(f"{found['rewrapped']} values wrapped, {found['resigned']} rolls signed by the present key")
        if found["left"]:
            say_it.note(
                f"  {found['left']} are left: their key is not here (put it beside, as master.key.NAME), or they were altered"
            )
        if found["damaged"]:
            say_it.note(f"  do not open: {say_it.plain(', '.join(found['damaged']))}: store them again")
    return 1 if found["left"] or found["damaged"] else 0


def _whose(altered: dict[str, Any]) -> str:
    """`rules:usr_x rul_1, rul_2`."""
    return f"{altered['of']} {', '.join(dict.fromkeys((*altered['odd'], *altered['lost'])))}".strip()
