"""The table of verbs in docs/operate.md names each verb of `secret`, `vault`, `egress` and `backup`, and the fields that they answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from pydantic import BaseModel

from ringfence.cli.backup_command import backup
from ringfence.cli.egress_command import egress
from ringfence.cli.secret_command import secret
from ringfence.cli.vault_command import vault
from ringfence.host.web import shapes_egress, shapes_secrets

TITLE = "### Verbs, answers, exit codes\n"
TABLE = (Path(__file__).parents[1] / "docs" / "operate.md").read_text().split(TITLE)[1].split("\n## ")[0]
ROWS = [line.split(" | ") for line in TABLE.splitlines() if line.startswith("| `")]
GROUPS: dict[str, typer.Typer] = {"backup": backup, "secret": secret, "vault": vault, "egress": egress}
SHAPES: dict[str, tuple[type[BaseModel], ...]] = {
    "secret set": (shapes_secrets.SecretShape,),
    "secret bind": (shapes_secrets.BindingList, shapes_secrets.BindingShape),
    "secret unbind": (shapes_secrets.Unbound,),
    "secret rm": (shapes_secrets.Revoked,),
    "vault status": (shapes_secrets.VaultShape, shapes_secrets.AlteredShape),
    "vault rotate": (shapes_secrets.Rotated,),
    "vault restored": (shapes_secrets.Restored,),
    "egress allow": (shapes_egress.RuleList, shapes_egress.RuleShape),
    "egress test": (shapes_egress.TestShape,),
    "egress log": (shapes_egress.LogShape,),
}


def verbs(row: list[str]) -> set[str]:
    """`egress allow\\|deny U` is two."""
    found = set()
    for text in re.findall(r"`([^`]+)`", row[0]):
        group, names = text.split()[:2]
        found |= {f"{group} {name}" for name in names.split("\\|")}
    return found


def test_every_verb_has_its_row_and_no_other() -> None:
    there = {f"{group} {each.name}" for group, app in GROUPS.items() for each in app.registered_commands}
    assert set().union(*map(verbs, ROWS)) == there


@pytest.mark.parametrize("verb", SHAPES)
def test_the_fields_are_those_of_the_api(verb: str) -> None:
    [row] = [each for each in ROWS if verb in verbs(each)]
    assert set(re.findall(r'"(\w+)"', row[1])) == {name for shape in SHAPES[verb] for name in shape.model_fields}
