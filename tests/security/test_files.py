"""The files of a box from outside: threats.md F01-F07 and F10, cases.md C38, C41, C42, C47, C48.

Every test goes through the kernel's client to a real helper, forked, chrooted and dropped as the spawner does it. What
must not be reached lies inside that chroot and belongs to the helper's own uid, so that only the way of opening is
tried; the naive reader, writer and deleter beside it show that the attack works on them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import hashlib
import os
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from ringfence.host.drivers.files import FilesClient
from ringfence.host.kernel.errors import Conflict, Failed, Invalid, NotFound, Refused
from ringfence.spawner.openat import open_beneath
from tests.support.files_rig import UID, Helper, Tree, files, memory_of, start, tree

pytestmark = pytest.mark.root

LIBC = ctypes.CDLL(None, use_errno=True)
RENAME_EXCHANGE = 2


@pytest.fixture
def box() -> Iterator[Tree]:
    """Not below pytest's own folder, whose cleaning would recurse into what a killed run left."""
    folder = Path(tempfile.mkdtemp())
    with tree(folder / "tree") as made:
        yield made
    folder.rmdir()


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def read(client: FilesClient, path: bytes) -> bytes:
    return b"".join([chunk async for chunk in client.get(path)])


def exchange(one: bytes, other: bytes) -> None:
    LIBC.renameat2(-100, one, -100, other, RENAME_EXCHANGE)


# --- names and bytes -------------------------------------------------------------------------------------------------

NAMES = (
    "smile 😀".encode(),
    b"two  spaces ",
    b"-rf",
    b"new\nline",
    b"%2e%2e%2f",
    b"n" * 255,
    b"\xff\xfe not utf-8 \x80",
    b"...",
    b"..a",
    b"~",
    b"*",
    b"back\\slash",
    b"\x01\x1b[31m",
    "\N{LATIN CAPITAL LETTER A WITH DIAERESIS}".encode(),
    "A\N{COMBINING DIAERESIS}".encode(),  # the same to the eye, another file
)


async def test_c38_names_are_bytes(box: Tree) -> None:
    async with files(box) as (client, _):
        for name in NAMES:
            info = await client.put(b"odd/" + name, once(b"<" + name + b">"), 0o640)
            assert (info.name, info.kind, info.size, info.mode) == (name, "file", len(name) + 2, 0o640)
        for name in NAMES:
            assert await read(client, b"odd/" + name) == b"<" + name + b">"
            assert (await client.stat(b"/home/user/odd/" + name)).name == name
        assert [entry.name for entry in await client.list(b"odd", None, 1000)] == sorted(NAMES)
        assert sorted(os.listdir(os.fsencode(box.home) + b"/odd")) == sorted(NAMES)
        for name in NAMES:
            await client.remove(b"odd/" + name, False)
        assert await client.list(b"odd", None, 10) == []


@pytest.mark.parametrize("data", [b"", b"a\r\nb\r\n\r\n", bytes(range(256)) * 5000, b"\r\n" * 300_000])
async def test_c48_bytes_are_kept(box: Tree, data: bytes) -> None:
    async with files(box) as (client, _):
        await client.put(b"f", once(data), 0o600)
        assert await read(client, b"f") == data
        assert (box.home / "f").read_bytes() == data


async def test_names_beyond_the_limits(box: Tree) -> None:
    async with files(box) as (client, _):
        with pytest.raises(Refused, match="too long"):
            await client.put(b"n" * 256, once(b""), 0o600)
        for path in (b"", b"a\0b", b"a/" * 2500):
            with pytest.raises(Invalid):
                await client.stat(path)
        with pytest.raises(Invalid, match="4755"):
            await client.put(b"f", once(b""), 0o4755)
        with pytest.raises(NotFound):
            await client.stat(b"f")


# --- links -----------------------------------------------------------------------------------------------------------


def plant_links() -> None:
    for name, target in (
        ("passwd", "/etc/passwd"),
        ("root", "/"),
        ("up", "../outside"),
        ("upfile", "../outside/f"),
        ("far", "../" * 40 + "outside/f"),
        ("absolute", "/outside/f"),
        ("loop", "loop"),
        ("inside", "docs/real"),
    ):
        os.symlink(target, name)
    os.makedirs("docs/sub")
    Path("docs/real").write_text("inside")
    os.symlink("../real", "docs/sub/near")


async def test_f01_c47_links_lead_nowhere_outside(box: Tree) -> None:
    box.as_box(plant_links)
    assert (box.home / "upfile").read_text() == "OUTSIDE"  # the naive reader
    async with files(box) as (client, _):
        for path in (b"passwd", b"up/f", b"upfile", b"far", b"absolute", b"root/outside/f", b"loop"):
            with pytest.raises(Refused):
                await read(client, path)
        for path in (b"root/tmp/x", b"up/x", b"up/new/x"):
            with pytest.raises(Refused):
                await client.put(path, once(b"x"), 0o600)
        for path in (b"up/f", b"root/outside/f"):
            with pytest.raises(Refused):
                await client.remove(path, True)
        with pytest.raises(Refused):
            await client.list(b"up/.", None, 10)
        assert await read(client, b"inside") == b"inside"
        assert await read(client, b"docs/sub/near") == b"inside"
        info = await client.stat(b"passwd")
        assert (info.kind, info.target) == ("symlink", b"/etc/passwd")
        for path in (b"../outside/f", b"/home/user/../../outside/f", b"/etc/passwd", b"/home", b"/", b"/home/user2"):
            with pytest.raises(Refused):
                await read(client, path)
    assert os.listdir(box.outside) == ["f"]
    assert os.listdir(box.root / "tmp") == []


async def test_a_put_replaces_a_link_and_writes_not_through_it(box: Tree) -> None:
    box.as_box(plant_links)
    async with files(box) as (client, _):
        assert (await client.put(b"upfile", once(b"mine"), 0o600)).kind == "file"
        await client.remove(b"far", False)
        await client.remove(b"up", True)
    assert (box.outside / "f").read_text() == "OUTSIDE"
    assert not (box.home / "upfile").is_symlink()


def test_f03_magic_links_are_refused() -> None:
    """On the host's own /proc: the helper's chroot has none."""
    here = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY)
    try:
        os.close(os.open("cwd/.", os.O_PATH, dir_fd=here))  # the naive way
        for symlinks in (True, False):
            with pytest.raises(OSError, match="symbolic") as caught:
                open_beneath(here, b"cwd/.", os.O_PATH, symlinks=symlinks)
            assert caught.value.errno == errno.ELOOP
    finally:
        os.close(here)


# --- races -----------------------------------------------------------------------------------------------------------


def plant_race() -> None:
    os.makedirs("d/sub")
    Path("d/f").write_text("inside")
    os.symlink("../outside", "lnk")


def swap() -> None:
    exchange(b"d", b"lnk")


def fooled(attempt: Callable[[], bool], seconds: float = 10) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            if attempt():
                return True
    return False


async def test_f02_no_swap_shows_what_is_outside(box: Tree) -> None:
    """3 s of RENAME_EXCHANGE between a folder and a link out of the tree."""
    box.as_box(plant_race)
    path = os.fspath(box.home / "d" / "f")

    def naive() -> bool:
        if not os.path.realpath(path).startswith(os.fspath(box.home)):
            return False
        return "OUTSIDE" in Path(path).read_text()

    seen: dict[str, int] = {}
    with box.busy(swap):
        assert fooled(naive)
        async with files(box) as (client, _):
            until = time.monotonic() + 3
            while time.monotonic() < until:
                try:
                    text = (await read(client, b"d/f")).decode()
                except (Refused, NotFound, Failed) as error:  # Failed: 64 walks in a row met a rename
                    text = error.code
                seen[text] = seen.get(text, 0) + 1
    assert "OUTSIDE" not in seen
    assert seen["inside"] > 100
    assert seen["refused"] > 100


async def test_f07_no_swap_writes_outside(box: Tree) -> None:
    box.as_box(plant_race)

    def naive() -> bool:
        folder = box.home / "d"
        if not os.path.realpath(folder).startswith(os.fspath(box.home)):
            return False
        (folder / "naive").write_text("x")
        return (box.outside / "naive").exists()

    tried = written = 0
    with box.busy(swap):
        assert fooled(naive)
        (box.outside / "naive").unlink()
        async with files(box) as (client, _):
            until = time.monotonic() + 3
            while time.monotonic() < until:
                tried += 1
                with contextlib.suppress(Refused, NotFound, Failed):
                    await client.put(b"d/%d/file" % tried, once(b"x"), 0o600)
                    written += 1
    assert os.listdir(box.outside) == ["f"]
    assert tried > written > 50


PAIRS = 24  # folders that one scan of a deletion remembers (at most 32) before it goes down into the first


def make_pairs() -> None:
    for number in range(PAIRS):
        with contextlib.suppress(OSError):
            os.makedirs(f"d/x{number}/sub", exist_ok=True)
        with contextlib.suppress(OSError):
            os.symlink("../../outside", f"d/l{number}")


def swap_pairs() -> None:
    for number in range(PAIRS):
        exchange(b"d/x%d" % number, b"d/l%d" % number)


async def test_f06_no_swap_deletes_outside(box: Tree) -> None:
    """Folders are swapped for links while they are deleted; a hard link's other name stays."""

    def plant() -> None:
        make_pairs()
        os.link("/outside/f", "hard")

    def naive() -> bool:
        for folder in [entry for entry in (box.home / "d").iterdir() if not entry.is_symlink()]:
            for name in os.listdir(folder):
                with contextlib.suppress(OSError):
                    os.unlink(folder / name)
        return not (box.outside / "f").exists()

    box.as_box(plant)
    with box.busy(swap_pairs):
        assert fooled(naive)
        (box.outside / "f").write_text("keep")
        removed = 0
        async with files(box) as (client, _):
            until = time.monotonic() + 3
            while time.monotonic() < until:
                await client.remove(b"d", True)
                removed += 1
                assert (box.outside / "f").exists()
                box.as_box(make_pairs)
            await client.remove(b"hard", False)
    assert removed > 3
    assert (box.outside / "f").read_text() == "keep"


# --- what is no file -------------------------------------------------------------------------------------------------


async def test_f04_no_fifo_socket_or_device_is_opened(box: Tree) -> None:
    os.mkfifo(box.home / "fifo")
    os.mknod(box.home / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as sock:
        here = os.getcwd()
        os.chdir(box.home)  # a socket's path is at most 107 bytes
        sock.bind("socket")
        os.chdir(here)
    for entry in box.home.iterdir():
        os.chown(entry, UID, UID)
    async with files(box) as (client, _):
        await client.stat(b".")
        for name in (b"fifo", b"null", b"socket"):
            with pytest.raises(Refused, match="not a regular file"):  # opened, a FIFO would have it wait for a writer
                await read(client, name)
            assert (await client.stat(name)).kind == "other"
            await client.remove(name, False)
        with pytest.raises(Conflict, match="folder"):
            await read(client, b"/workspace")
    assert os.listdir(box.home) == []


async def test_the_naive_reader_hangs_on_a_fifo(box: Tree) -> None:
    """The control of F04."""
    os.mkfifo(box.home / "fifo")
    pid = box.fork(lambda: os.open("/home/fifo", os.O_RDONLY))
    os.chown(box.home / "fifo", UID, UID)
    await asyncio.sleep(0.3)
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    os.kill(pid, 9)
    os.waitpid(pid, 0)


# --- size, depth and number ------------------------------------------------------------------------------------------


def make_deep(depth: int) -> None:
    os.mkdir("deep")
    os.chdir("deep")
    for _ in range(depth):
        Path("file").write_text("x")
        os.mkdir("n" * 100)
        os.chdir("n" * 100)


async def test_a_tree_of_3000_levels_is_counted_and_removed(box: Tree) -> None:
    box.as_box(lambda: make_deep(1100))
    with pytest.raises(RecursionError):
        shutil.rmtree(box.home / "deep")
    subprocess.run(["rm", "-rf", box.home / "deep"], check=True)  # the control has removed a part of it
    box.as_box(lambda: make_deep(3000))
    async with files(box) as (client, helper):
        size, inodes = await client.usage()
        assert inodes == 3000 * 2 + 1 + 5  # folder and file of each level, `deep`, the four tops and outside/f
        assert size >= 3000 * 512
        with pytest.raises(Conflict, match="not empty"):
            await client.remove(b"deep", False)
        await client.remove(b"deep", True)
        assert await client.list(b".", None, 10) == []
        assert len(os.listdir(f"/proc/{helper.pid}/fd")) == 5  # the first three, the socket, the tree


async def test_folders_that_their_owner_may_not_read_are_removed(box: Tree) -> None:
    def plant() -> None:
        os.makedirs("a/b/c")
        Path("a/b/c/f").write_text("x")
        for name, mode in (("a/b/c", 0o000), ("a/b", 0o444), ("a", 0o555)):
            Path(name).chmod(mode)

    box.as_box(plant)
    async with files(box) as (client, _):
        await client.remove(b"a", True)
    assert os.listdir(box.home) == []


async def test_a_mount_below_is_not_crossed(box: Tree) -> None:
    box.as_box(lambda: os.makedirs("a/mounted"))
    assert LIBC.mount(os.fsencode(box.outside), os.fsencode(box.home / "a" / "mounted"), None, 4096, None) == 0
    try:
        async with files(box) as (client, _):
            with pytest.raises(Refused):
                await client.remove(b"a", True)
        assert os.listdir(box.outside) == ["f"]
    finally:
        assert LIBC.umount2(os.fsencode(box.home / "a" / "mounted"), 2) == 0


async def test_a_folder_of_50000_names_is_listed_by_pages(box: Tree) -> None:
    """Sorted by raw bytes, each once, with memory for one page. 50 000 names held at once would be > 5 MB."""

    def plant() -> None:
        os.mkdir("many")
        for number in range(50_000):
            os.close(os.open(f"many/{number:040}", os.O_CREAT | os.O_WRONLY))

    box.as_box(plant)
    async with files(box) as (client, helper):
        await client.list(b"many", None, 10)
        before = helper.memory("VmHWM")
        names = [entry.name for entry in await client.list(b"many", None, 2500)]
        assert names == [f"{number:040}".encode() for number in range(2500)]
        last = await client.list(b"many", f"{49_990:040}".encode(), 1000)
        assert [entry.name for entry in last] == [f"{number:040}".encode() for number in range(49_991, 50_000)]
        assert helper.memory("VmHWM") - before < 3 << 20
        await client.remove(b"many", True)


async def test_long_link_targets_do_not_break_a_page(box: Tree) -> None:
    def plant() -> None:
        for number in range(300):
            os.symlink("t" * 4000, f"{number:03}")

    box.as_box(plant)
    async with files(box) as (client, _):
        entries = await client.list(b".", None, 1000)
    assert [entry.name for entry in entries] == [f"{number:03}".encode() for number in range(300)]
    assert {entry.target for entry in entries} == {b"t" * 4000}


async def test_c41_memory_is_flat(box: Tree) -> None:
    """256 MiB each way; both ends keep one chunk. The long form (2 GiB, throttled) differs in size only."""
    block = os.urandom(1 << 20)
    expected = hashlib.sha256(block * 256).hexdigest()

    async def source() -> AsyncIterator[bytes]:
        for _ in range(256):
            yield block

    async with files(box) as (client, helper):
        await client.put(b"warm", once(block), 0o600)
        await read(client, b"warm")
        ours, theirs = memory_of("self"), helper.memory("VmHWM")
        info = await client.put(b"big", source(), 0o600)
        assert info.size == 256 << 20
        digest = hashlib.sha256()
        async for chunk in client.get(b"big"):
            digest.update(chunk)
        assert digest.hexdigest() == expected
        assert helper.memory("VmHWM") - theirs < 2 << 20
        assert memory_of("self") - ours < 8 << 20


async def test_c42_parallel_puts_into_one_new_folder(box: Tree) -> None:
    old = box.home / "old"
    box.as_box(lambda: os.mkdir("old", 0o700))
    before = old.stat()

    async def put(number: int) -> None:
        async with files(box) as (client, _):
            await client.put(b"old/a/b/c/d/e/%d" % number, once(b"%d" % number), 0o644)

    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(put(number))
    assert {path.name: path.read_text() for path in (old / "a/b/c/d/e").iterdir()} == {str(n): str(n) for n in range(8)}
    assert (old.stat().st_mode, old.stat().st_uid) == (before.st_mode, before.st_uid)
    for folder in ("a", "a/b", "a/b/c", "a/b/c/d", "a/b/c/d/e"):
        assert (stat.S_IMODE((old / folder).stat().st_mode), (old / folder).stat().st_uid) == (0o755, UID)


async def test_f10_a_restore_is_an_upload(box: Tree) -> None:
    """A hostile archive's entries, one by one: every name goes the same way, and no mode brings more than bits."""
    box.as_box(lambda: os.symlink("../outside", "evil"))
    async with files(box) as (client, _):
        for name in (b"../x", b"a/../../x", b"/etc/cron.d/x", b"evil/x", b"evil/../../outside/x"):
            with pytest.raises(Refused):
                await client.put(name, once(b"x"), 0o755)
        for mode in (0o4755, 0o2755, 0o1777):
            with pytest.raises(Invalid):
                await client.put(b"x", once(b"x"), mode)
        for name in (b".", b"..", b"a/..", b"folder/"):
            with pytest.raises((Refused, Conflict)):
                await client.put(name, once(b"x"), 0o755)
    assert os.listdir(box.outside) == ["f"]


def test_the_helper_has_the_box_uid_and_no_more(box: Tree) -> None:
    """What the rig does is what the spawner must do; the process itself is looked at, not its words."""
    helper: Helper = start(box)
    try:
        status = Path(f"/proc/{helper.pid}/status").read_text()
        until = time.monotonic() + 5
        while f"Uid:\t{UID}\t{UID}\t{UID}\t{UID}" not in status and time.monotonic() < until:
            status = Path(f"/proc/{helper.pid}/status").read_text()
        assert "CapEff:\t0000000000000000" in status
        assert os.readlink(f"/proc/{helper.pid}/root") == os.fspath(box.root)
    finally:
        os.close(helper.fd)
    assert helper.wait() == 0
