"""A loop's conversation in the order that providers insist on, and names of tools that they take. Pure.

Every call of an assistant message has its result directly behind it, and no result is without its call: a loop that
dropped some to make room, or put a note between them, would be refused by the provider otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

NO_RESULT = "[the result of this call is not kept any more]"
UNREADABLE = "left_out"  # guest/toolset.LEFT_OUT: the loop then tells the model that nothing was carried out
_ODD = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME = 64  # both providers


def in_order(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The same messages: results behind their calls, what stood between them after those."""
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        calls = message.get("tool_calls") or ()
        if message["role"] == "tool":
            continue  # its call is gone
        yield message
        if not calls:
            continue
        results, between = {}, []
        while at < len(messages) and messages[at]["role"] in ("tool", "system"):
            one = messages[at]
            if one["role"] == "tool":
                results[one.get("tool_call_id")] = one
            else:
                between.append(one)
            at += 1
        for call in calls:
            yield results.get(call["id"]) or {"role": "tool", "text": NO_RESULT, "tool_call_id": call["id"]}
        yield from between


class ToolNames:
    """`http.webhook` is no name to a provider: each is given one that is, and found again by it."""

    def __init__(self, names: Iterable[str]) -> None:
        self._out: dict[str, str] = {}
        self._back: dict[str, str] = {}
        for name in names:
            self.out(name)

    def out(self, name: str) -> str:
        if name not in self._out:
            plain = _ODD.sub("_", name)[:_MAX_NAME] or "_"
            given, n = plain, 2
            while given in self._back:
                given, n = f"{plain[: _MAX_NAME - 4]}_{n}", n + 1
            self._out[name], self._back[given] = given, name
        return self._out[name]

    def back(self, name: str) -> str:
        """One that the model made up stays as it is: the loop says that there is none such."""
        return self._back.get(name, name)


def call_of(names: ToolNames, id_: object, name: object, arguments: str) -> dict[str, Any]:
    """A call as the loop takes it. `arguments`: JSON text of the model, which may be none."""
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        value = {UNREADABLE: "they were no JSON object"}
    return {"id": str(id_), "name": names.back(str(name)), "arguments": value}
