"""What the server says of a database that is not to be reached: silence is no pass, and a leak is seen in any form."""

from __future__ import annotations

from base64 import b64encode
from urllib.parse import quote

import pytest

from ringfence.prove.attacks.trying import DONE
from ringfence.prove.leak_database import COMMANDS, _looked
from ringfence.prove.leak_kinds import DATABASE_PASSWORD, needles

WANTED = needles("database password", DATABASE_PASSWORD)


def test_nothing_of_it() -> None:
    assert _looked(b"postgresql://prove:...@127.0.0.1:1/none cannot be reached", WANTED) == "nothing of it"


@pytest.mark.parametrize(
    "form",
    [
        DATABASE_PASSWORD,
        b64encode(DATABASE_PASSWORD),
        DATABASE_PASSWORD.hex().encode(),
        quote(DATABASE_PASSWORD).encode(),
    ],
)
def test_a_leak_is_named(form: bytes) -> None:
    told = _looked(b"cannot connect: " + form + b"!", WANTED)
    assert told.startswith(DONE) and "database password" in told


@pytest.mark.parametrize("said", [b"", b" \n"])
def test_who_says_nothing_has_not_passed(said: bytes) -> None:
    assert _looked(said, WANTED).startswith(DONE)


def test_whatever_shows_settings_is_looked_through() -> None:
    assert {("config", "show"), ("config", "show", "--json"), ("db", "check"), ("doctor",)} <= set(COMMANDS)
