"""Sizes in bytes as people write them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

_SIZE = re.compile(r"(\d{1,15})\s*(B|KiB|MiB|GiB|TiB)?\Z")
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def size_text(number: int) -> str:
    """1073741824 -> "1GiB": the largest unit that divides it."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if number and number % _UNITS[unit] == 0:
            return f"{number // _UNITS[unit]}{unit}"
    return str(number)


def parse_size(value: object) -> int:
    """Bytes of 1048576, "1048576", "1024KiB", "1MiB". ValueError: anything else."""
    if type(value) is int and value >= 0:
        return value
    match = _SIZE.match(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError('a size: whole bytes, or a string like "512MiB" or "2GiB"')
    return int(match[1]) * _UNITS[match[2] or "B"]


def size_within(low: int, high: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        number = parse_size(value)
        if not low <= number <= high:
            raise ValueError(f"a size from {size_text(low)} to {size_text(high)}")
        return number

    return check


def rate(value: object) -> int:
    """Bytes in a second. ValueError: between 0, which is no bound, and one grant of the wire."""
    number = size_within(0, 16 << 30)(value)
    if 0 < number < 64 << 10:
        raise ValueError("0 or a size from 64KiB to 16GiB")
    return number
