"""Hostile values against the types of `wire.messages`: the very same dataclasses, strict, without extra fields.

Decoding has been done by then (`wire.framing.decode`): depth, keys, numbers and text are within bounds. A validator is
built on first use, 1 ms each, and kept in the `Shapes` object that the composition root makes. It must never accept
what the type does not say: no conversion of a number, a bool or a string into one another, at any depth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import SchemaSerializer, SchemaValidator

from ringfence.host.kernel.errors import Failed
from ringfence.wire.framing import RemoteProtocolError
from ringfence.wire.messages import METHODS, Method

_CONFIG = ConfigDict(strict=True, extra="forbid")
_ATOMS = frozenset({bool, float, int, str, type(None)})  # nearly all that there is


class Shapes:
    def __init__(self) -> None:
        self._validators: dict[type, SchemaValidator] = {}
        self._serializers: dict[type, SchemaSerializer] = {}

    def params(self, method: Method, raw: dict[str, Any]) -> Any:
        """The dataclass of the method's parameters. RemoteProtocolError: `raw` is not of that shape."""
        return self._validated(method.params, raw, method.name)

    def result(self, method: Method, raw: dict[str, Any]) -> Any:
        """The dataclass of the method's result, None for a method without one."""
        return None if method.result is None else self._validated(method.result, raw, f"reply to {method.name}")

    def say(self, method: Method, params: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters that the host is to say, as JSON with every field: dataclasses in them may be of wire.messages.
        Failed: they are not of that shape, which is a bug of ours."""
        return self._own(method.params, params, method.name)

    def answer(self, method: Method, result: Any) -> dict[str, Any]:
        """As `say`, for the result of a loop's ask; None is the empty one."""
        assert method.result is not None
        return self._own(method.result, {} if result is None else result, f"reply to {method.name}")

    def _own(self, shape: type, value: Any, what: str) -> dict[str, Any]:
        try:
            checked = self._validated(shape, _plain(value), what)
        except RemoteProtocolError as error:
            raise Failed(f"the host would have said nonsense: {error}") from error
        return self._spelled(shape, checked)

    def _spelled(self, shape: type, checked: Any) -> dict[str, Any]:
        """What asdict gives, at a tenth of its time: a thread of a thousand messages would take it 4 ms."""
        serializer = self._serializers.get(shape)
        if serializer is None:
            serializer = self._serializers[shape] = SchemaSerializer(_adapter(shape).core_schema)
        spelled: dict[str, Any] = serializer.to_python((checked,))[0]
        return spelled

    def _validated(self, shape: type, raw: dict[str, Any], what: str) -> Any:
        validator = self._validators.get(shape)
        if validator is None:
            validator = self._validators[shape] = _validator(shape)
        try:
            return validator.validate_python((raw,))[0]
        except ValidationError as error:
            raise RemoteProtocolError(f"{what}: {_first(error)}") from None


def schema() -> dict[str, Any]:
    """JSON Schema of each row of METHODS: `{"<method>": {..., "params": schema, "result": schema | null}}`."""
    return {name: _row(method) for name, method in sorted(METHODS.items())}


def _plain(value: Any) -> Any:
    """Dataclasses, and what holds them, as JSON."""
    kind = type(value)
    if kind is dict or (kind not in _ATOMS and isinstance(value, Mapping)):
        return {name: part if type(part) in _ATOMS else _plain(part) for name, part in value.items()}
    if kind not in _ATOMS and is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _row(method: Method) -> dict[str, Any]:
    return {
        "side": method.side.value,
        "kind": method.kind.value,
        "effect": method.effect,
        "max_bytes": method.max_bytes,
        "per_second": method.per_second,
        "budget": method.budget,
        "params": _json_schema(method.params),
        "result": None if method.result is None else _json_schema(method.result),
    }


def _adapter(shape: type) -> TypeAdapter[Any]:
    # pydantic takes a configuration for the inside of a tuple, not for a dataclass itself; nested ones inherit it.
    inside: Any = tuple.__class_getitem__((shape,))
    return TypeAdapter(inside, config=_CONFIG)


def _validator(shape: type) -> SchemaValidator:
    return SchemaValidator(_hardened(_adapter(shape).core_schema), {"strict": True, "extra_fields_behavior": "forbid"})


def _hardened(schema: Any) -> Any:
    """Two corrections of a strict core schema. A dataclass may be built from a dict (strict mode wants an instance),
    and a literal number is that number, not True or 1.0, which compare equal to 1."""
    if isinstance(schema, list | tuple):
        return type(schema)(_hardened(part) for part in schema)
    if not isinstance(schema, dict):
        return schema
    out = {name: _hardened(part) for name, part in schema.items() if name != "metadata"}
    if out.get("type") == "dataclass":
        out["strict"] = False
    if out.get("type") == "literal" and all(type(value) is int for value in out["expected"]):
        return {"type": "chain", "steps": [{"type": "int", "strict": True}, out]}
    return out


def _json_schema(shape: type) -> dict[str, Any]:
    whole = _adapter(shape).json_schema()
    inner: dict[str, Any] = whole["prefixItems"][0]
    name = inner.get("$ref", "").rpartition("/")[2]
    defs: dict[str, Any] = dict(whole.get("$defs", {}))
    body: dict[str, Any] = defs.pop(name, inner)
    return {**body, "$defs": defs} if defs else body


def _first(error: ValidationError) -> str:
    """Where and what, never the value: it is the far end's, and goes into the audit."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part)[:40] for part in first["loc"][1:][:8])
    return f"{where or 'parameters'}: {first['type']}"
