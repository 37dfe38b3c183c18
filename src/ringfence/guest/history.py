"""The thread before the turn: how much of it the model is shown, and what becomes of it when the room ends.

A summary is made of messages and replies only, never of steps: it is kept for later runs of the actor.
"""

from ringfence.guest import compaction
from ringfence.guest.asking import all_tokens
from ringfence.guest.asks import RunFailed
from ringfence.guest.loop import AskError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ringfence.guest.asking import Asking
    from ringfence.guest.asks import Asks

MAX_PAGES = 64  # of 200 messages: beyond them a summary is what the model needs
PAGE = 200
WINDOWS = 2  # of messages that are summarised at most: what is older is left out
MAX_TOKENS = 4 * 1024 * 1024  # whatever the window is: 16 MiB of text, in half of the largest blob
MAX_SUMMARY = 64 * 1024
EVENT = "compacting the conversation"
NOT_ALL = "(Some older messages are not part of this.)\n"
NO_SUMMARY = "({count} messages, of which there is no summary)"


def most_tokens(window: int) -> int:
    """The window, within reason."""
    return min(window, MAX_TOKENS)


def paged(start: "dict[str, Any]", host: "Asks", used: int) -> "tuple[list[dict[str, Any]], bool]":
    """(messages before the turn's own, oldest first; whether older ones are left out). Pages back while half of the
    window has room; `used`: tokens of everything else. AskError."""
    window = most_tokens(start["window"])
    found, left_out = _newest(start["messages"][:-1], WINDOWS * window)
    before, left = 0 if left_out else start["earlier"], window // 2 - used - sum(map(_tokens, found))
    after = start["summary"]["cursor"] if start["summary"] is not None else 0
    for _ in range(MAX_PAGES):
        if not before or left <= 0:
            break
        page = host.ask("thread.read", before=before, limit=PAGE)
        unknown = [message for message in page["messages"] if message["cursor"] > after]
        fitting, left_out = _newest(unknown, left)
        found, left = [*fitting, *found], left - sum(map(_tokens, fitting))
        older = page["more"] and len(unknown) == len(page["messages"]) and bool(unknown)
        before = page["messages"][0]["cursor"] if older and not left_out else 0
    return found, left_out or bool(before)


def _newest(messages: "list[dict[str, Any]]", room: int) -> "tuple[list[dict[str, Any]], bool]":
    chosen: list[dict[str, Any]] = []
    for message in reversed(messages):
        room -= _tokens(message)
        if room < 0:
            return chosen[::-1], True
        chosen.append(message)
    return chosen[::-1], False


def _tokens(message: "dict[str, Any]") -> int:
    return compaction.text_tokens(f"{message['author']}: {message['text']}") + compaction.OVERHEAD


def make_room(asking: "Asking", window: int) -> None:
    """Nothing at 70 % of the window or less. Else first the thread becomes a summary, piece by piece, then the oldest
    results of the turn go, each until half of the window is free: not at each call again. RunFailed `too_large`;
    AskError."""
    state, window = asking.state, most_tokens(window)
    limit = window * 7 // 10
    if all_tokens(state) <= limit:
        return
    asking.rewritten()
    _quietly(asking.host, "run.event", text=EVENT)
    while state.cursors and all_tokens(state) > window // 2:
        if compaction.total(state.messages[state.begin : state.head]) <= window // 20:
            break  # a summary would hardly be shorter
        _summarise(asking, window)
    if all_tokens(state) > limit:
        compaction.drop_results(state, window // 2, all_tokens(state))
    if all_tokens(state) > limit:
        compaction.cut_results(state, window // 8)
    if all_tokens(state) > window:
        raise RunFailed("too_large", f"the conversation has about {all_tokens(state)} tokens; the model takes {window}")


def _summarise(asking: "Asking", window: int) -> None:
    """The oldest half window of the history. Saved before, so that a new executor asks for the same summary."""
    state = asking.state
    count = compaction.oldest(state, window // 2)
    asking.save("before_model")
    answer = asking.generate(compaction.material(state, count, window // 2), [])
    text = str(answer["text"]).strip()
    if not text:
        state.summarised(count, NO_SUMMARY.format(count=count))
        return
    text = compaction.shortened(text, min(MAX_SUMMARY, window // 2) - len(NOT_ALL))
    if state.left_out:
        state.left_out, text = False, NOT_ALL + text
    cursor = state.summarised(count, text)
    if cursor:
        _quietly(asking.host, "thread.summarise", cursor=cursor, text=text)


def _quietly(host: "Asks", method: str, **params: "Any") -> bool:
    """For what the run does not need: a summary that makes later runs cheaper, a word to the actor who watches."""
    try:
        host.ask(method, **params)
    except AskError:
        return False
    return True
