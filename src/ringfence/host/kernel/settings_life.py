"""The tables `[rest]` and `[boxes]` of the file of settings: when boxes rest, how many may run, and with what /usr."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ringfence.host.kernel.images import HOST, NAMED, is_wish
from ringfence.host.kernel.life.caps import Caps
from ringfence.host.kernel.life.rests import Rests
from ringfence.host.kernel.settings_key import Key

YEAR = 366 * 86_400
_REST_SAYS: Mapping[str, str] = MappingProxyType(
    {
        "pause_after": "seconds that a box is idle before every process of it stands still; where the host cannot freeze, it "
        "is stopped; 0 = never",
        "stop_after": "seconds that it is idle before it is stopped: processes and /tmp go, files stay; 0 = never",
        "archive_after": "seconds that it is stopped and its files are unused before they are packed; the next start unpacks them; 0 = never",
        "max_age": "seconds since its start after which it is stopped once it is idle; 0 = never",
        "time_to_live": "seconds since its start after which it is stopped, whatever it does; 0 = never",
    }
)
_CAPS_SAYS: Mapping[str, tuple[int, int, str]] = MappingProxyType(
    {
        "most": (0, 100_000, "boxes of this server that may run, paused ones among them; 0 = as many as fit"),
        "most_tenant": (0, 100_000, "of them of one tenant; 0 = all"),
        "wait_seconds": (0, 3600, "how long the start of one more waits for room; then it is refused"),
        "memory_low_percent": (
            0,
            50,
            "when less of the host's memory is left, idle boxes are stopped, the longest idle first, and none is started; "
            "0 = never",
        ),
        "stalled_percent": (
            0,
            100,
            "when so much of ten seconds is lost waiting for memory (PSI), the same; 0 = never",
        ),
    }
)


def _whole(low: int, high: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return value

    return check


@dataclass(frozen=True, slots=True)
class Boxes(Caps):
    """The whole table `[boxes]`."""

    image: str = HOST  # what a box has as its /usr that was given none


def _image(value: object) -> str:
    if not isinstance(value, str) or not is_wish(value):
        raise ValueError(f"{HOST}, or the name or id of an image; {NAMED}")
    return value


_IMAGE = Key(
    "boxes.image",
    "name",
    f"{HOST}, or a name or id of `image ls`",
    "what boxes have as their /usr that are given no other: the host's own, or an image. A box is bound to it by its first start, and "
    "by `box upgrade`",
    _image,
)


def _rest_key(name: str) -> Key:
    return Key(f"rest.{name}", "whole number", f"0 to {YEAR}", _REST_SAYS[name], _whole(0, YEAR))


def _caps_key(name: str) -> Key:
    low, high, says = _CAPS_SAYS[name]
    return Key(f"boxes.{name}", "whole number", f"{low} to {high}", says, _whole(low, high))


LIFE: tuple[Key, ...] = (*map(_rest_key, _REST_SAYS), *map(_caps_key, _CAPS_SAYS), _IMAGE)


def rests(table: Mapping[str, int]) -> Rests:
    return Rests(**table)


def boxes(table: Mapping[str, Any]) -> Boxes:
    return Boxes(**table)
