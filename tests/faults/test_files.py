"""A put or get that does not come to its end: nothing of it stays, and what was there before is whole."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ringfence.host.kernel.errors import Conflict, DiskFull, Failed, NotFound, Refused, TooLarge, Unavailable
from tests.support.files_rig import UID, Tree, files, tree

pytestmark = pytest.mark.root

LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def box() -> Iterator[Tree]:
    folder = Path(tempfile.mkdtemp())
    with tree(folder / "tree") as made:
        yield made
    folder.rmdir()


@pytest.fixture
def small(box: Tree) -> Iterator[Tree]:
    """home/ holds 2 MiB and 64 inodes."""
    options = f"size=2m,nr_inodes=64,mode=700,uid={UID},gid={UID}".encode()
    assert LIBC.mount(b"none", os.fsencode(box.home), b"tmpfs", 0, options) == 0
    yield box
    assert LIBC.umount2(os.fsencode(box.home), 2) == 0


async def blocks(number: int) -> AsyncIterator[bytes]:
    for _ in range(number):
        yield bytes(1 << 20)


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data


def names(box: Tree) -> list[str]:
    return sorted(os.listdir(box.home))


async def test_a_full_disk_is_told_at_once_and_leaves_nothing(small: Tree) -> None:
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield bytes(1 << 20)

    async with files(small) as (client, _):
        await client.put(b"f", once(b"before"), 0o600)
        with pytest.raises(DiskFull) as caught:
            await client.put(b"f", endless(), 0o600)
        assert caught.value.details["reason"] == "disk_full"
        assert taken < 64  # 2 MiB of disk, the rest in socket buffers
        assert names(small) == ["f"]
        await client.put(b"g", once(bytes(1 << 20)), 0o600)  # the room is back, the connection whole
        assert b"".join([chunk async for chunk in client.get(b"f")]) == b"before"


def staged(box: Tree) -> list[str]:
    folder = box.root / ".put"
    return os.listdir(folder) if folder.exists() else []


async def test_what_a_killed_helper_leaves_is_taken_away_by_the_next_and_in_no_sight_before(box: Tree) -> None:
    """Control: what another helper still writes stays, and becomes the file."""

    async def stops(after: asyncio.Event, goes_on: asyncio.Event) -> AsyncIterator[bytes]:
        yield bytes(1 << 20)
        after.set()
        await goes_on.wait()
        yield b"end"

    async with files(box) as (living, _):
        here, on = asyncio.Event(), asyncio.Event()
        put = asyncio.create_task(living.put(b"whole", stops(here, on), 0o600))
        await here.wait()
        async with files(box) as (killed, helper):
            there, goes_on = asyncio.Event(), asyncio.Event()
            cut = asyncio.create_task(killed.put(b"cut", stops(there, goes_on), 0o600))
            await there.wait()
            os.kill(helper.pid, signal.SIGKILL)
            helper.wait()
            goes_on.set()
            with pytest.raises(Unavailable):
                await cut
            assert len(staged(box)) == 2 and names(box) == []
        async with files(box) as (client, _):
            await client.stat(b".")
            assert len(staged(box)) == 1
        on.set()
        assert (await put).size == (1 << 20) + 3
    assert names(box) == ["whole"] and staged(box) == []


async def test_no_link_and_no_folder_in_the_place_of_what_comes_in_leads_anywhere(box: Tree) -> None:
    """Nobody in a box sees that folder; whoever could write to it could still send nothing out of the tree."""
    box.as_box(lambda: os.symlink("outside", "/.put"))
    async with files(box) as (client, _):
        with pytest.raises(NotFound):
            await client.put(b"f", once(b"x"), 0o600)
    assert os.listdir(box.outside) == ["f"] and (box.outside / "f").read_text() == "OUTSIDE"


async def test_a_folder_that_takes_no_file_is_told_before_a_byte_is_sent(box: Tree) -> None:
    taken = 0

    async def counted() -> AsyncIterator[bytes]:
        nonlocal taken
        taken += 1
        yield bytes(1 << 20)

    box.as_box(lambda: os.mkdir("closed", 0o500))
    async with files(box) as (client, _):
        with pytest.raises(Refused):
            await client.put(b"closed/f", counted(), 0o600)
        assert taken == 0 and staged(box) == []
        await client.put(b"open/f", counted(), 0o600)  # the control
        assert taken == 1


async def test_a_disk_that_takes_no_write_is_said_with_what_mends_it(small: Tree) -> None:
    async with files(small) as (client, _):
        await client.put(b"f", once(b"before"), 0o600)
        assert LIBC.mount(b"none", os.fsencode(small.home), b"tmpfs", 0x21, None) == 0  # MS_REMOUNT | MS_RDONLY
        with pytest.raises(Unavailable, match="takes no write") as caught:
            await client.put(b"f", once(b"after"), 0o600)
        assert "box stop" in caught.value.remedy and "box start" in caught.value.remedy
        assert b"".join([chunk async for chunk in client.get(b"f")]) == b"before"


async def test_no_inode_is_left(small: Tree) -> None:
    async with files(small) as (client, _):
        with pytest.raises(DiskFull):
            for number in range(80):
                await client.put(b"d/%d" % number, once(b""), 0o600)
        await client.remove(b"d", True)
        await client.put(b"f", once(b"again"), 0o600)


async def test_the_size_limit_of_a_file(box: Tree) -> None:
    async with files(box, largest=1 << 20) as (client, _):
        with pytest.raises(TooLarge):
            await client.put(b"f", blocks(3), 0o600)
        assert names(box) == []
        assert (await client.put(b"f", blocks(1), 0o600)).size == 1 << 20


async def test_a_source_that_fails(box: Tree) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise LookupError("the uploader went away")

    async with files(box) as (client, _):
        await client.put(b"f", once(b"before"), 0o600)
        with pytest.raises(LookupError, match="the uploader went away"):
            await client.put(b"f", broken(), 0o600)
        assert names(box) == ["f"]
        assert (await client.stat(b"f")).size == 6


async def test_a_cancelled_put(box: Tree) -> None:
    started = asyncio.Event()

    async def stalls() -> AsyncIterator[bytes]:
        yield b"half"
        started.set()
        await asyncio.sleep(3600)

    async with files(box) as (client, helper):
        await client.put(b"f", once(b"before"), 0o600)
        put = asyncio.ensure_future(client.put(b"f", stalls(), 0o600))
        await started.wait()
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put
        with pytest.raises(Unavailable):
            await client.stat(b"f")
        assert await asyncio.to_thread(helper.wait) == 1
    assert names(box) == ["f"]
    assert (box.home / "f").read_text() == "before"


async def test_a_get_that_is_left(box: Tree) -> None:
    (box.home / "big").write_bytes(bytes(8 << 20))
    os.chown(box.home / "big", UID, UID)
    async with files(box) as (client, helper):
        chunks = client.get(b"big")
        assert await anext(chunks)
        await chunks.aclose()
        with pytest.raises(Unavailable):
            await client.stat(b"big")
        assert await asyncio.to_thread(helper.wait) == 1


async def test_what_is_cut_off(box: Tree) -> None:
    """A get whose reader takes nothing and a put whose sender gives nothing: the helper ends, and nothing of the put is there."""
    (box.home / "big").write_bytes(bytes(8 << 20))
    os.chown(box.home / "big", UID, UID)
    async with files(box) as (client, helper):
        chunks = client.get(b"big")
        assert await anext(chunks)
        client.cut()
        assert await asyncio.to_thread(helper.wait) == 1
        with pytest.raises(Unavailable):
            [chunk async for chunk in chunks]
    begun, on = asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b"begun"
        begun.set()
        await on.wait()
        yield b"ended"

    async with files(box) as (client, helper):
        putting = asyncio.create_task(client.put(b"new", slowly(), 0o600))
        await begun.wait()
        client.cut()
        assert await asyncio.to_thread(helper.wait) == 1
        on.set()
        with pytest.raises(Unavailable):
            await putting
    assert [one.name for one in box.home.iterdir()] == ["big"]


async def test_a_file_that_shrinks_under_a_get(box: Tree) -> None:
    path = box.home / "shrinking"
    path.write_bytes(bytes(16 << 20))
    os.chown(path, UID, UID)
    async with files(box) as (client, _):
        chunks = client.get(b"shrinking")
        got = len(await anext(chunks))
        os.truncate(path, got)
        with pytest.raises(Failed, match="shrank"):
            async for chunk in chunks:
                got += len(chunk)
        assert (await client.stat(b"shrinking")).size < 16 << 20  # the connection is whole


async def test_a_file_that_grows_under_a_get(box: Tree) -> None:
    path = box.home / "log"
    path.write_bytes(b"x" * (4 << 20))
    os.chown(path, UID, UID)
    async with files(box) as (client, _):
        chunks = client.get(b"log")
        got = len(await anext(chunks))
        with path.open("ab") as log:
            log.write(b"y" * (4 << 20))
        async for chunk in chunks:
            got += len(chunk)
            assert b"y" not in chunk
        assert got == 4 << 20


async def test_a_helper_that_dies(box: Tree) -> None:
    async with files(box) as (client, helper):
        await client.stat(b".")
        os.kill(helper.pid, 9)
        with pytest.raises(Unavailable, match="helper"):
            await client.stat(b".")


async def test_a_file_where_a_folder_should_be(box: Tree) -> None:
    async with files(box) as (client, _):
        await client.put(b"f", once(b""), 0o600)
        with pytest.raises(Conflict) as caught:
            await client.put(b"f/g", once(b""), 0o600)
        assert caught.value.details["reason"] == "exists"
        await client.put(b"d/g", once(b""), 0o600)
        with pytest.raises(Conflict) as caught:
            await client.put(b"d", once(b""), 0o600)
        assert caught.value.details["reason"] == "is_directory"


async def test_a_deletion_ends_with_its_caller(box: Tree) -> None:
    """A box that fills a folder as fast as it is emptied holds no helper for ever."""

    def refill() -> None:
        for number in range(300):
            try:
                os.makedirs(f"d/{number}/x", exist_ok=True)
            except OSError:
                return

    box.as_box(refill)
    with box.busy(refill):
        async with files(box) as (client, helper):
            await client.stat(b"d")
            removal = asyncio.ensure_future(client.remove(b"d", True))
            await asyncio.sleep(0.05)
            removal.cancel()
            with pytest.raises(asyncio.CancelledError):
                await removal
            async with asyncio.timeout(30):  # what it deletes is made anew for ever: it would go on
                await asyncio.to_thread(helper.wait)
