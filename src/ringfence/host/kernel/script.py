"""The scripted provider's file: rules, and the answers that each gives one after another (docs/operate.md).

Pure: text in, `Rule`s out; reads no file and plays nothing. Strict, because a slip here would look like a fault of whatever
is tested with it: an unknown key, a key twice and a value of another type are errors that say where they stand.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from ringfence.host.kernel.arguments import INT_MAX, fault
from ringfence.host.kernel.errors import Invalid

MAX_SCRIPT_BYTES = 16 << 20
MAX_DELAY = 86_400.0  # seconds; longer than any deadline that a test waits for is `hang`
ERRORS = ("unavailable", "refused", "failed")
STOPS = ("end", "tool_calls", "length")

Stop = Literal["end", "tool_calls", "length"]


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    delay: float = 0.0  # seconds before it is said


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    pieces: tuple[Piece, ...] = ()  # together the text
    calls: tuple[ScriptedCall, ...] = ()
    stop: Stop = "end"
    delay: float = 0.0  # seconds before anything
    error: tuple[str, str] | None = None  # (code of ERRORS, message), after the pieces
    hang: bool = False  # after the pieces nothing comes, for ever
    usage: tuple[int, int] | None = None  # tokens (input, output); None: they are estimated

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def empty(self) -> bool:
        """Neither text nor call: a model that only thought."""
        return not (self.calls or self.error or self.hang or self.text.strip())

    @property
    def final(self) -> bool:
        """Whether a loop takes it for its reply: text, no tool call, not cut off."""
        return not self.calls and self.stop == "end" and bool(self.text.strip())


@dataclass(frozen=True, slots=True)
class Rule:
    when: str  # contained in the message; "" is contained in every one
    answers: tuple[Answer, ...]


def parse_script(text: str, source: str = "script") -> tuple[Rule, ...]:
    """Invalid: no JSON, or not a list of rules; says where."""
    try:
        raw = json.loads(text, object_pairs_hook=_once, parse_int=_integer, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Invalid(
            f"{source}: not JSON: {error}", remedy="a script is a JSON list of rules: docs/operate.md"
        ) from error
    try:
        return tuple(_rule(one, f"rule {n}") for n, one in enumerate(_list(raw, "the script"), 1))
    except ValueError as error:
        raise Invalid(f"{source}: {error}", remedy="a script is a JSON list of rules: docs/operate.md") from error


# --- objects ---------------------------------------------------------------------------------------------------------


def _rule(raw: object, where: str) -> Rule:
    fields = _fields(raw, where, {"when": _text, "answers": _list}, needed=("when", "answers"))
    if not fields["answers"]:
        _wrong(where, "answers must not be empty")
    return Rule(fields["when"], tuple(_answer(a, f"{where}, answer {n}") for n, a in enumerate(fields["answers"], 1)))


def _answer(raw: object, where: str) -> Answer:
    said = _fields(raw, where, _ANSWER)
    if not said.keys() & {"text", "deltas", "tool_calls", "error", "hang"}:
        _wrong(where, "an answer needs text, deltas, tool_calls, error or hang")
    calls = said.get("tool_calls", ())
    stop = said.get("stop", "tool_calls" if calls else "end")
    if (stop == "tool_calls") != bool(calls):
        _wrong(where, f"stop {stop!r} does not go with {len(calls)} tool calls")
    if said.get("hang") and "error" in said:
        _wrong(where, "an answer that hangs has no error")
    pieces = said["deltas"] if "deltas" in said else tuple(Piece(part) for part in pieces_of(said.get("text", "")))
    if "deltas" in said and "text" in said and said["text"] != "".join(piece.text for piece in pieces):
        _wrong(where, "text is not what the deltas are together; leave one of them out")
    return Answer(
        pieces,
        calls,
        stop,
        said.get("delay_seconds", 0.0),
        said.get("error"),
        said.get("hang", False),
        said.get("usage"),
    )


def pieces_of(text: str, pieces: int = 4, least: int = 64) -> list[str]:
    """A text in a few pieces of at least 64 characters, the last one what is left."""
    size = max(least, -(-len(text) // pieces))
    return [text[at : at + size] for at in range(0, len(text), size)]


def _deltas(value: object, where: str) -> tuple[Piece, ...]:
    return tuple(_piece(one, f"{where}, piece {n}") for n, one in enumerate(_list(value, where), 1))


def _piece(raw: object, where: str) -> Piece:
    if isinstance(raw, str):
        return Piece(_text(raw, where))
    said = _fields(raw, where, {"text": _text, "delay_seconds": _seconds}, needed=("text",))
    return Piece(said["text"], said.get("delay_seconds", 0.0))


def _calls(value: object, where: str) -> tuple[ScriptedCall, ...]:
    found = []
    for n, one in enumerate(_list(value, where), 1):
        said = _fields(one, f"{where}, call {n}", {"name": _text, "arguments": _arguments}, needed=("name",))
        found.append(ScriptedCall(said["name"], said.get("arguments", {})))
    return tuple(found)


def _arguments(value: object, where: str) -> dict[str, Any]:
    arguments = _object(value, where)
    wrong = fault(arguments)
    return _wrong(where.removesuffix(", arguments"), wrong) if wrong else arguments


def _error(value: object, where: str) -> tuple[str, str]:
    said = _fields(value, where, {"code": _one_of(ERRORS), "message": _text}, needed=("code",))
    return said["code"], said.get("message", f"the script says {said['code']}")


def _usage(value: object, where: str) -> tuple[int, int]:
    both = ("input_tokens", "output_tokens")
    said = _fields(value, where, dict.fromkeys(both, _count), needed=both)
    return said["input_tokens"], said["output_tokens"]


# --- values ----------------------------------------------------------------------------------------------------------


def _fields(
    raw: object, where: str, known: Mapping[str, Callable[[object, str], Any]], needed: Iterable[str] = ()
) -> dict[str, Any]:
    for name in _object(raw, where):
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            _wrong(where, f"unknown key {name!r}{hint} (known: {', '.join(known)})")
    for name in needed:
        if name not in _object(raw, where):
            _wrong(where, f"{name} is missing")
    return {name: known[name](value, f"{where}, {name}") for name, value in _object(raw, where).items()}


def _object(value: object, where: str) -> dict[str, Any]:
    return value if isinstance(value, dict) else _wrong(where, "must be an object")


def _list(value: object, where: str) -> list[Any]:
    return value if isinstance(value, list) else _wrong(where, "must be a list")


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        _wrong(where, "must be text")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        _wrong(where, "has half of a surrogate pair, which no UTF-8 can say")
    return value


def _flag(value: object, where: str) -> bool:
    return value if isinstance(value, bool) else _wrong(where, "must be true or false")


def _seconds(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_DELAY:
        _wrong(where, f"must be a number of seconds from 0 to {MAX_DELAY:.0f}")
    return float(value)


def _count(value: object, where: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 31:
        _wrong(where, "must be a whole number of 0 or more")
    return value


def _one_of(allowed: tuple[str, ...]) -> Callable[[object, str], str]:
    def check(value: object, where: str) -> str:
        return str(value) if value in allowed else _wrong(where, f"must be one of {', '.join(allowed)}")

    return check


_ANSWER: Mapping[str, Callable[[object, str], Any]] = {
    "text": _text,
    "deltas": _deltas,
    "tool_calls": _calls,
    "stop": _one_of(STOPS),
    "delay_seconds": _seconds,
    "error": _error,
    "hang": _flag,
    "usage": _usage,
}


def _wrong(where: str, what: str) -> NoReturn:
    raise ValueError(f"{where}: {what}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} is there twice")
    return found


def _integer(digits: str) -> int:
    """Longer ones than 64 bits need are not converted, which takes its time: they are refused where they stand."""
    return int(digits) if len(digits) <= 20 else INT_MAX + 1


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
