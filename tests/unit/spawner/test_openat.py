"""Opening beneath a directory: what leads out, by the call and by the walk that stands in for it."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.spawner import openat
from ringfence.spawner.openat import open_beneath, walk_beneath


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "outside").write_text("out")
    top = tmp_path / "top"
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "f").write_text("in")
    for name, target in (
        ("near", "a"),
        ("nearfile", "a/f"),
        ("up", ".."),
        ("out", "../outside"),
        ("absolute", str(tmp_path / "outside")),
        ("loop", "loop"),
        ("back", "a/b/../f"),
    ):
        (top / name).symlink_to(target)
    fd = os.open(top, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def content(fd: int) -> bytes:
    try:
        return os.read(fd, 10)
    finally:
        os.close(fd)


OUT = [b"../outside", b"a/../../outside", b"/etc/passwd", b"..", b"/"]
LINKS_OUT = [b"up/outside", b"out", b"absolute", b"a/../up/outside"]
LINKS_IN = [b"near/f", b"nearfile", b"back"]


@pytest.mark.parametrize("path", OUT + LINKS_OUT)
@pytest.mark.parametrize("symlinks", [True, False])
def test_nothing_leads_out(root: int, path: bytes, symlinks: bool) -> None:
    with pytest.raises(OSError) as caught:
        open_beneath(root, path, os.O_RDONLY, symlinks=symlinks)
    assert caught.value.errno in (errno.EXDEV, errno.ELOOP)


@pytest.mark.parametrize("path", LINKS_IN)
def test_links_inside(root: int, path: bytes) -> None:
    assert content(open_beneath(root, path, os.O_RDONLY, symlinks=True)) == b"in"
    with pytest.raises(OSError) as caught:
        open_beneath(root, path, os.O_RDONLY)
    assert caught.value.errno == errno.ELOOP


@pytest.mark.parametrize("path", OUT + LINKS_OUT + LINKS_IN + [b"loop", b"a/../a/f"])
def test_the_walk_takes_no_link_and_no_dots(root: int, path: bytes) -> None:
    with pytest.raises(OSError) as caught:
        walk_beneath(root, path, os.O_RDONLY)
    assert caught.value.errno in (errno.EXDEV, errno.ELOOP, errno.ENOTDIR)


@pytest.mark.parametrize("path", [b"a/f", b"./a/./f", b"a//f"])
def test_both_open_what_is_there(root: int, path: bytes) -> None:
    assert content(open_beneath(root, path, os.O_RDONLY)) == b"in"
    assert content(walk_beneath(root, path, os.O_RDONLY)) == b"in"


def test_the_walk_stands_in_where_the_call_is_missing(root: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openat, "NR_OPENAT2", 100_000)  # a number that no kernel has: ENOSYS
    assert content(open_beneath(root, b"a/f", os.O_RDONLY)) == b"in"
    with pytest.raises(OSError):
        open_beneath(root, b"out", os.O_RDONLY, symlinks=True)
    before = len(os.listdir("/proc/self/fd"))
    for path in (b"a/none", b"a/f/x", b"near/f", b"."):
        with contextlib.suppress(OSError):
            os.close(open_beneath(root, path, os.O_RDONLY))
    assert len(os.listdir("/proc/self/fd")) == before


def test_errors_and_flags(root: int) -> None:
    for path, code in ((b"none", errno.ENOENT), (b"a/f/x", errno.ENOTDIR), (b"n" * 300, errno.ENAMETOOLONG)):
        with pytest.raises(OSError) as caught:
            open_beneath(root, path, os.O_RDONLY)
        assert caught.value.errno == code
    with pytest.raises(OSError) as caught:
        open_beneath(root, b"a/" * 2048, os.O_RDONLY)
    assert caught.value.errno == errno.ENAMETOOLONG
    for path in (b"", b"a\0f"):
        with pytest.raises(ValueError, match="NUL"):
            open_beneath(root, path, os.O_RDONLY)
    fd = open_beneath(root, b"new", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640)
    assert not os.get_inheritable(fd)
    assert os.fstat(fd).st_mode & 0o777 == 0o640
    os.close(fd)
    os.close(open_beneath(root, b"new", os.O_RDONLY, 0o640))  # openat2 itself refuses a mode without O_CREAT


def test_errno_is_each_thread_s_own(root: int) -> None:
    wrong: list[int] = []

    def ask(path: bytes, code: int) -> None:
        for _ in range(2000):
            try:
                os.close(open_beneath(root, path, os.O_RDONLY))
            except OSError as error:
                if error.errno != code:
                    wrong.append(error.errno or 0)

    asked = [(b"none", errno.ENOENT), (b"a/f/x", errno.ENOTDIR), (b"out", errno.ELOOP), (b"..", errno.EXDEV)]
    threads = [threading.Thread(target=ask, args=pair) for pair in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
