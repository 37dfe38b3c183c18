"""Blobs: chunks in any order, what is refused, what is dropped when, and that nobody waits while one is hashed."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.errors import Conflict, Invalid, NotFound, TooLarge
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.people import User
from ringfence.host.kernel.runs import Run, RunState
from ringfence.host.store import blob_rows, blobs
from ringfence.host.store.blobs import CHUNK_BYTES, MAX_BYTES
from ringfence.wire import messages as wire
from tests.support.databases import outside
from tests.support.store import Team, a_team

CHUNK = CHUNK_BYTES


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path, parallel=True) as made:
        yield made


def content(size: int, first: int = 0) -> bytes:
    return bytes([first % 256]) + (b"0123456789abcdef" * (size // 16 + 1))[: size - 1]


def name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def send(team: Team, run: Run, data: bytes, digest: str | None = None) -> str:
    digest = digest or name(data)
    for n in range((len(data) + CHUNK - 1) // CHUNK):
        part = data[n * CHUNK : (n + 1) * CHUNK]
        await team.store.blobs.put(run.id, run.epoch, digest, n, len(data), part)
    return digest


async def there(team: Team, run: Run, digest: str) -> bool:
    """Asked of the file: a final run is answered nothing."""
    rows = stored(team, "SELECT n FROM blob_chunks WHERE run = ? AND digest = ?", run.id, digest)
    known = stored(team, "SELECT digest FROM blobs WHERE run = ? AND digest = ?", run.id, digest)
    assert bool(rows) == bool(known), "chunks go with their blob"
    return bool(rows)


def stored(team: Team, query: str, *values: object) -> list[Any]:
    return outside(team.folder, query, *values)


async def fresh(team: Team, user: User | None = None) -> Run:
    """A run that works, in a lane of its own: the thread is parallel and nobody else's turn is live."""
    said = await team.say(user=user)
    [run] = [run for run in await team.claim() if run.id == said.run.id]
    return run


def test_the_limits_are_those_of_the_wire() -> None:
    assert (CHUNK, MAX_BYTES, blob_rows.MAX_OF_RUN) == (wire.BLOB_CHUNK, wire.MAX_BLOB, wire.MAX_RUN_BLOBS)
    assert blobs.MAX_BLOBS == blob_rows.MAX_OF_RUN // blob_rows.LEAST_COUNTED == 4096


@pytest.mark.parametrize("size", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
async def test_what_is_put_is_got(team: Team, size: int) -> None:
    run, data = await fresh(team), content(size)
    digest = name(data)
    count = (size + CHUNK - 1) // CHUNK
    for n in reversed(range(count)):
        with pytest.raises((NotFound, Conflict)):
            await team.store.blobs.whole(run.id, 1, digest)
        await team.store.blobs.put(run.id, 1, digest, n, size, data[n * CHUNK : (n + 1) * CHUNK])
    assert await team.store.blobs.whole(run.id, 1, digest) == data
    parts = [await team.store.blobs.get(run.id, 1, digest, n) for n in range(count)]
    assert b"".join(part for part, _ in parts) == data
    assert {whole for _, whole in parts} == {size}
    with pytest.raises(NotFound):
        await team.store.blobs.get(run.id, 1, digest, count)


async def test_a_chunk_that_is_there_stays(team: Team) -> None:
    run, data = await fresh(team), content(2 * CHUNK)
    await send(team, run, data)
    other = content(2 * CHUNK, 7)
    await send(team, run, other, name(data))
    assert await team.store.blobs.whole(run.id, 1, name(data)) == data
    assert stored(team, "SELECT held, size FROM blobs") == [(2 * CHUNK, 2 * CHUNK)], "counted once"


async def test_what_is_no_blob_is_refused(team: Team) -> None:
    run, data = await fresh(team), content(CHUNK + 5)
    digest, put = name(data), team.store.blobs.put
    for bad in ("", "x" * 64, digest[:-1], digest + "0", digest.upper(), digest + "\n", "\udc80" * 64, "\u0663" * 64):
        with pytest.raises(Invalid):
            await put(run.id, 1, bad, 0, 1, b"x")
        with pytest.raises(NotFound):
            await team.store.blobs.get(run.id, 1, bad, 0)
        with pytest.raises(NotFound):
            await team.store.blobs.whole(run.id, 1, bad)
        with pytest.raises(Conflict):
            await team.store.steps.save_checkpoint(run.id, 1, "final", 0, "s", [bad])
    chunks = [
        (0, 0, b""),
        (0, -1, b""),
        (-1, 5, b"x"),
        (1, 5, b""),
        (0, 5, b"1234"),
        (0, 5, b"123456"),
        (2, CHUNK + 5, b""),
    ]
    chunks += [(0, CHUNK + 5, data), (1, CHUNK + 5, data[:5] + b"x"), (1 << 70, CHUNK, b"x"), (64, MAX_BYTES, b"x")]
    for n, size, part in chunks:
        with pytest.raises(Invalid):
            await put(run.id, 1, digest, n, size, part)
    with pytest.raises(TooLarge, match=str(MAX_BYTES)):
        await put(run.id, 1, digest, 0, MAX_BYTES + 1, data[:CHUNK])
    await put(run.id, 1, digest, 0, CHUNK + 5, data[:CHUNK])
    with pytest.raises(Invalid, match="not"):
        await put(run.id, 1, digest, 1, CHUNK + 6, b"123456")
    for n in (-1, 1, 2, 1 << 70):
        with pytest.raises(NotFound):
            await team.store.blobs.get(run.id, 1, digest, n)
    with pytest.raises(NotFound):
        await put(RunId("run_none"), 1, digest, 0, 1, b"x")
    assert stored(team, "SELECT count(*) FROM blob_chunks") == [(1,)]


async def test_a_run_has_its_own_blobs(team: Team) -> None:
    mine, yours = await fresh(team, team.alice), await fresh(team, team.bob)
    digest = await send(team, mine, b"private")
    for ask in (team.store.blobs.whole(yours.id, 1, digest), team.store.blobs.get(yours.id, 1, digest, 0)):
        with pytest.raises(NotFound):
            await ask
    with pytest.raises(Conflict):
        await team.store.steps.save_checkpoint(yours.id, 1, "final", 0, "s", [digest])


# --- checkpoints -----------------------------------------------------------------------------------------------------


async def test_a_checkpoint_keeps_its_blobs_and_no_others(team: Team) -> None:
    run, other = await fresh(team, team.alice), await fresh(team, team.bob)
    kept, dropped = await send(team, run, content(CHUNK + 1)), await send(team, run, content(3))
    theirs = await send(team, other, content(4))
    save = team.store.steps.save_checkpoint
    await save(run.id, 1, "before_model", 0, "one", [kept, kept])
    assert [await there(team, run, digest) for digest in (kept, dropped)] == [True, False]
    assert await there(team, other, theirs)
    again = await send(team, run, content(3))
    await save(run.id, 1, "before_model", 0, "two", [kept, again])
    assert [await there(team, run, digest) for digest in (kept, again)] == [True, True]
    await save(run.id, 1, "before_model", 0, "three")
    assert [await there(team, run, digest) for digest in (kept, again)] == [False, False]
    assert await there(team, other, theirs)


async def test_a_checkpoint_refers_to_nothing_that_is_not_right(team: Team) -> None:
    run = await fresh(team)
    good = await send(team, run, content(5))
    wrong = await send(team, run, content(6), name(b"something else"))
    part = name(content(2 * CHUNK))
    await team.store.blobs.put(run.id, 1, part, 0, 2 * CHUNK, content(CHUNK))
    save = team.store.steps.save_checkpoint
    await save(run.id, 1, "before_model", 0, "kept", [good])
    wrong = await send(team, run, content(6), wrong)
    await team.store.blobs.put(run.id, 1, part, 0, 2 * CHUNK, content(CHUNK))
    for bad in ([wrong], [good, part], [name(b"absent")], [good] * 5000):
        with pytest.raises(Conflict):
            await save(run.id, 1, "before_model", 0, "refused", bad)
    checkpoint = await team.store.steps.checkpoint(run.id)
    assert checkpoint is not None
    assert checkpoint.state == "kept"
    assert [await there(team, run, digest) for digest in (good, wrong, part)] == [True, True, True], "nothing happened"
    for bad_one in (wrong, part):
        with pytest.raises(Conflict):
            await team.store.blobs.whole(run.id, 1, bad_one)


async def test_a_blob_that_is_changed_after_its_check_is_not_referred_to(team: Team) -> None:
    """Between the check and the transaction the loop drops the right blob and puts a wrong one under its name."""
    run = await fresh(team)
    digest = await send(team, run, content(9))
    made = await team.store.blobs.check(run.id, 1, [digest])
    await team.store.steps.save_checkpoint(run.id, 1, "before_model", 0, "nothing")
    await send(team, run, content(9, 1), digest)
    with pytest.raises(Conflict, match="meanwhile"):
        await team.store._database.write(lambda tx: blobs.keep_checked(tx, run.id, made))
    with pytest.raises(Conflict, match="SHA-256"):
        await team.store.steps.save_checkpoint(run.id, 1, "before_model", 0, "wrong", [digest])


async def test_a_blob_is_hashed_once_and_outside_of_the_writer(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    run, data = await fresh(team), content(4 * CHUNK)
    digest = await send(team, run, data)
    hashing: list[str] = []
    sha256: Callable[..., Any] = hashlib.sha256

    class Watched:
        def __init__(self) -> None:
            self.inner = sha256()

        def update(self, part: bytes) -> None:
            hashing.append(threading.current_thread().name)
            self.inner.update(part)

        def hexdigest(self) -> str:
            return str(self.inner.hexdigest())

    monkeypatch.setattr(hashlib, "sha256", Watched)
    await team.store.steps.save_checkpoint(run.id, 1, "before_model", 0, "s", [digest])
    assert len(hashing) == 4
    assert not {thread for thread in hashing if thread.startswith(("store", "MainThread"))}
    await team.store.steps.save_checkpoint(run.id, 1, "before_model", 0, "s", [digest])
    assert len(hashing) == 4


async def test_others_write_while_a_large_blob_is_checked(team: Team) -> None:
    run = await fresh(team)
    digest = await send(team, run, content(MAX_BYTES))
    commits = team.store.commits
    saving = asyncio.create_task(team.store.steps.save_checkpoint(run.id, 1, "before_model", 0, "s", [digest]))
    await asyncio.sleep(0)
    accepted = 0
    while not saving.done():
        await team.store.audit.record(None, "other", "", {})
        accepted += 1
    await saving
    assert accepted >= 3, f"{accepted} others, {team.store.commits - commits} commits"
    assert await team.store.blobs.whole(run.id, 1, digest) == content(MAX_BYTES)


# --- what is dropped -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "reason", "kept"),
    [
        (RunState.COMPLETED, "", False),
        (RunState.CANCELLED, "cancelled", False),
        (RunState.FAILED, "diverged", False),
        (RunState.FAILED, "deadline", True),
    ],
)
async def test_blobs_go_with_their_run_unless_it_may_be_tried_again(
    team: Team, state: RunState, reason: str, kept: bool
) -> None:
    run, other = await fresh(team, team.alice), await fresh(team, team.bob)
    digest, theirs = await send(team, run, content(CHUNK + 1)), await send(team, other, content(3))
    await team.store.runs.requeue(run.id, 1, "lost")
    assert await there(team, run, digest), "the next attempt needs it"
    team.clock.pass_seconds(5)
    [run] = await team.claim()
    await team.store.runs.end(run.id, 2, state, reason, None)
    assert await there(team, run, digest) is kept
    assert await there(team, other, theirs)
    if kept:
        await team.store.runs.reopen(run.id)
        [again] = await team.claim()
        assert await team.store.blobs.whole(again.id, again.epoch, digest) == content(CHUNK + 1)


async def failed(team: Team, first: int, refer: bool = True) -> tuple[Run, str]:
    """A failed run of alice with a blob of one chunk."""
    run = await fresh(team)
    digest = await send(team, run, content(CHUNK, first))
    if refer:
        await team.store.steps.save_checkpoint(run.id, 1, "before_model", 0, "state", [digest])
    else:
        await team.store.steps.save_checkpoint(run.id, 1, "before_model", 0, "state")
        await send(team, run, content(CHUNK, first))
    team.clock.pass_seconds(1)
    await team.store.runs.end(run.id, 1, RunState.FAILED, "deadline", None)
    return run, digest


async def test_a_user_has_a_limit_and_the_oldest_final_runs_make_room(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_rows, "MAX_OF_USER", 4 * CHUNK)
    old = [await failed(team, 0), await failed(team, 1, refer=False), await failed(team, 2)]
    theirs = await fresh(team, team.bob)
    bobs = await send(team, theirs, content(3 * CHUNK))
    run = await fresh(team)
    mine = await send(team, run, content(CHUNK, 3))
    assert [await there(team, *one) for one in old] == [True, True, True], "full, and not above"
    more = await send(team, run, content(CHUNK + 1, 4))
    assert [await there(team, *one) for one in old] == [False, False, True], "no more than what is needed"
    checkpoints = [await team.store.steps.checkpoint(one.id) for one, _ in old]
    assert [one is None for one in checkpoints] == [True, False, False], "tried again, the first one starts anew"
    with pytest.raises(TooLarge, match="all runs of the user"):
        await send(team, run, content(2 * CHUNK, 5))
    assert await there(team, *old[2]), "what makes not enough room stays"
    assert await there(team, run, mine)
    assert await there(team, run, more)
    assert await there(team, theirs, bobs), "another user's do not count"
    with pytest.raises(TooLarge):
        await send(team, theirs, content(CHUNK + 1, 6))


async def test_a_run_has_a_limit(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_rows, "MAX_OF_RUN", 3 * CHUNK)
    run = await fresh(team)
    whole = content(2 * CHUNK)
    await team.store.blobs.put(run.id, 1, name(whole), 0, 2 * CHUNK, whole[:CHUNK])
    with pytest.raises(TooLarge, match="blobs of run"):
        await send(team, run, content(CHUNK + 1, 1))
    small = [await send(team, run, bytes([n])) for n in range(8)]
    with pytest.raises(TooLarge):
        await send(team, run, b"a ninth, of the least that is counted")
    await send(team, run, whole)
    assert await team.store.blobs.whole(run.id, 1, name(whole)) == whole, "what was begun has its room"
    await team.store.steps.save_checkpoint(run.id, 1, "before_model", 0, "s", small[:1])
    await send(team, run, content(2 * CHUNK, 9))


async def test_a_removed_user_leaves_no_blobs(team: Team) -> None:
    kept, theirs = await failed(team, 0), await fresh(team, team.bob)
    bobs = await send(team, theirs, b"bob's")
    live = await fresh(team)
    mine = await send(team, live, b"alice's")
    await team.store.users.remove(team.alice.id)
    assert not await there(team, *kept)
    assert await there(team, live, mine)
    await team.store.runs.end(live.id, 1, RunState.CANCELLED, "user_removed", None)
    assert not await there(team, live, mine)
    assert await there(team, theirs, bobs)
