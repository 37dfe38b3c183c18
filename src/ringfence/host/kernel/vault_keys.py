"""Where the key of the vault comes from, and what a key looks like. Pure: whoever reads a source brings the bytes.

Must never put a byte of a key into what it says.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KEY_BYTES = 32
MAX_OLD = 32
MAX_READ = 4096  # bytes of a source: a key as text has 64 and a line end
_FORMS: Mapping[str, re.Pattern[str]] = {
    "file": re.compile(r"/[^\0]*"),
    "env": re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}"),
    "credential": re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}"),  # one name in a folder
    "command": re.compile(r"/[^\0]*"),
}
ALLOWED = "file:/PATH, env:NAME, credential:NAME, command:/PROGRAM ARGUMENTS"


@dataclass(frozen=True, slots=True)
class VaultKeys:
    """The table [vault]: sources. All empty: the files of the state, vault/master.key and vault/master.key.NAME."""

    key: str = ""
    old: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> VaultKeys:
        return cls(**{**raw, "old": tuple(raw.get("old", ()))})


def source_of(text: str) -> tuple[str, str]:
    """(kind, what it names). ValueError: what is allowed."""
    kind, colon, rest = text.partition(":")
    form = _FORMS.get(kind)
    if not colon or form is None or not form.fullmatch(rest) or (kind == "file" and ".." in rest.split("/")):
        raise ValueError(ALLOWED)
    return kind, rest


def check_source(value: object) -> str:
    """ "" or a source. ValueError."""
    if not isinstance(value, str):
        raise ValueError(ALLOWED)
    if value:
        source_of(value)
    return value


def check_sources(value: object) -> tuple[str, ...]:
    """ValueError."""
    if not isinstance(value, list | tuple) or len(value) > MAX_OLD or not all(value):
        raise ValueError(f"a list of at most {MAX_OLD} of {ALLOWED}")
    return tuple(check_source(each) for each in value)


def key_from(data: bytes) -> bytes:
    """The key: 32 bytes as they are, or as 64 hex digits or in base64 with white space around. b"": it is none."""
    if len(data) == KEY_BYTES:
        return data
    text = data.strip()
    for decode in (bytes.fromhex, lambda text: base64.b64decode(text, validate=True)):
        try:
            key = decode(text.decode("ascii"))
        except (ValueError, binascii.Error):
            continue
        if len(key) == KEY_BYTES:
            return key
    return b""
