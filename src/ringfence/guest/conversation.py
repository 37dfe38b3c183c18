"""The state of a run of the native loop: what the model is shown, and what must survive the loop's death. Pure.

    messages    [system] [summary]? history* own (assistant, tool*, steer, note of ours)*
                the history is the thread before the turn's own message; `cursors` has its cursors, one for each
    draft       index of the first message of an answer that has not been sent; None while there is none

An answer that was never sent was never said: when its actor says more, it is taken out again and the model answers all
of it. Nothing here may look at a clock or at the order of a set: the same events make the same state.
"""

from ringfence.guest.asks import RunFailed
from ringfence.guest.rendering import chat, spoken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Chat = dict[str, Any]

VERSION = 2
STEERED = "What follows was said while you had this to do; the message above still stands."
SUMMARY = "[My summary of this thread up to here]\n"
_PLAIN: "dict[str, type]" = {
    "actor": str,
    "names": list,  # known authors: their names at the beginning of a line are quoted
    "own": int,  # cursor of the turn's own message
    "cursors": list,
    "summary": int,  # cursor that the summary goes up to; 0 = no summary
    "left_out": bool,  # older messages are neither in the history nor in a summary, and no summary says so yet
    "step": int,  # the last one whose result is in `messages`
    "calls": int,  # of the model
    "seen": int,  # every message of the turn up to this cursor is in `messages`
    "ahead": list,  # cursors beyond `seen` that are in `messages` too: there may be others between them
    "wound": bool,  # the time is nearly over: no more tools
    "told": bool,  # and the model knows it
    "ended": bool,  # the draft is complete
    "empty": int,  # answers in a row that were none
    "scale": int,  # tokens of the model for 1000 that we estimate
    "last": str,  # fingerprint of the last call and result
    "repeats": int,  # how many times in a row
}
FIELDS = (*_PLAIN, "draft")
OF_RESULTS = ("step", "last", "repeats")  # fields that change with each result of a step, and by it alone


class State:
    """Fields as above. `messages` are fields of wire.messages.ChatMessage."""

    actor: str
    names: list[str]
    own: int
    cursors: list[int]
    summary: int
    left_out: bool
    step: int
    calls: int
    seen: int
    ahead: list[int]
    wound: bool
    told: bool
    ended: bool
    empty: int
    scale: int
    last: str
    repeats: int

    def __init__(self, messages: "list[Chat]", fields: "dict[str, Any]") -> None:
        """RunFailed `incompatible`: these are no fields of a state."""
        self.messages = messages
        self.draft: int | None = fields.get("draft")
        for name, kind in _PLAIN.items():
            if type(fields.get(name)) is not kind:
                raise RunFailed("incompatible", "the checkpoint of this run is not one that this loop can read")
            setattr(self, name, fields[name])

    def fields(self) -> "dict[str, Any]":
        return {name: getattr(self, name) for name in FIELDS}

    # --- people

    def take(self, said: "Sequence[dict[str, Any]]", sure: int) -> bool:
        """Takes up what the actor said meanwhile; True when some of it is new. `said`: fields of ThreadMessage, each
        given any number of times and in any order; `sure`: the store has nothing more up to this cursor."""
        new = {m["cursor"]: m for m in said if m["cursor"] > self.seen and m["cursor"] not in self.ahead}
        if new:
            self.drop_draft()
            if self.messages[-1]["role"] == "user":  # else it would look like a message of another turn
                self.note(STEERED)
        for cursor in sorted(new):
            self.messages.append(spoken(new[cursor], self.names, self.actor))
        self.seen = max(self.seen, sure)
        self.ahead = sorted(cursor for cursor in {*self.ahead, *new} if cursor > self.seen)
        return bool(new)

    # --- answers

    def note(self, text: str) -> None:
        """Ours, not a person's."""
        self.messages.append(chat("system", f"[{text}]"))

    def write(self, text: str) -> None:
        """A piece of an answer."""
        if self.draft is None:
            self.draft = len(self.messages)
        self.messages.append(chat("assistant", text))

    @property
    def pieces(self) -> list[str]:
        """Of the draft."""
        written = self.messages[self.draft :] if self.draft is not None else []
        return [message["text"] for message in written if message["role"] == "assistant"]

    def drop_draft(self) -> None:
        if self.draft is not None:
            del self.messages[self.draft :]
        self.draft, self.ended = None, False

    def keep_draft(self) -> None:
        """It was no answer after all: the model goes on to work."""
        self.draft, self.ended = None, False

    # --- calls of tools

    def waiting(self) -> "dict[str, Any] | None":
        """The first call of the model that has no result yet."""
        at = len(self.messages) - 1
        while self.messages[at]["role"] == "tool":
            at -= 1
        calls, done = self.messages[at]["tool_calls"], len(self.messages) - 1 - at
        return dict(calls[done]) if done < len(calls) else None

    def result(self, call: "dict[str, Any]", text: str) -> None:
        self.messages.append({**chat("tool", text), "tool_call_id": call["id"]})

    # --- the thread before the turn

    @property
    def begin(self) -> int:
        """Index of the first message of the history."""
        return 2 if self.summary else 1

    @property
    def head(self) -> int:
        """Index of the turn's own message."""
        return self.begin + len(self.cursors)

    def summarised(self, count: int, text: str) -> int:
        """Puts a summary in the place of the older one and the first `count` messages of the history. The cursor that
        it goes up to now, 0 when that is no further than before: a reply that came later than the turn's own message
        stands in the history too and does not count."""
        cursor = max([c for c in self.cursors[:count] if c < self.own], default=0)
        before = len(self.messages)
        self.messages[1 : self.begin + count] = [chat("assistant", SUMMARY + text)]
        if self.draft is not None:
            self.draft += len(self.messages) - before
        self.cursors = self.cursors[count:]
        further = cursor > self.summary
        self.summary = max(cursor, self.summary, 1)
        return cursor if further else 0


def fresh(
    start: "dict[str, Any]", names: list[str], history: "list[dict[str, Any]]", left_out: bool, system: str
) -> State:
    """`start`: the fields of RunStart; `history`: of ThreadMessage, in their order; `left_out`: there are older ones.
    RunFailed `invalid`."""
    actor, own = start["actor"], start["messages"][-1] if start["messages"] else None
    if own is None or own["role"] != "user":
        raise RunFailed("invalid", "the thread does not end with a message of a user")
    summary = start["summary"]
    messages = [chat("system", system)]
    if summary is not None:
        messages.append(chat("assistant", SUMMARY + summary["text"]))
    messages += [spoken(message, names, actor) for message in [*history, own]]
    fields: dict[str, Any] = {name: kind() for name, kind in _PLAIN.items()}
    fields |= {"actor": actor, "names": names, "own": own["cursor"], "seen": own["cursor"]}
    fields |= {"left_out": left_out, "scale": 1000}
    fields |= {"cursors": [message["cursor"] for message in history], "summary": summary["cursor"] if summary else 0}
    return State(messages, fields)
