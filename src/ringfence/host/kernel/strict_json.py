"""The values of a JSON list, as strictly as a frame of the wire is read. Pure.

UTF-8, nothing before or after the list, at most MAX_DEPTH levels, no key twice, integers within 64 bits, finite numbers,
no half surrogates: what was read once can be written, stored and sent again. One value at a time, so that on a thread
the others get their turn in between. How much it may be is judged before, see json_bounds.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from ringfence.host.kernel.errors import Invalid

MAX_DEPTH = 64  # of the list; wire generation 1: framing.MAX_DEPTH
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
_INT_DIGITS = 20  # a sign and 19 digits: longer ones are refused before anything converts them
_BLANK = re.compile(r"[ \t\n\r]*")


def values_of(data: bytes) -> Iterator[Any]:
    """Invalid: at the first value that is none, or at the end, when it is no list."""
    text = _decoded(data)
    at = _after_blank(text, 0)
    if text[at : at + 1] != "[":
        raise Invalid("it is no list in JSON")
    at = _after_blank(text, at + 1)
    more = text[at : at + 1] != "]"
    while more:
        value, at = _scanned(text, at)
        _check(value)
        yield value
        at = _after_blank(text, at)
        more = text[at : at + 1] == ","
        at = _after_blank(text, at + 1) if more else at
    if text[at : at + 1] != "]" or _after_blank(text, at + 1) != len(text):
        raise Invalid(f"it is no JSON text: character {at} neither goes on with the list nor ends it")


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid(f"it is not UTF-8 at byte {error.start}") from None


def _after_blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    assert found is not None  # it matches nothing as well
    return found.end()


def _scanned(text: str, at: int) -> tuple[Any, int]:
    try:
        value, end = _DECODER.scan_once(text, at)
    except RecursionError:
        raise Invalid(f"it is deeper than {MAX_DEPTH} levels") from None
    except StopIteration as error:
        raise Invalid(f"it is no JSON text: no value at character {error.value}") from None
    except ValueError as error:
        raise Invalid(f"it is no JSON text: {str(error)[:200]}") from None
    return value, end


def _check(value: object) -> None:
    """Depth and text, without recursion: one level of the tree after the other."""
    level, depth = [value], 1  # within the list
    while level:
        depth += 1
        below: list[object] = []
        for item in level:
            if isinstance(item, (dict, list)):
                if depth > MAX_DEPTH:
                    raise Invalid(f"it is deeper than {MAX_DEPTH} levels")
                below.extend(item)
                if isinstance(item, dict):
                    below.extend(item.values())
            elif isinstance(item, str) and not item.isascii():
                _check_text(item)
        level = below


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise Invalid("it has half of a surrogate pair") from None


# --- what the C scanner asks for -------------------------------------------------------------------------------------


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise Invalid("it has a key twice")
    return value


def _integer(digits: str) -> int:
    value = int(digits) if len(digits) <= _INT_DIGITS else _INT_MAX + 1
    if not _INT_MIN <= value <= _INT_MAX:
        raise Invalid("it has an integer beyond 64 bits")
    return value


def _number(digits: str) -> float:
    value = float(digits)
    if value - value != 0.0:  # 1e999 is read as infinity
        raise Invalid("it has a number that is not finite")
    return value


def _constant(name: str) -> NoReturn:
    raise Invalid(f"it has {name}, which is not JSON")


_DECODER: Any = json.JSONDecoder(
    strict=True, object_pairs_hook=_pairs, parse_float=_number, parse_int=_integer, parse_constant=_constant
)
