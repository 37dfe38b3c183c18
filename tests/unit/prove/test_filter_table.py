"""The calls that row C26 makes: each is denied, and by the case that it was made for."""

from __future__ import annotations

import errno
import json
from dataclasses import replace

import pytest

from ringfence.prove import filter_table
from ringfence.spawner import seccomp, seccomp_table

WORD = (1 << 64) - 1


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_each_call_is_denied_by_its_own_case(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that case, and with all others, it goes through."""
    assert arch in ("x86_64", "aarch64")
    for row in seccomp_table.ROWS:
        number = seccomp.number(row, seccomp.arch_named(arch))
        for place, arguments in enumerate(filter_table.calls(row) if number is not None else []):
            assert number is not None
            words = [word & WORD for word in arguments]
            assert seccomp.model(arch)(number, words) == seccomp.Action("errno", row.error), row.name
            rest = tuple(case for other, case in enumerate(row.cases) if other != place)
            others = tuple(each for each in seccomp_table.ROWS if each != row)
            with monkeypatch.context() as changed:
                changed.setattr(seccomp, "ROWS", (*others, replace(row, cases=rest)) if rest else others)
                assert seccomp.model(arch)(number, words) == seccomp.ALLOW, (row.name, place)


def test_the_argument_names_every_row_of_this_machine() -> None:
    told = json.loads(filter_table.argument())
    names = {label.split(" ")[0] for label, *_ in told}
    here = seccomp.machine()
    assert names == {row.name for row in seccomp_table.ROWS if seccomp.number(row, here) is not None}
    assert {error for _, _, error, _ in told} == {errno.errorcode[row.error] for row in seccomp_table.ROWS}
    assert all(len(arguments) == 6 for *_, arguments in told)
