"""Rows of copies on both databases, and their files."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ringfence.host.drivers import shelf as shelves
from ringfence.host.drivers.shelf import FileShelf
from ringfence.host.kernel.boxes import Limits
from ringfence.host.kernel.errors import Conflict, DiskFull, Failed, NotFound
from ringfence.host.kernel.life.copies import MAX_ASKED, Copied, CopyKind, Kept
from ringfence.host.kernel.people import User, UserKind
from ringfence.host.store.store import SqlStore
from tests.support import volumes
from tests.support.engine_rig import eventually
from tests.support.store import opened

MIB = 1 << 20
A, B = "snp_aaaaaaaaaaaaaaaaaaaa", "snp_bbbbbbbbbbbbbbbbbbbb"


async def test_rows(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.tenants.add("default")
        user, other = [await store.users.add("default", name, UserKind.PERSON, None) for name in ("ann", "bob")]
        await _rows(store, user, other)


async def _rows(store: SqlStore, user: User, other: User) -> None:
    box = await store.boxes.home_of(user, "fake", Limits())
    rows = store.snapshots
    made = await rows.begin(A, box, CopyKind.ASKED, "good")
    assert not made.whole and await rows.of(user.id) == []
    with pytest.raises(NotFound):
        await rows.find(user.id, A)  # not before it is whole
    whole = await rows.whole(A, Copied(3, 20), Kept(10, "d" * 64))
    assert (whole.whole, whole.entries, whole.bytes, whole.stored, whole.digest) == (True, 3, 20, 10, "d" * 64)
    assert [await rows.find(user.id, wanted) for wanted in (A, "good")] == [whole, whole]
    for wanted in (A, "good"):
        with pytest.raises(NotFound):
            await rows.find(other.id, wanted)
    with pytest.raises(NotFound):
        await rows.find(user.id, "")
    with pytest.raises(Conflict, match="a copy of that name"):
        await rows.begin(B, box, CopyKind.ASKED, "good")
    await rows.begin(B, box, CopyKind.ARCHIVE, "")
    await rows.whole(B, Copied(1, 1), Kept(1, "e" * 64))
    archive = await rows.archive(box.id)
    assert archive is not None and archive.id == B
    assert [each.id for each in await rows.of(user.id)] == [A]  # an archive is nobody's to ask for
    assert {each.id for each in await rows.here()} == {A, B}
    await rows.remove(B)
    await rows.remove(B)
    assert await rows.archive(box.id) is None
    for number in range(MAX_ASKED - 1):
        await rows.begin(f"snp_{number:020d}", box, CopyKind.ASKED, "")
    with pytest.raises(Conflict, match=f"the most there may be is {MAX_ASKED}"):
        await rows.begin(B + "x", box, CopyKind.ASKED, "")
    await rows.begin(B + "y", box, CopyKind.BEFORE, "")  # control: that bound is of those that people ask for


@pytest.fixture(params=["zstd", "gzip"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> FileShelf:
    if request.param == "zstd" and not os.access(shelves.ZSTD, os.X_OK):
        pytest.skip("zstd is missing")
    (tmp_path / "snapshots").mkdir(mode=0o700)
    return FileShelf(tmp_path, shelves.ZSTD if request.param == "zstd" else "")


async def pieces(*data: bytes, error: Exception | None = None) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece
    if error is not None:
        raise error


async def read(shelf: FileShelf, copy: str, digest: str) -> bytes:
    return b"".join([piece async for piece in shelf.read(copy, digest)])


async def test_what_is_kept_is_read(shelf: FileShelf, tmp_path: Path) -> None:
    data = [os.urandom(300_000), bytes(5_000_000), b"", b"end"]
    kept = await shelf.keep(A, pieces(*data))
    (name,) = os.listdir(tmp_path / "snapshots")
    path = tmp_path / "snapshots" / name
    assert (path.stat().st_size, path.stat().st_mode & 0o777) == (kept.stored, 0o600)
    assert await read(shelf, A, kept.digest) == b"".join(data) and kept.stored < 400_000
    assert await shelf.ids() == {A}
    await shelf.drop(A)
    await shelf.drop(A)
    assert await shelf.ids() == set()
    with pytest.raises(NotFound):
        await read(shelf, A, kept.digest)
    empty = await shelf.keep(B, pieces())
    assert await read(shelf, B, empty.digest) == b""


async def test_one_byte_that_is_another_is_seen_before_anything_is_given_out(shelf: FileShelf, tmp_path: Path) -> None:
    kept = await shelf.keep(A, pieces(os.urandom(100_000)))
    (path,) = (tmp_path / "snapshots").iterdir()
    for at in (0, kept.stored // 2, kept.stored - 1):
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
        with pytest.raises(Failed, match="its digest is another"):
            await anext(shelf.read(A, kept.digest))
        data[at] ^= 1
        path.write_bytes(data)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Failed, match="its digest is another"):
        await read(shelf, A, kept.digest)


async def test_a_pipe_in_its_place_keeps_nobody_waiting(shelf: FileShelf, tmp_path: Path) -> None:
    kept = await shelf.keep(A, pieces(b"a" * 100_000))
    (path,) = (tmp_path / "snapshots").iterdir()
    path.unlink()
    os.mkfifo(path)
    async with asyncio.timeout(5):
        with pytest.raises(Failed, match="is no regular file"):
            await shelf.check(A, kept.digest)


async def test_an_error_of_the_source_leaves_nothing(shelf: FileShelf) -> None:
    with pytest.raises(DiskFull, match="of the source"):
        await shelf.keep(A, pieces(b"x" * 100_000, error=DiskFull("of the source")))
    assert await shelf.ids() == set() and shelf._names() == []


async def test_a_full_disk_is_said_and_leaves_nothing(shelf: FileShelf) -> None:
    """C53: here by the length that a file may have, which fails as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises((DiskFull, Failed), match="a copy cannot be written"):
            await shelf.keep(A, pieces(*(os.urandom(1 << 20) for _ in range(4))))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert shelf._names() == []


async def test_what_is_left_of_a_server_that_died_goes_away(shelf: FileShelf, tmp_path: Path) -> None:
    (tmp_path / "snapshots" / f".{A}.tar.zst.new").touch()
    (tmp_path / "snapshots" / "of-somebody-else").touch()
    await shelf.tidy()
    assert shelf._names() == ["of-somebody-else"] and await shelf.ids() == set()


async def test_who_stops_reading_leaves_no_process(shelf: FileShelf) -> None:
    kept = await shelf.keep(A, pieces(bytes(50_000_000)))
    stream = shelf.read(A, kept.digest)
    assert await anext(stream)
    await stream.aclose()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert not [pid for pid in children if Path(f"/proc/{pid}/comm").read_text() == "zstd\n"]


# --- cut short --------------------------------------------------------------------------------------------------------


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def working() -> list[str]:
    """Functions of the shelf that other threads are in."""
    me, found = threading.get_ident(), []
    for ident, top in sys._current_frames().items():
        frame: FrameType | None = top if ident != me else None
        while frame is not None:
            found += [frame.f_code.co_qualname] if frame.f_code.co_filename == shelves.__file__ else []
            frame = frame.f_back
    return found


async def test_who_is_cancelled_while_he_writes_writes_into_no_other_file(tmp_path: Path) -> None:
    """A large piece is packed in a thread, and written behind that."""
    (tmp_path / "snapshots").mkdir()
    shelf = FileShelf(tmp_path, "")
    keeping = asyncio.ensure_future(shelf.keep(A, pieces(os.urandom(32 * MIB))))
    await eventually(lambda: "_write_all" in working(), "it is packed")
    keeping.cancel()
    await turns()
    others = [os.open(tmp_path / f"other{number}", os.O_RDWR | os.O_CREAT, 0o600) for number in range(8)]
    try:
        with pytest.raises(asyncio.CancelledError):
            await keeping
        await eventually(lambda: not working(), "the thread has ended")
        assert [os.fstat(fd).st_size for fd in others] == [0] * 8
        assert shelf._names() == []
    finally:
        for fd in others:
            os.close(fd)


async def test_who_is_cancelled_while_a_file_is_opened_leaves_none_open(
    shelf: FileShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its volume is slow: it is open by the time that nobody wants it any more."""
    path = tmp_path / "snapshots" / f"{A}.tar.gz"
    path.touch()
    reached, go_on, open_ = threading.Event(), threading.Event(), os.open

    def slowly(place: Any, *more: Any, **named: Any) -> int:
        fd = open_(place, *more, **named)
        if place == path:
            reached.set()
            go_on.wait(30)
        return fd

    monkeypatch.setattr(os, "open", slowly)
    reading = asyncio.ensure_future(anext(shelf.read(A, "d" * 64)))
    await eventually(reached.is_set, "it is being opened")
    reading.cancel()
    await turns()
    assert opened_by_us(path) and not reading.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not opened_by_us(path)


def opened_by_us(path: Path) -> bool:
    links = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return str(path) in links


async def test_who_is_cancelled_while_a_digest_is_made_leaves_no_thread_at_it(shelf: FileShelf, tmp_path: Path) -> None:
    path = tmp_path / "snapshots" / f"{A}.tar.gz"
    path.touch()
    os.truncate(path, 16 << 30)
    reading = asyncio.ensure_future(anext(shelf.read(A, "d" * 64)))
    await eventually(lambda: [name for name in working() if "digest" in name], "it is read")
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert working() == []


# --- room -------------------------------------------------------------------------------------------------------------


@pytest.mark.root
@pytest.mark.parametrize("packed_by", [shelves.ZSTD, ""], ids=["zstd", "gzip"])
async def test_what_is_kept_back_of_a_volume_no_copy_takes(tmp_path: Path, packed_by: str) -> None:
    """Control: it had room when it began, and one half as large is kept."""
    with volumes.volume(tmp_path / "volume", 64) as place:
        (place / "snapshots").mkdir()
        shelf, least = FileShelf(place, packed_by), 64 * MIB // 20
        seen = []

        async def content(mebibytes: int) -> AsyncIterator[bytes]:
            for _ in range(mebibytes * 4):
                yield os.urandom(MIB // 4)
                now = os.statvfs(place)
                seen.append(now.f_bavail * now.f_frsize)

        with pytest.raises(DiskFull, match="MiB are kept back") as full:
            await shelf.keep(A, content(80))
        assert "make room" in full.value.remedy
        assert least - 2 * MIB < min(seen) < least + 8 * MIB
        assert shelf._names() == [] and os.statvfs(place).f_bavail * 4096 > 63 * MIB
        await shelf.keep(B, content(40))


async def test_a_folder_that_is_missing_is_said_with_its_remedy(shelf: FileShelf, tmp_path: Path) -> None:
    await shelf.ready()
    (tmp_path / "snapshots").rmdir()
    for work in (shelf.ready, lambda: shelf.keep(A, pieces(b"x")), shelf.ids, shelf.tidy):
        with pytest.raises(Failed, match="the folder of copies") as failed:
            await work()
        assert "ringfence init" in failed.value.remedy
