"""I1, I2: what was acknowledged before a SIGKILL is there after it; cursors have no gap; no half of a transaction."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from ringfence.host.kernel.threads import EventKind
from ringfence.host.store.migrate import newest
from tests.support.store import opened

ROOT = Path(__file__).parents[2]
WRITER = """
import asyncio, itertools, sys
from pathlib import Path
from tests.support.store import a_team

PER_THREAD = 30  # far below what may wait in a lane

async def writer(team, mine):
    for number in itertools.count():
        if number % PER_THREAD == 0:
            name = f"{mine}-{number // PER_THREAD}"
            thread = await team.store.threads.add(team.tenant.id, name, [team.alice.id], False)
        text, mode = f"{mine}.{number}", "steer" if number % 3 else "queue"
        said = await team.store.turns.accept(thread.id, team.alice.id, text, mode, text)
        assert said.steered == (mode == "steer")
        print(name, said.message.cursor, said.message.text, mode, flush=True)

async def main():
    async with a_team(Path(sys.argv[1])) as team:
        await asyncio.gather(*(writer(team, n) for n in range(int(sys.argv[2]))))

asyncio.run(main())
"""


ENVIRONMENT = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "PATH": os.environ["PATH"]}


def start(folder: Path, writers: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", WRITER, str(folder), str(writers)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)


@pytest.mark.parametrize(("writers", "acks"), [(1, 3), (1, 40), (20, 60), (20, 300)])
async def test_what_was_acknowledged_is_there(tmp_path: Path, writers: int, acks: int) -> None:
    child = start(tmp_path, writers)
    assert child.stdout
    lines = [await asyncio.to_thread(child.stdout.readline) for _ in range(acks)]
    child.send_signal(signal.SIGKILL)
    rest, _ = await asyncio.to_thread(child.communicate)
    assert child.returncode == -signal.SIGKILL
    lines += rest.splitlines(keepends=True)
    told = [line.split() for line in lines if line.endswith("\n")]
    assert len(told) >= acks

    async with opened(tmp_path) as store:
        [tenant] = await store.tenants.all()
        runs = await store.runs.all(tenant.id, 1_000_000)
        alice = await store.users.get("default", "alice")
        kept: dict[tuple[str, int], str] = {}
        for thread in await store.threads.of_tenant(tenant.id):
            events = await store.events.after(thread.id, 0, 1_000_000)
            assert [event.cursor for event in events] == list(range(1, len(events) + 1))
            messages = [event for event in events if event.kind is EventKind.MESSAGE]
            kept |= {(thread.name, event.cursor): event.body["text"] for event in messages}
            steers = [event for event in messages if event.body.get("steer")]
            mine = [run for run in runs if run.thread == thread.id]
            assert len(mine) * 2 + len(steers) == len(events), "message, turn, run and both events, or nothing"
            said = [message.cursor for run in mine for message in await store.turns.said(run.turn)]
            assert sorted(said) == [event.cursor for event in messages], "each in one turn"
        for name, cursor, text, _ in told:
            assert kept[name, int(cursor)] == text
        name, _, text, _ = told[0]
        first = await store.threads.get(tenant.id, name)
        again = await store.turns.accept(first.id, alice.id, text, "queue", text)
        assert again.repeated, "a client that lost its answer asks again and gets the same turn"


MAKER = """
import asyncio, os, signal, sys
from pathlib import Path
from sqlalchemy import event
from sqlalchemy.engine import Engine
from tests.support.store import opened
left = int(sys.argv[2])

@event.listens_for(Engine, "before_cursor_execute")
def counted(*_):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with opened(Path(sys.argv[1])):
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
APART = 26  # statements between two kills, of some 80: each costs a start of Python


async def test_a_crash_while_the_database_is_made(tmp_path: Path) -> None:
    """The migration is all or nothing, before whichever of its statements it ends."""
    seen = []
    for number in range(0, 100 * APART, APART):
        folder = tmp_path / str(number)
        folder.mkdir()
        words = [sys.executable, "-c", MAKER, str(folder), str(number)]
        killed = await asyncio.to_thread(subprocess.run, words, env=ENVIRONMENT)
        assert killed.returncode == -signal.SIGKILL
        outside = sqlite3.connect(folder / "ringfence.db")
        tables = {name for (name,) in outside.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        outside.close()
        seen.append(bool(tables))
        assert not tables or {"ringfence_schema", "audit", "steps", "runs"} <= tables
        async with opened(folder, first=1 << 40) as store:
            assert (await store.health())["schema"] == newest()
            await store.audit.record(None, "works", "", {})
        if tables:
            break
    assert seen.count(False) > 2 and seen[-1], "killed before the commit, and after it"
