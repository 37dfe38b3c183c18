"""The native agent loop: model, tools, finish. Deterministic between two answers of the host.

After a redrive it starts from its checkpoint and asks the same steps again; the host answers those that were done from
the journal. It must not look at clocks, random numbers or the order of a set.

    state    {"v": 1, "messages": [...], "step": n, "calls": k}     JSON in the checkpoint
"""

import json
import time
from typing import Any, Protocol

from ringfence.guest import tools
from ringfence.guest.loop import AskError

MAX_MODEL_CALLS = 50
MODEL_TRIES = 4  # the first and three more while the model is unavailable
RETRY_SECONDS = 0.5
MAX_STATE = 480 * 1024
"""Bytes of a checkpoint: the wire allows 512 KiB."""
MAX_TEXT = 256 * 1024
DROPPED = "[an earlier result, dropped to make room]"

SYSTEM = (
    "You are one colleague of a team. You work in the box of the person who wrote the last message: commands and files "
    "that you use are that person's own. Tools: {tools}. "
)


class RunFailed(Exception):
    """The run cannot be finished. Said to the host as run.fail."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Asks(Protocol):
    """The host, as far as the loop needs it."""

    def ask(self, method: str, **params: Any) -> dict[str, Any]: ...


def carry_out(start: dict[str, Any], host: Asks) -> str:
    """The reply of the agent. `start`: the fields of RunStart. RunFailed; AskError."""
    state = _restored(start) or _fresh(start)
    while True:
        last = state["messages"][-1]
        if last["role"] == "assistant" and last["tool_calls"]:
            _carry_out_tools(state, host, last["tool_calls"])
        elif last["role"] == "assistant":
            _save(state, host, "final")
            return _bounded(last["text"])
        else:
            _think(state, host, start["model"])


def _fresh(start: dict[str, Any]) -> dict[str, Any]:
    system = SYSTEM.format(tools=", ".join(tools.NAMES)) + start["posture"]
    messages = [_message("system", system)]
    for message in start["messages"]:
        mine = message["role"] == "agent"
        text = message["text"] if mine else f"{message['author']}: {message['text']}"
        messages.append(_message("assistant" if mine else "user", text))
    if messages[-1]["role"] != "user":
        raise RunFailed("invalid", "the thread does not end with a message of a user")
    return {"v": 1, "messages": messages, "step": 0, "calls": 0}


def _restored(start: dict[str, Any]) -> dict[str, Any] | None:
    if start.get("checkpoint") is None:
        return None
    try:
        state = json.loads(start["checkpoint"])
        if state["v"] == 1 and state["messages"] and state["step"] >= 0 and state["calls"] >= 0:
            return dict(state)
    except (ValueError, KeyError, TypeError):
        pass
    raise RunFailed("incompatible", "the checkpoint of this run is not one that this loop can read")


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "text": text, "tool_calls": [], "tool_call_id": None}


# --- the model -------------------------------------------------------------------------------------------------------


def _think(state: dict[str, Any], host: Asks, model: str) -> None:
    if state["calls"] >= MAX_MODEL_CALLS:
        raise RunFailed("loop_guard", f"{MAX_MODEL_CALLS} calls of the model did not come to an end")
    _make_room(state)
    _save(state, host, "before_model")
    answer = _generate(state, host, model)
    state["calls"] += 1
    reply = _message("assistant", str(answer["text"]))
    reply["tool_calls"] = [dict(call) for call in answer["tool_calls"]]
    state["messages"].append(reply)
    if reply["tool_calls"]:
        _save(state, host, "before_effect")


def _generate(state: dict[str, Any], host: Asks, model: str) -> dict[str, Any]:
    for left in reversed(range(MODEL_TRIES)):
        try:
            return host.ask("model.generate", model=model, messages=state["messages"], tools=list(tools.NAMES))
        except AskError as error:
            if error.code != "unavailable" or not left:
                raise RunFailed(error.code, error.message) from None
        time.sleep(RETRY_SECONDS * (MODEL_TRIES - left))
    raise AssertionError("the last try returns or raises")


# --- tools -----------------------------------------------------------------------------------------------------------


def _carry_out_tools(state: dict[str, Any], host: Asks, calls: list[dict[str, Any]]) -> None:
    for call in calls:
        message = _message("tool", _text(_carry_out_one(state, host, call)))
        message["tool_call_id"] = call["id"]
        state["messages"].append(message)


def _carry_out_one(state: dict[str, Any], host: Asks, call: dict[str, Any]) -> dict[str, Any]:
    name, arguments = call["name"], call["arguments"]
    effect = tools.EFFECTS.get(name)
    if effect is None:
        return {"ok": False, "error": f"there is no tool {name!r}; there are {', '.join(tools.NAMES)}"}
    n = state["step"] + 1
    begun = host.ask("step.begin", n=n, tool=name, arguments=arguments, effect=effect)
    state["step"] = n
    if begun["decision"] == "refused":
        return {"ok": False, "error": f"refused: {begun['reason']}"}
    if begun["decision"] == "done":
        return dict(begun["result"] or {})
    result = tools.use(name, arguments)
    host.ask("step.end", n=n, result=result)
    return result


def _text(result: dict[str, Any]) -> str:
    """What the model reads: the facts as one line of JSON, so that no output can be taken for one of them."""
    return json.dumps(result, ensure_ascii=False, sort_keys=True)


# --- bounds ----------------------------------------------------------------------------------------------------------


def _save(state: dict[str, Any], host: Asks, boundary: str) -> None:
    host.ask("checkpoint.save", boundary=boundary, step=state["step"], state=_packed(state))


def _packed(state: dict[str, Any]) -> str:
    return json.dumps(state, separators=(",", ":"))


def _make_room(state: dict[str, Any]) -> None:
    """Drops the oldest results until the state fits into a checkpoint (and so into one ask of the model)."""
    size = len(_packed(state))
    for message in state["messages"]:
        if size <= MAX_STATE:
            return
        if message["role"] == "tool" and message["text"] != DROPPED:
            size -= len(json.dumps(message["text"])) - len(json.dumps(DROPPED))
            message["text"] = DROPPED
    if size > MAX_STATE:
        raise RunFailed("too_large", f"the conversation is {size} bytes long; the limit is {MAX_STATE}")


def _bounded(text: str) -> str:
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_TEXT:
        return text
    return data[: MAX_TEXT - 64].decode("utf-8", "ignore") + "\n[cut at 256 KiB]"
