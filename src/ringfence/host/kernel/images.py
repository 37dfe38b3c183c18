"""What boxes may have as their /usr: the host's, or an image that was built on it. Names, ids, and the listing that an id is the
digest of. Pure.

Two trees with the same paths, kinds, modes, targets and contents are one image, whenever and wherever they were built: owners, times
and hard links are no part of it. Must never take a name for an id, or an id for a name.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any

from ringfence.host.kernel.errors import Invalid

HOST = "host"  # the host's own /usr, which is always there
DEFAULT = "default"  # what the settings say: for `box upgrade`, no name of an image
ID = re.compile(r"tree:[0-9a-f]{32}\Z")  # as spawner/protocol.py, which a test holds to it
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
NAMED = "a name has 1 to 63 characters: a-z, 0-9, dot, underscore, hyphen; the first is a letter or a digit"
MOST_NAMES = 500


def check_name(name: str) -> str:
    """Of a new image. Invalid."""
    if name in (HOST, DEFAULT):
        raise Invalid(f"no image may be called {name!r}: the word has a meaning", remedy="ringfence image build NAME")
    if not NAME.match(name):
        raise Invalid(f"{name[:80]!r} is no name of an image", remedy=NAMED)
    return name


def is_wish(value: str) -> bool:
    """Whether a box can be given it: a name, an id or `host`."""
    return bool(value == HOST or ID.match(value) or (value != DEFAULT and NAME.match(value)))


def digits_of(image: str) -> str:
    """Of an id: the name of its folder."""
    return image.partition(":")[2]


class Listing:
    """The digest of a tree's entries, each said once, in one order: folders before what is in them, names by their bytes. Each
    field is preceded by its length, so that no entry can be taken for two."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256(b"ringfence image 1\n")

    def add(self, path: bytes, kind: str, mode: int, size: int, rest: bytes = b"") -> None:
        """`rest`: the target of a link, the SHA-256 of a file's content."""
        head = b"%d %d %s %o %d " % (len(path), len(rest), kind.encode(), mode, size)
        self._digest.update(head + path + rest + b"\n")

    @property
    def id(self) -> str:
        return f"tree:{self._digest.hexdigest()[:32]}"


@dataclass(frozen=True, slots=True)
class Use:
    """A row of the store that has something to do with images."""

    box: str
    tenant: str
    user: str
    wanted: str  # name or id; "": what the settings say
    bound: str  # what its next start has; "": not decided yet
    runs: str  # what it runs with now; "": it does not run

    @property
    def who(self) -> str:
        return f"{self.tenant}/{self.user} ({self.box})"


@dataclass(frozen=True, slots=True)
class Image:
    id: str
    names: tuple[str, ...] = ()
    bytes: int = 0
    entries: int = 0
    made_at: str = ""
    source: str = ""
    running: list[Use] = field(default_factory=list)
    wanted: list[Use] = field(default_factory=list)  # their next start has it

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "names": list(self.names),
            "bytes": self.bytes,
            "entries": self.entries,
            "made_at": self.made_at or None,
            "source": self.source,
            "running": [each.box for each in self.running],
            "wanted": [each.box for each in self.wanted],
        }


def uses(use: Use, image: str, names: tuple[str, ...], default: str) -> tuple[bool, bool]:
    """Whether a box runs on the image, and whether its next start has it. `image` empty: of the names alone. `default`: what the
    settings say."""
    runs = bool(image) and use.runs == image if image != HOST else use.runs.partition(":")[0] == HOST
    wish = use.bound or use.wanted or default
    return runs, wish == image or wish in names
