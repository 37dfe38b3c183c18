"""Every row of the filter's table as calls that the filter must answer, with arguments that mean nothing to a kernel
without one: numbers that are no descriptor, pointer, process or flag. Pure.
"""

from __future__ import annotations

import errno
import json

from ringfence.spawner import seccomp
from ringfence.spawner.seccomp_table import ROWS, Is, IsNot, Row, Test

NOTHING = -1  # of a descriptor, a pid, flags, a size, a pointer
OTHERS = (NOTHING, 0x0040000, 0)  # a value that a test rules out gives way to the next


def argument() -> str:
    """JSON for attacks/filter_calls.py: a list of [label, number, errno's name, arguments]."""
    arch = seccomp.machine()
    made = []
    for row in ROWS:
        number = seccomp.number(row, arch)
        for place, arguments in enumerate(calls(row) if number is not None else []):
            label = row.name if place == 0 else f"{row.name} {place + 1}"
            made.append([label, number, errno.errorcode[row.error], arguments])
    return json.dumps(made)


def calls(row: Row) -> list[list[int]]:
    """Six arguments for each case of a row, one that only that case denies."""
    return [_of_case(row, case) for case in row.cases or ((),)]


def _of_case(row: Row, case: tuple[Test, ...]) -> list[int]:
    words = [NOTHING] * 6
    for each in (test for other in row.cases if other is not case for test in other):
        words[each.arg] = each.values[0] if isinstance(each, IsNot) else 0
    for test in case:
        if isinstance(test, Is):
            words[test.arg] = test.values[0]
        elif isinstance(test, IsNot):
            words[test.arg] = next(word for word in OTHERS if word & test.mask not in test.values)
        else:
            words[test.arg] = NOTHING
    return words
