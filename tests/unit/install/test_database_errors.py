"""What the process of a `db` verb says went wrong arrives as an error of the same kind, whatever it was."""

from __future__ import annotations

import pytest

from ringfence.host.install.database import told
from ringfence.host.kernel.errors import Failed, Refused, RingfenceError


def kinds(of: type[RingfenceError]) -> list[type[RingfenceError]]:
    return [of, *(each for below in of.__subclasses__() for each in kinds(below))]


@pytest.mark.parametrize("kind", kinds(RingfenceError))
def test_every_kind_arrives(kind: type[RingfenceError]) -> None:
    said = kind("the message", remedy="the remedy", count=3)
    error = told({"error": said.as_json(), "exit_code": said.exit_code})
    assert (error.message, error.remedy, error.details) == ("the message", "the remedy", {"count": 3})
    assert error.exit_code == kind.exit_code


def test_a_backup_of_another_installation_is_refused() -> None:
    said = Refused("of another installation", remedy="put back installation.json first")
    error = told({"error": said.as_json(), "exit_code": said.exit_code})
    assert isinstance(error, Refused)


def test_one_that_nobody_knows() -> None:
    answer = {"error": {"code": "new", "message": "m", "remedy": "", "details": {}}, "exit_code": 99}
    assert isinstance(told(answer), Failed)
