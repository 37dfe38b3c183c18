"""Runs rows against a stage: each attack from each of its places, then the control; what came of it becomes a Result.

The verdict leans towards `open`: what cannot be told is not held.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace

from ringfence.prove.row import RUNNERS, Control, ControlKind, NotHere, Result, Row, Status, Tries
from ringfence.prove.stage import Stage

WORKERS = 4  # most rows wait for a box: two a processor
FAILED = "control failed"


def run_all(stage: Stage, rows: Sequence[Row], done: Callable[[Result], None]) -> list[Result]:
    """All of them, those that disturb others after the rest and one by one; in the order of `rows`. `done` hears each."""
    results: dict[str, Result] = {}
    pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="prove")
    try:
        for future in as_completed([pool.submit(run_row, stage, row) for row in in_turn(rows)]):
            _note(future.result(), results, done)
        for row in rows:
            if row.alone:
                _note(pool.submit(run_row, stage, row).result(), results, done)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return [results[row.id] for row in rows]


def in_turn(rows: Sequence[Row]) -> list[Row]:
    """Those that run beside others: first one of each play, which takes half a minute, and last those that share it: as
    many workers as there are would otherwise wait for one."""
    together = [row for row in rows if not row.alone]
    first = {row.play: row for row in reversed(together) if row.play}
    ahead = [row for row in together if first.get(row.play) is row]
    plain = [row for row in together if not row.play]
    return [*ahead, *plain, *(row for row in together if row.play and row not in ahead)]


def _note(result: Result, results: dict[str, Result], done: Callable[[Result], None]) -> None:
    results[result.row.id] = result
    done(result)


def run_row(stage: Stage, row: Row) -> Result:
    """Never raises for what a row does: that is `open`."""
    begun = time.monotonic()
    return replace(_tried(stage, row), seconds=time.monotonic() - begun)


def _tried(stage: Stage, row: Row) -> Result:
    seen: dict[str, Tries] = {}
    words: dict[str, str] = {}
    failed: list[str] = []
    for letter in row.runners:
        place = RUNNERS[letter]
        try:
            seen[place] = row.attack(stage, letter)
            words[place] = "open" if seen[place].done or not seen[place].outcomes else "held"
        except NotHere as reason:
            words[place] = f"not_applicable: {reason}"
        except Exception as error:
            failed.append(f"{place}: {type(error).__name__}: {error}"[:600])
            words[place] = "open"
    status, why = judge(words, failed)
    if status == "not_applicable":
        return Result(row, status, why, "none", why, words)
    control, shown, problem = run_control(stage, row.control)
    if problem and status == "held":
        status = "not_applicable" if row.control.impossible and not problem.startswith(FAILED) else "open"
    notes = [note for note in (why, problem or shown) if note]
    return Result(row, status, observed(seen, failed), control, "; ".join(notes), words)


def judge(words: dict[str, str], failed: Sequence[str]) -> tuple[Status, str]:
    """(status, why) of what the places said: one open place opens the row; a place that is not here is left out."""
    if "open" in words.values():
        return "open", "cannot be told: " + "; ".join(failed) if failed else "the attempt worked"
    if "held" in words.values():
        return "held", ""
    reasons = dict.fromkeys(word.removeprefix("not_applicable: ") for word in words.values())
    return "not_applicable", "; ".join(reasons)


def run_control(stage: Stage, control: Control) -> tuple[ControlKind, str, str]:
    """(what it was, what it showed, what is wrong with it or empty)."""
    if control.kind == "none" or control.how is None:
        return "none", control.shown_by, "" if control.shown_by else f"{FAILED}: there is none"
    try:
        tries = control.how(stage)
    except NotHere as reason:
        return "none", str(reason), ""
    except Exception as error:
        return "ran", "", f"{FAILED}: {type(error).__name__}: {error}"[:600]
    if tries.done:
        unshown = [name for name in tries.outcomes if name not in tries.done]
        return "ran", f"the control does not show {', '.join(unshown)}" if unshown else "", ""
    if control.impossible:
        return "ran", "", f"{control.impossible} ({tries.text})"
    return "ran", "", f"{FAILED}: {tries.text}"


def observed(seen: dict[str, Tries], failed: Sequence[str]) -> str:
    """What came of it; told once where all places saw the same."""
    texts = {place: tries.text for place, tries in seen.items()}
    same = len(set(texts.values())) == 1
    parts = [next(iter(texts.values()))] if same else [f"{place}: {text}" for place, text in texts.items()]
    return " | ".join([*parts, *failed])
