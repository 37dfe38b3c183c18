"""docs/life.md: the states of a box, drawn and told from the table that decides (states.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ringfence.host.kernel.life.states import IN_QUARANTINE, TABLE, State, Step, Verb

_HEAD = """# The life of a box

Made from `host/kernel/life/states.py` by `make docs`: the table there decides, and this is what it says.

```mermaid
stateDiagram-v2
    [*] --> absent
"""
_SAYS = {
    State.ABSENT: "nothing of it is there yet; its row is",
    State.STOPPED: "files and ids, no process; /tmp is empty",
    State.STARTING: "on its way",
    State.RUNNING: "its PID 1 answers",
    State.PAUSED: "every process stands still and keeps its memory; the next use resumes it",
    State.ARCHIVED: "stopped, and its files are packed; the next start unpacks them",
    State.LOST: "it ran and is gone: killed, or the host was restarted; the next use starts it anew, once",
}


def as_markdown() -> str:
    return "".join(_lines())


def _lines() -> Iterator[str]:
    yield _HEAD
    for (begin, end), verbs in _arrows().items():
        yield f"    {begin} --> {end}: {', '.join(verbs)}\n"
    yield "    running --> lost: it ended\n    paused --> lost: it ended\n```\n\n"
    yield "| state | is |\n|---|---|\n"
    for state in State:
        yield f"| {state.value} | {_SAYS[state]} |\n"
    yield "\n| verb | from | to | is over in | at work |\n|---|---|---|---|---|\n"
    for verb, row in TABLE.items():
        for end, begins in _by_end(verb).items():
            step = row[begins[0]]
            work = "refused, unless forced" if any(row[begin].idle for begin in begins) else "goes on, or ends with it"
            yield f"| {verb.value} | {', '.join(begins)} | {end} | {step.seconds:.0f} s | {work} |\n"
    asked = ", ".join(sorted(IN_QUARANTINE))
    yield f"\nIn quarantine its user may look at a box, and nothing else; operators may ask it for: {asked}.\n"


def _arrows() -> dict[tuple[str, str], list[str]]:
    """Of what changes a state."""
    found: dict[tuple[str, str], list[str]] = {}
    for verb, row in TABLE.items():
        for begin in _in_order(row):
            if begin is not row[begin].to:
                found.setdefault((begin.value, row[begin].to.value), []).append(verb.value)
    return found


def _by_end(verb: Verb) -> dict[str, list[State]]:
    found: dict[str, list[State]] = {}
    for begin in _in_order(TABLE[verb]):
        end = TABLE[verb][begin].to
        found.setdefault("the same" if end is begin else end.value, []).append(begin)
    return found


def _in_order(row: Mapping[State, Step]) -> list[State]:
    return [state for state in State if state in row]
