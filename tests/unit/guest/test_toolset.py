"""The table of tools: what is offered, and what is wrong with a call."""

from __future__ import annotations

from typing import Any

import pytest

from ringfence.guest import tools, toolset
from ringfence.guest.toolset import wrong
from ringfence.host.engine.shell import spec_of
from ringfence.host.kernel.runs import Effect


def test_each_tool_is_carried_out_by_somebody() -> None:
    assert set(toolset.NAMES) == set(tools._TOOLS) | {"shell"}
    assert {Effect(effect) for effect in toolset.EFFECTS.values()} == {Effect.LOCAL, Effect.PURE, Effect.IDEMPOTENT}


def test_a_schema_says_what_is_required_and_allows_nothing_else() -> None:
    for spec in toolset.SPECS:
        assert set(spec) == {"name", "description", "parameters"}
        parameters = spec["parameters"]
        assert isinstance(parameters, dict)
        assert set(parameters["required"]) <= set(parameters["properties"])
        assert parameters["additionalProperties"] is False
        assert all(value["description"] for value in parameters["properties"].values())


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("shell", {"command": "x"}),
        ("shell", {"command": "x", "cwd": "/tmp", "timeout": 0.5}),
        ("read", {"path": "f", "offset": 0, "length": 5}),
        ("list", {}),
        ("search", {"text": "x", "path": "d"}),
    ],
)
def test_good_calls(name: str, arguments: dict[str, Any]) -> None:
    assert wrong(name, arguments) == ""
    if name == "shell":
        spec_of(arguments)  # control: the host takes them too


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("fly", {}, "there is no tool 'fly'; there are shell, read"),
        ("read", {}, "read needs the argument 'path'"),
        ("read", {"path": 7}, "path must be text"),
        ("read", {"path": None}, "path must be text"),
        ("read", {"path": "f", "offset": -1}, "offset must be a whole number of 0 or more"),
        ("read", {"path": "f", "offset": "1"}, "offset must be a whole number"),
        ("read", {"path": "f", "length": 1.5}, "length must be a whole number"),
        ("shell", {"command": "x", "timeout": True}, "timeout must be a number above 0"),
        ("list", {"folder": "x"}, "list has no argument 'folder'; it has path"),
    ],
)
def test_what_is_wrong_is_said(name: str, arguments: dict[str, Any], says: str) -> None:
    assert says in wrong(name, arguments)
