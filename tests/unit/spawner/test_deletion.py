"""Deleting below a directory fd, as an ordinary account can see it; races and depth are in security/test_files.py."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.spawner.deletion import BATCH, empty
from ringfence.spawner.walk import Descent


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "top").mkdir()
    fd = os.open(tmp_path / "top", os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def test_links_are_unlinked(root: int, tmp_path: Path) -> None:
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep" / "f").write_text("x")
    (tmp_path / "top" / "link").symlink_to("../keep")
    (tmp_path / "top" / "sub").mkdir()
    (tmp_path / "top" / "sub" / "link").symlink_to(tmp_path / "keep")
    os.link(tmp_path / "keep" / "f", tmp_path / "top" / "hard")
    empty(root)
    assert os.listdir(tmp_path / "top") == []
    assert (tmp_path / "keep" / "f").read_text() == "x"


def test_more_folders_than_a_batch_and_folders_in_them(root: int, tmp_path: Path) -> None:
    for number in range(3 * BATCH + 1):
        (tmp_path / "top" / str(number) / "x" / "y").mkdir(parents=True)
        (tmp_path / "top" / str(number) / "x" / "f").write_text("")
    empty(root)
    assert os.listdir(tmp_path / "top") == []


def test_a_root_that_its_owner_may_not_read(root: int, tmp_path: Path) -> None:
    (tmp_path / "top" / "f").write_text("")
    (tmp_path / "top").chmod(0)
    empty(root)
    assert os.listdir(tmp_path / "top") == []


def test_it_stops_when_told(root: int, tmp_path: Path) -> None:
    (tmp_path / "top" / "a" / "b").mkdir(parents=True)
    with pytest.raises(OSError) as caught:
        empty(root, stop=lambda: True)
    assert caught.value.errno == errno.ECANCELED
    assert (tmp_path / "top" / "a" / "b").exists()


def test_few_descriptors(root: int, tmp_path: Path) -> None:
    (tmp_path / "top" / "/".join("abcdefghij" * 5)).mkdir(parents=True)
    most = 0
    before = len(os.listdir("/proc/self/fd"))

    def count() -> bool:
        nonlocal most
        most = max(most, len(os.listdir("/proc/self/fd")) - before)
        return False

    empty(root, stop=count)
    assert 0 < most <= 5
    assert len(os.listdir("/proc/self/fd")) == before


def test_entries_that_appear_meanwhile(root: int, tmp_path: Path) -> None:
    top, stop = tmp_path / "top", threading.Event()

    def write() -> None:
        for number in range(500):
            try:
                (top / f"d{number % 7}" / "e").mkdir(parents=True, exist_ok=True)
                (top / f"d{number % 7}" / "e" / str(number)).write_text("x")
            except OSError:
                continue
        stop.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not stop.is_set():
        empty(root)
    writer.join()
    empty(root)
    assert os.listdir(top) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.lists(st.sampled_from("abc"), max_size=6), st.sampled_from(["file", "link", "folder"]))))
def test_any_shape(tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[list[str], str]]) -> None:
    top = tmp_path_factory.mktemp("shape")
    for parts, kind in entries:
        folder = top.joinpath(*parts)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if kind != "folder":
                make: Callable[[], object] = (folder / kind).touch if kind == "file" else _linker(folder)
                make()
        except OSError:
            continue
    fd = os.open(top, os.O_PATH | os.O_DIRECTORY)
    try:
        empty(fd)
    finally:
        os.close(fd)
    assert os.listdir(top) == []


def _linker(folder: Path) -> Callable[[], object]:
    return lambda: (folder / "link").symlink_to("..")


def test_going_up_trusts_no_dots(tmp_path: Path) -> None:
    """A folder that is moved while the walk is in it leads back to where it came from, not to its new parent."""
    (tmp_path / "top" / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    fd = os.open(tmp_path / "top", os.O_PATH | os.O_DIRECTORY)
    with Descent(fd) as at:
        for name in (b"a", b"b", b"c"):
            at.down(name)
        (tmp_path / "top" / "a" / "b").rename(tmp_path / "elsewhere" / "b")
        assert at.up() == b"c"  # b is still c's parent
        assert at.up() is None  # but a is not b's any more
        assert os.fstat(at.fd).st_ino == (tmp_path / "top" / "a").stat().st_ino
        assert [level.name for level in at.levels] == [b"", b"a"]
    os.close(fd)
