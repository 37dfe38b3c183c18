"""kernel.life.support: sentences of ours come through with empty holes, and nothing else does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ringfence.host.kernel.life.support import HOLE, LEFT_OUT, MOST, Words

BOX = "b" * 16
SOURCE = '''
"""A docstring that says canary words nobody may know."""
class Gone(Exception): ...
def work():
    log.warning("box %s was lost while it was started: %s; once more", box, error)
    log.info("%d boxes adopted, %d runs adopted", a, b)
    log.info("%s: %s", a, b)
    raise Gone(f"box {box} does not listen: {why}")
    raise Gone(f"it took {seconds:.1f} s of the {limit} that it had")
    raise Gone("the database is full: 100 % of it")
    return {"state": "running", "part": "ringfence.engine"}
'''
WORDS = Words([("ringfence/host/engine/x.py", SOURCE)], {BOX})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("17 boxes adopted, 3 runs adopted", "17 boxes adopted, 3 runs adopted"),
        ("the database is full: 100 % of it", "the database is full: 100 % of it"),
        (f"box {BOX} does not listen: hunter2", f"box {BOX} does not listen: {HOLE}"),
        ("box other does not listen: running", f"box {HOLE} does not listen: {HOLE}"),
        ("it took 2.5 s of the 123456 that it had", f"it took 2.5 s of the {HOLE} that it had"),
        ("it took hunter2 s of the 9 that it had", f"it took {HOLE} s of the {HOLE} that it had"),
        (
            f"box {BOX} was lost while it was started: box {BOX} does not listen: hunter2; once more",
            f"box {BOX} was lost while it was started: box {BOX} does not listen: {HOLE}; once more",
        ),
        ("hunter2", LEFT_OUT),
        ("running", LEFT_OUT),
        ("canary: words", LEFT_OUT),
        ("A docstring that says canary words nobody may know.", LEFT_OUT),
        ("", LEFT_OUT),
        ("it took " + "x" * MOST + " s of the 9 that it had", LEFT_OUT),
    ],
)
def test_a_text(given: str, said: str) -> None:
    assert WORDS.text(given) == said


@pytest.mark.parametrize(
    "around", ["{}", "a does not listen: {}", "box {} was lost", "17 boxes {}, 3 runs adopted", "%s{}%s"]
)
def test_a_secret_stays_in_the_hole_whatever_is_around_it(around: str) -> None:
    secret = around.replace("{}", "hunter2")
    assert "hunter2" not in WORDS.text(f"box {secret} does not listen: {secret}")
    assert "hunter2" not in WORDS.text(secret)


def test_deep_nesting_ends() -> None:
    text = "hunter2"
    for _ in range(50):
        text = f"box {BOX} does not listen: {text}"
    assert "hunter2" not in WORDS.text(text)


def test_facts_are_numbers_and_words_of_ours() -> None:
    given = {
        "state": "running",
        "part": 3,
        "hunter2": 1,
        "box": "x",
        "list": [True, None, 1.5, "hunter2", BOX, "1.2.3"],
    }
    assert WORDS.plain({**given, "state": {"part": object()}}) == {"part": 3, "state": {"part": LEFT_OUT}}
    assert WORDS.plain(given["list"]) == [True, None, 1.5, LEFT_OUT, BOX, "1.2.3"]
    assert WORDS.plain("2026-01-31T12:00:00+00:00") == "2026-01-31T12:00:00+00:00"


def test_a_line_of_the_log() -> None:
    error = (
        'Traceback (most recent call last):\n  File "/home/hunter2/ringfence/host/engine/x.py", line 7, in work\n'
        '  File "/home/hunter2/their.py", line 1, in hunter2\n    secret = "hunter2"\n'
        f"ringfence.host.engine.x.Gone: box {BOX} does not listen: hunter2\nhunter2: hunter2\nValueError: hunter2"
    )
    line = {
        "at": "2026-01-31T12:00:00.000+00:00",
        "level": "warning",
        "part": "ringfence.engine",
        "message": f"box {BOX} does not listen: hunter2",
        "error": error,
        "more": "hunter2",
    }
    said = WORDS.line(json.dumps(line))
    assert said == {
        "at": "2026-01-31T12:00:00+00:00",
        "level": "warning",
        "part": "ringfence.engine",
        "message": f"box {BOX} does not listen: {HOLE}",
        "error": [
            "ringfence/host/engine/x.py:7 in work",
            f"Gone: box {BOX} does not listen: {HOLE}",
            f"ValueError: {LEFT_OUT}",
        ],
    }


@pytest.mark.parametrize(
    "line",
    [
        "hunter2",
        "[" * 100_000,
        '"hunter2"',
        '{"at": "hunter2", "level": "hunter2", "part": "hunter2", "message": "hunter2", "error": "hunter2"}',
        '{"at": 5, "level": [], "part": {}, "message": ["hunter2"], "error": {"x": "hunter2"}}',
        '{"at": null}',
        "{",
        "\x00\udcff",
    ],
)
def test_a_line_that_is_not_ours(line: str) -> None:
    assert "hunter2" not in json.dumps(WORDS.line(line))


def test_our_own_source_is_known() -> None:
    top = Path(__file__).parents[3] / "src"
    files = [*(top / "ringfence" / "host" / "engine").rglob("*.py")]
    words = Words([(str(path.relative_to(top)), path.read_text()) for path in files])
    said = words.text("what boxes use is not written, and will be with the next: a canary")
    assert said == f"what boxes use is not written, and will be with the next: {HOLE}"
