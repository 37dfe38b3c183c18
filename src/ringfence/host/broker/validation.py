"""Hostile values against the types of `wire.messages`: the very same dataclasses, strict, without extra fields.

Decoding has been done by then (`wire.framing.decode`): depth, keys, numbers and text are within bounds. A validator is
built on first use, 1 ms each, and kept in the `Shapes` object that the composition root makes. It must never accept
what the type does not say: no conversion of a number, a bool or a string into one another, at any depth.
"""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from ringfence.wire.framing import RemoteProtocolError
from ringfence.wire.messages import METHODS, Method

_CONFIG = ConfigDict(strict=True, extra="forbid")


class Shapes:
    def __init__(self) -> None:
        self._validators: dict[type, SchemaValidator] = {}

    def params(self, method: Method, raw: dict[str, Any]) -> Any:
        """The dataclass of the method's parameters. RemoteProtocolError: `raw` is not of that shape."""
        return self._validated(method.params, raw, method.name)

    def result(self, method: Method, raw: dict[str, Any]) -> Any:
        """The dataclass of the method's result, None for a method without one."""
        return None if method.result is None else self._validated(method.result, raw, f"reply to {method.name}")

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
