"""JSON text for the loop's own values, without the package `json`: what that imports takes longer than the loop's code.

For what this process made itself or has checked already; a frame of the wire is for `wire.framing`, which has bounds.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_native: "Any"
try:
    import _json as _native
except ImportError:  # an interpreter without the C accelerator: same text, slower
    _native = None


def dumps(value: object) -> str:
    """ASCII, without blanks."""
    return _text(value, False, True)


def shown(value: object) -> str:
    """For a model to read and to compare by: one line, keys sorted, text as it is."""
    return _text(value, True, False)


def _text(value: object, in_order: bool, ascii_only: bool) -> str:
    if _native is None:
        import json

        separators = (",", ":") if ascii_only else (", ", ": ")
        return json.dumps(value, sort_keys=in_order, ensure_ascii=ascii_only, separators=separators)
    quote = _native.encode_basestring_ascii if ascii_only else _native.encode_basestring
    key, item = (":", ",") if ascii_only else (": ", ", ")
    # markers, default, string encoder, indent, separators, sort, skip keys, NaN
    return "".join(_native.make_encoder(None, _unsayable, quote, None, key, item, in_order, False, True)(value, 0))


def _unsayable(value: object) -> object:
    raise TypeError(f"no JSON value: {type(value).__name__}")


def loads(text: str) -> "Any":
    """ValueError."""
    if _native is None:
        import json

        return json.loads(text)
    try:
        value, end = _native.make_scanner(_Rules)(text, 0)
    except (StopIteration, SystemError):  # SystemError: the C scanner, while json.decoder is not imported
        raise ValueError("no JSON") from None
    if end != len(text):
        raise ValueError("more than one value")
    return value


class _Rules:
    """What the C scanner asks its context for."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
