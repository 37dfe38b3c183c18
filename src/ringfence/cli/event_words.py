"""Events of a thread in words for people. Pure; what it returns is safe to show on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ringfence.cli.say_it import plain, size

Event = Mapping[str, Any]
Body = Mapping[str, Any]
_SHOWN = 200  # characters of a step's argument


def line(event: Event) -> str:
    """One line, whatever is in it."""
    return plain(f"{event['cursor']:>6}  {str(event.get('at'))[:19]}  {event.get('actor') or '-':<12}  {words(event)}")


def words(event: Event) -> str:
    """What happened, without when and whose. A kind that is not known here (a newer server's) is shown as it is."""
    body: Body = event.get("body") or {}
    known = _WORDS.get(str(event["kind"]))
    return plain(known(body) if known else f"{event['kind']} {dict(body) or ''}".rstrip())


def _message(body: Body) -> str:
    what = "adds to the turn under way" if body.get("steer") else "says"
    text = f": {body['text']}" if "text" in body else " something"
    files = ", ".join(f"{each['path']} ({size(each['size'])})" for each in body.get("attachments") or ())
    return f"{what}{text}{f' [attached: {files}]' if files else ''}"


def _queued(body: Body) -> str:
    return f"queued{_more(body, 'reason')}"


def _started(body: Body) -> str:
    return "the agent starts"


def _redriven(body: Body) -> str:
    """Attempts are counted anew when somebody has a failed run tried again; else a second start is at least the second."""
    if body.get("attempt") == 1:
        return "tried again by hand"
    return "restarted" + (f" (attempt {body['attempt']})" if "attempt" in body else "")


def _begun(body: Body) -> str:
    return f"step {body.get('n', '?')}{_more(body, 'tool')}{_argument(body.get('arguments'))}"


def _argument(arguments: object) -> str:
    """The one that says most: the command, the path, or whatever comes first."""
    if not isinstance(arguments, Mapping) or not arguments:
        return ""
    first = next((arguments[name] for name in ("command", "path", "pattern") if name in arguments), None)
    shown = str(next(iter(arguments.values())) if first is None else first)
    return f" {shown[:_SHOWN]}{'...' if len(shown) > _SHOWN else ''}"


def _ended_step(body: Body) -> str:
    result = body.get("result")
    code = result.get("exit_code") if isinstance(result, Mapping) else None
    return f"step {body.get('n', '?')} ended{f', exit code {code}' if code else ''}"


def _reply(body: Body) -> str:
    return "the agent replies" + (f": {body['text']}" if "text" in body else "")


_ASKED = {
    "in_doubt": "whether it was done",
    "auth": "for its key to be renewed",
    "setup": "for what is missing to be set up",
}


def _parked(body: Body) -> str:
    asked = _ASKED.get(str(body.get("kind")), "whether it may go on")
    gate = f", gate {body['gate']}" if "gate" in body else ""
    return f"step {body.get('n', '?')}{_more(body, 'tool')}: asks {asked}{gate}"


def _answered(body: Body) -> str:
    return f"step {body.get('n', '?')}{_more(body, 'tool')}: the answer is {body.get('answer', 'there')}"


def _closed(body: Body) -> str:
    return f"step {body.get('n', '?')}: the question is closed{_more(body, 'state')}{_more(body, 'reason')}"


def _settled(body: Body) -> str:
    return f"step {body.get('n', '?')}{_more(body, 'tool')}: known only now{_more(body, 'state')}"


def _detail(body: Body) -> str:
    return f"why{_more(body, 'code')}{_more(body, 'message')}"


def _run_ended(body: Body) -> str:
    state, reason, message = (str(body.get(name) or "") for name in ("state", "reason", "message"))
    return f"the turn ended: {ending(state or '?', reason, message)}"


def ending(state: str, reason: str, why: str) -> str:
    """ "failed: deadline: it worked longer than a run may". Nothing twice: "cancelled", not "cancelled: cancelled: it was
    cancelled"."""
    parts = [state, "" if reason == state else reason, "" if why == f"it was {state}" else why]
    return ": ".join(part for part in parts if part)


def _member(became: str) -> Callable[[Body], str]:
    return lambda body: f"{body.get('user', 'somebody')} {became}"


def _glass(body: Body) -> str:
    return (
        f"an operator ({body.get('by', '?')}) opened this thread's text until {body.get('until', '?')}"
        f"{_more(body, 'reason')}"
    )


def _more(body: Body, name: str) -> str:
    return f": {body[name]}" if body.get(name) else ""


_WORDS: dict[str, Callable[[Body], str]] = {
    "message": _message,
    "run.queued": _queued,
    "run.started": _started,
    "run.redriven": _redriven,
    "step.begun": _begun,
    "step.ended": _ended_step,
    "reply": _reply,
    "run.parked": _parked,
    "run.resumed": lambda body: "the agent goes on",
    "gate.answered": _answered,
    "gate.closed": _closed,
    "effect.settled": _settled,
    "run.detail": _detail,
    "run.ended": _run_ended,
    "member.added": _member("is a member now"),
    "member.removed": _member("is no member any more"),
    "break_glass": _glass,
    "unknown": lambda body: "something that this release of the server does not know",
}
