"""F17, F20, F21, F24, F27: a disk that takes nothing, a database that somebody else holds, a reader that stays, a clock of
another boot. For the server as a whole: what it says of itself, what it does not begin, and that it heals."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from ringfence.host.kernel.errors import DiskFull, Unavailable
from ringfence.host.kernel.people import UserKind
from ringfence.host.kernel.runs import LEASE_SECONDS, RunState
from ringfence.host.kernel.threads import TurnState
from ringfence.host.store import wal_watch
from ringfence.host.store.store import BUSY_SECONDS, open_store
from tests.support import volumes
from tests.support.clocks import CountingIds
from tests.support.databases import outside
from tests.support.engine_rig import OPERATOR, RealClock, Rig, rig
from tests.support.store import Team, a_team, address
from tests.support.volumes import fill

ROOT = Path(__file__).parents[2]
NAME = "ringfence.db"
PATIENCE = 30.0


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """As that of all tests here; but commands of a box may end later than its rig."""
    with volumes.volume(tmp_path / "volume", 128, lazy=True) as place:
        yield place


async def said_of_itself(r: Rig) -> tuple[bool, str]:
    """(ok, problem) of the store, as status says it."""
    store = (await r.engine.health.status(OPERATOR))["parts"]["store"]
    return store["ok"], store.get("problem", "")


async def until_well(r: Rig) -> None:
    async with asyncio.timeout(PATIENCE):
        while not (await said_of_itself(r))[0]:
            await asyncio.sleep(0.05)


@pytest.mark.root
async def test_a_server_on_a_volume_that_is_full_and_gets_room_again(volume: Path) -> None:
    """F17: nothing is acknowledged or begun, what is there can be read, status says why; with room it goes on by itself."""
    async with rig(volume, max_runs=1) as r:
        assert await r.store.reserve.keep(), "as a server does when it starts"
        before = await r.say("alice", "$ echo before")
        assert (await r.turn(before, PATIENCE)).state is TurnState.COMPLETED
        holds = await r.say("alice", "$ while ! test -e go; do sleep 0.05; done")
        await r.running_command("alice", f"s/{holds.run.id}/1")  # it has the only place: whatever bob says is queued
        first = await r.say("bob", "$ echo first", thread="first")
        ballast = fill(volume)
        refused = None
        for number in range(2000):
            try:
                await r.say("bob", f"{number} " + "x" * 100_000, thread=f"b{number}")
            except DiskFull as error:
                refused = error
                break
        assert refused is not None and refused.http_status == 507 and "df -h" in refused.remedy
        assert _low(r) and not (volume / "reserve").exists(), "its reserve is released"
        await r.store.audit.record(None, "seen", "by the operator", {})  # what may be written leaves it as it is
        await _is_told(r, "reserve")
        assert await r.store.runs.claim("w", 8, lambda _: "hash") == [], "nothing new is begun"
        assert (await r.store.runs.get(first.run.id)).state is RunState.QUEUED
        events = await r.engine.threads.events(r.actors["alice"], "default", "t", 0, 1000)
        assert events[-1]["cursor"] == len(events), "reads go on"
        with pytest.raises(DiskFull):
            await r.say("alice", "$ echo lost")
        ballast.unlink()
        async with asyncio.timeout(PATIENCE):
            while _low(r):  # the server looks by itself
                await asyncio.sleep(0.1)
        assert (volume / "reserve").exists()
        (r.box("alice").folder / "go").touch()
        assert (await r.turn(holds, PATIENCE)).state is TurnState.COMPLETED, "what was under way is ended"
        assert (await r.turn(first, PATIENCE)).state is TurnState.COMPLETED, "control: it waited for room alone"
        after = await r.say("alice", "$ echo after")
        assert (await r.turn(after, PATIENCE)).state is TurnState.COMPLETED
        await until_well(r)


def _low(r: Rig) -> bool:
    """Asked anew each time."""
    return r.store.reserve.low


async def _is_told(r: Rig, *words: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            status = await r.engine.health.status(OPERATOR)
            said = status["parts"]["store"].get("problem", "")
            if not status["ok"] and any(word in said for word in words):
                return
            await asyncio.sleep(0.05)


@contextmanager
def failing(folder: Path, error: str) -> Iterator[None]:
    """Every write and sync of the database's files by this process ends with that error, as on a device that went away
    under it: a mount with files that are open for writing takes no remount."""
    files = [word for suffix in ("", "-wal") for word in ("-P", str(folder / f"{NAME}{suffix}"))]
    calls = "pwrite64,fdatasync,fsync,ftruncate"
    words = [
        "strace",
        "-f",
        "-p",
        str(os.getpid()),
        *files,
        "-e",
        f"trace={calls}",
        "-e",
        f"inject={calls}:error={error}",
    ]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as tracer:
        try:
            assert tracer.stderr is not None
            assert b"attached" in tracer.stderr.readline()
            drain = threading.Thread(target=tracer.stderr.read)
            drain.start()
            yield
        finally:
            tracer.terminate()
            tracer.wait()
            drain.join()


@pytest.mark.root
@pytest.mark.parametrize("error", ["EROFS", "EIO"])
async def test_a_volume_that_takes_no_write_any_more(tmp_path: Path, error: str) -> None:
    """F20: red, no acknowledgement, reads go on; what is said again is worked on when it can be written again."""
    async with rig(tmp_path) as r:
        first = await r.say("alice", "$ echo first")
        assert (await r.turn(first, PATIENCE)).state is TurnState.COMPLETED
        with failing(tmp_path, error):
            with pytest.raises(Unavailable) as refused:
                await r.say("alice", "$ echo lost", key="k")
            assert refused.value.http_status == 503 and "read-write" in refused.value.remedy
            await _is_told(r, "cannot be used")
            events = await r.store.events.after(first.turn.thread, 0, 1000)
            assert [event.cursor for event in events] == list(range(1, len(events) + 1))
            assert "lost" not in str(events)
        again = await r.say("alice", "$ echo lost", key="k")
        assert not again.repeated
        assert (await r.turn(again, PATIENCE)).state is TurnState.COMPLETED
        await until_well(r)


# --- somebody else in the database -----------------------------------------------------------------------------------


@pytest.mark.soak
async def test_locked_for_as_long_as_a_product_waits(tmp_path: Path) -> None:
    """F21 as it is, with nothing shortened: refused when the wait is over and not before; who waits for news gets it."""
    async with a_team(tmp_path) as team:
        waiting = asyncio.create_task(team.store.events.changed(team.thread.id, 0, 4 * BUSY_SECONDS))
        with closing(sqlite3.connect(tmp_path / NAME, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            began = asyncio.get_running_loop().time()
            with pytest.raises(Unavailable) as error:
                await team.say("hello", key="k")
            assert asyncio.get_running_loop().time() - began >= BUSY_SECONDS - 1
            assert error.value.http_status == 503 and "try again" in error.value.remedy
            other.execute("ROLLBACK")
        assert not (await team.say("hello", key="k")).repeated
        assert await asyncio.wait_for(waiting, PATIENCE)


@pytest.mark.parametrize("reads", [False, True], ids=["nobody reads", "somebody reads on"])
async def test_a_reader_that_stays(tmp_path: Path, reads: bool) -> None:
    """F24. A snapshot of another process keeps the log from being written over: it grows, nothing waits, and when the
    reader is gone the next writes use it from its beginning. Our own readers ask one question and end."""
    async with a_team(tmp_path) as team:
        reader = sqlite3.connect(tmp_path / NAME, isolation_level=None)
        if reads:
            reader.execute("BEGIN")
            before = reader.execute("SELECT count(*) FROM messages").fetchone()
        await _much(team, "beside")
        wal = tmp_path / f"{NAME}-wal"
        grown = wal.stat().st_size
        assert (grown > 16 << 20) == reads, "control: without a reader it stays within what SQLite lets it have"
        if reads:
            assert reader.execute("SELECT count(*) FROM messages").fetchone() == before, "its snapshot"
        reader.close()
        await _much(team, "after")
        await _much(team, "later")
        assert wal.stat().st_size < grown * 1.5 if reads else wal.stat().st_size <= 16 << 20
        assert (await team.store.health())["ok"]


READS_ON = """
import sqlite3, sys
reader = sqlite3.connect(sys.argv[1], isolation_level=None)
reader.execute("BEGIN")
print(reader.execute("SELECT count(*) FROM messages").fetchone(), flush=True)
sys.stdin.read()
"""


async def test_a_reader_that_stays_is_named_and_the_log_is_cut_off_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F24. Control: without a reader the same look makes the log small and says nothing."""
    monkeypatch.setattr(wal_watch, "BOUND", 6 << 20)  # for 20 MiB of writes instead of 200
    async with a_team(tmp_path) as team:
        with _reading(tmp_path / NAME) as reader:
            await _much(team, "beside")
            said = await team.store.log.look()
            facts = await team.store.health()
            assert f"process {reader.pid} (python" in said and "end that reader" in said
            assert (facts["ok"], facts["wal_warning"], facts["wal_bytes"] > 16 << 20) == (True, said, True)
            assert said in caplog.text
        assert await team.store.log.look() == ""
        facts = await team.store.health()
        assert ("wal_warning" in facts, facts["wal_bytes"]) == (False, 0), "a checkpoint has cut it off"
        await _much(team, "after")
        assert await team.store.log.look() == "", "control"


@contextmanager
def _reading(database: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process with a snapshot, until the end."""
    command = [sys.executable, "-c", READS_ON, str(database)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None and reader.stdout is not None
        reader.stdout.readline()
        try:
            yield reader
        finally:
            reader.stdin.close()
            reader.wait()


async def _much(team: Team, tag: str) -> None:
    """20 MiB of messages. `tag`: of the threads' names, another each time."""
    for number in range(100):
        thread = await team.store.threads.add(team.tenant.id, f"{tag}{number}", [team.alice.id], False)
        await team.store.turns.accept(thread.id, team.alice.id, f"{number} " + "x" * 200_000, "queue", None)


# --- the clock of another boot ---------------------------------------------------------------------------------------

EXPIRED = """
import asyncio, sys
from ringfence.host.store.store import open_store
from tests.support.clocks import CountingIds
from tests.support.engine_rig import RealClock
async def main():
    store = await open_store(sys.argv[1], RealClock(), CountingIds(1 << 42))
    print(round(RealClock().monotonic()), [run.id for run in await store.runs.expired("w1")])
    await store.close()
asyncio.run(main())
"""


@pytest.mark.root
@pytest.mark.parametrize("jump", [600, 100_000_000])
async def test_leases_do_not_follow_the_clock_since_boot(tmp_path: Path, jump: int) -> None:
    """F27: a kernel that starts where ten minutes (or three years) more have passed since boot finds a lease of a moment ago
    as it is: what counts is how long it goes on from there."""
    store = await open_store(address(tmp_path), RealClock(), CountingIds())
    tenant = await store.tenants.add("default")
    alice = await store.users.add("default", "alice", UserKind.PERSON, None)
    thread = await store.threads.add(tenant.id, "t", [alice.id], False)
    said = await store.turns.accept(thread.id, alice.id, "hello", "queue", None)
    assert len(await store.runs.claim("w1", 8, lambda _: "hash")) == 1
    await store.close()
    here = time.monotonic()
    found = {}
    for name, words in (("same", []), ("jumped", ["unshare", "-T", "--boottime", str(jump), "--monotonic", str(jump)])):
        found[name] = await _expired(tmp_path, words)
    assert found["jumped"][0] - here >= jump - 1, "control: its clock did jump"
    taken = time.monotonic() - here
    assert found["jumped"][1] == found["same"][1] == "[]" or taken >= LEASE_SECONDS - 1, (found, taken)
    assert str(said.run.id) not in found["same"][1] or taken >= LEASE_SECONDS - 1
    outside(tmp_path, "UPDATE runs SET lease_until = '2020-01-01 00:00:00'")
    assert str(said.run.id) in (await _expired(tmp_path, []))[1], "control: one that is over is found"


async def _expired(folder: Path, words: Sequence[str]) -> tuple[int, str]:
    """(the clock since boot, the runs whose lease is over) of a kernel process that starts there. `words`: before its own."""
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "PATH": os.environ["PATH"]}
    command = [*words, sys.executable, "-c", EXPIRED, address(folder)]
    done = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    clock, _, runs = done.stdout.partition(" ")
    return int(clock), runs.strip()
