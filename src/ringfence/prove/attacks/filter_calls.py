"""Group C: every call that the filter denies, as it is told: the errno must be the filter's own, not the kernel's."""

from __future__ import annotations

import errno
import json
from functools import partial

from ringfence.prove.attacks.trying import DONE, Outcomes, Place, forked, syscall


def table(place: Place) -> Outcomes:
    """Argument: JSON, a list of [label, number, errno's name, arguments]. Done: another answer."""
    found = {}
    for label, number, wanted, arguments in json.loads(place.arguments[0]):
        said = forked(partial(_answer, number, arguments))
        found[label] = said if said == wanted else f"{DONE} answered {said}, not {wanted}"
    return found


def _answer(number: int, arguments: list[int]) -> None:
    """Raises what the kernel says; a call that goes through is told apart by an error that no filter gives."""
    result = syscall(number, *arguments)
    raise OSError(errno.EXFULL, str(result))


ATTACKS = {"table": table}
