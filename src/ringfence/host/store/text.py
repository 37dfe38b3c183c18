"""Which text the database can keep: what UTF-8 can spell, without NUL (PostgreSQL's text type takes none). Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ringfence.host.kernel.errors import Invalid, TooLarge

MAX_VALUE_BYTES = 256 * 1024  # arguments and result of a step, a message, a reply: what is larger is a blob
# Made once: json.dumps with options of its own makes an encoder for each call, which takes longer than a small value does.
short_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_INSTEAD = "\ufffd"


class JsonMade(str):
    """What `json_text` gave: a column of JSON takes it as it is."""

    __slots__ = ()


def storable(text: str) -> bool:
    return not _odd(text)


def cleaned(text: str) -> str:
    """NUL and lone surrogates become U+FFFD: for text whose writer cannot be asked to mend it."""
    return "".join(_INSTEAD if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in text) if _odd(text) else text


def _odd(text: str) -> bool:
    if "\0" in text:
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def checked(text: str, what: str, limit: int = MAX_VALUE_BYTES) -> str:
    """The text itself. Invalid: not storable. TooLarge: more than `limit` bytes of UTF-8."""
    if _odd(text):
        raise Invalid(f"{what} has a NUL or is not Unicode text", remedy="send binary data as a file of the box")
    size = len(text.encode())
    if size > limit:
        raise too_large(what, size, limit)
    return text


def checked_json(value: Mapping[str, Any], what: str, limit: int = MAX_VALUE_BYTES) -> dict[str, Any]:
    """A copy. Invalid: no JSON. TooLarge: more than `limit` bytes as JSON."""
    copy = dict(value)
    try:
        size = len(short_json(copy).encode(errors="replace"))
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"{what} is no JSON value: {error}") from error
    if size > limit:
        raise too_large(what, size, limit)
    return copy


def made_json(value: Mapping[str, Any], what: str, limit: int) -> JsonMade:
    """As `checked_json`, and as the column takes it."""
    try:
        made = JsonMade(json_text(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"{what} is no JSON value: {error}") from error
    # A character has four bytes at most: short ones are not counted.
    if len(made) * 4 > limit and (size := len(made.encode())) > limit:
        raise too_large(what, size, limit)
    return made


def json_text(value: Any) -> str:
    """Short JSON; UTF-8 where it can be. ValueError or TypeError: no JSON value."""
    text = short_json(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text


def too_large(what: str, size: int, limit: int) -> TooLarge:
    return TooLarge(
        f"{what} has {size} bytes; the limit is {limit}", remedy="put it into a file of the box", size=size, limit=limit
    )
