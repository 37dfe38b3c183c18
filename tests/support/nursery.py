"""A process that has imported everything and forks a child for each order: a kernel process that costs no start.

Run as `python -m tests.support.nursery`. An order is a line of JSON on standard input, its answer a line on standard output:
{"status": the child's exit status (negative: the signal), "lines": [what it said]}. It has no thread and no loop when it forks.
A child leaves by `os._exit`, or is killed by its own failpoint.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.kill_child import Made

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Order:
    scenario: str
    url: str  # of the database
    folder: str
    number: int  # of the child, another one for each
    began: float  # when the clock of all of them was right
    hook: int = 0  # port of the receiver
    token: str = ""  # of alice
    tag: str = ""  # keeps the keys of one client apart from another's
    n: int = 0  # kill at the n-th reach; 0: never
    point: str = ""  # of this failpoint; "": of any
    breaks: str = ""  # which wall is taken away, for a control


@dataclass(frozen=True)
class Child:
    status: int
    lines: tuple[dict[str, Any], ...]  # in the order in which they were said

    @property
    def fired(self) -> str:
        """The point where it was killed; "": none."""
        return next((str(line["fired"]) for line in self.lines if "fired" in line), "")

    def said(self, what: str) -> list[Any]:
        return [line[what] for line in self.lines if what in line]


def fork(order: Order, made: Made) -> dict[str, Any]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _child(order, made, writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    whole = said[: said.rfind(b"\n") + 1].splitlines()
    return {"status": os.waitstatus_to_exitcode(status), "lines": [json.loads(line) for line in whole]}


def _child(order: Order, made: Made, writing: int) -> None:
    """Never returns."""
    from tests.support.kill_child import work

    status = 1
    log = os.open(f"{order.folder}/children.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 2)

    def say(**line: Any) -> None:
        os.write(writing, json.dumps(line).encode() + b"\n")  # at most PIPE_BUF: whole, and there after a kill

    try:
        asyncio.run(work(order, say, made))
        status = 0
    except BaseException:
        say(error=traceback.format_exc()[-3000:])
    finally:
        os._exit(status)


class Nursery:
    """One order at a time."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    async def child(self, order: Order) -> Child:
        return await asyncio.to_thread(self._child, order)

    def _child(self, order: Order) -> Child:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return Child(answer["status"], tuple(answer["lines"]))


@contextmanager
def nursery() -> Iterator[Nursery]:
    """Its start takes two seconds: one for many tests."""
    words = [sys.executable, "-m", "tests.support.nursery"]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield Nursery(process)


def main() -> None:
    from tests.support.kill_child import Made  # before the first fork; it knows the order's form from here

    made = Made()
    gc.freeze()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(fork(Order(**json.loads(line)), made)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
