"""Copies of systems: one id for one tree, nothing of a hostile one but what an image may have."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from ringfence.host.install import images_tree
from ringfence.host.install.images_tree import Copied, Copier
from ringfence.host.kernel.errors import Conflict, DiskFull, Invalid


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    (made / "usr/bin").mkdir(parents=True)
    (made / "usr/bin/tool").write_text("one")
    (made / "usr/bin/tool").chmod(0o755)
    (made / "usr/share").mkdir()
    (made / "usr/share/doc").write_bytes(b"x" * (images_tree.PIECE + 5))
    (made / "bin").symlink_to("usr/bin")
    (made / "etc/alternatives").mkdir(parents=True)
    (made / "etc/alternatives/awk").symlink_to("/usr/bin/tool")
    (made / "etc/shadow").write_text("secret")
    return made


def copied(root: Path, name: str = "copy") -> tuple[str, Path, Copied]:
    target = root.parent / name
    target.mkdir()
    fds = [os.open(each, os.O_RDONLY) for each in (root, target)]
    try:
        copier = Copier(*fds)
        return copier.run(), target, copier.copied
    finally:
        for fd in fds:
            os.close(fd)


def listing(folder: Path) -> dict[str, tuple[int, bytes]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = (mode, content)
    return found


def test_it_is_what_was_there_without_the_rest_of_etc(root: Path) -> None:
    before = listing(root / "usr")
    _, copy, facts = copied(root)
    assert listing(copy / "usr") == before
    assert sorted(path.name for path in copy.iterdir()) == ["etc", "usr"]
    assert sorted(path.name for path in (copy / "etc").iterdir()) == sorted(images_tree.OF_ETC)
    assert os.readlink(copy / "etc/alternatives/awk") == "/usr/bin/tool"
    assert facts.bytes == 3 + images_tree.PIECE + 5 and not facts.left_out
    assert (copy / "usr/bin/tool").stat().st_mtime_ns == (root / "usr/bin/tool").stat().st_mtime_ns


def test_the_same_tree_has_one_id_whenever_it_was_made(root: Path) -> None:
    first = copied(root)[0]
    other = root.parent / "other"
    shutil.copytree(root, other, symlinks=True, copy_function=shutil.copy)
    os.utime(other / "usr/bin/tool", (1, 1))
    assert copied(other, "second")[0] == first


@pytest.mark.parametrize(
    "change",
    [
        lambda r: (r / "usr/bin/tool").write_text("two"),
        lambda r: (r / "usr/bin/tool").chmod(0o644),
        lambda r: (r / "usr/bin/tool").rename(r / "usr/bin/lool"),
        lambda r: (r / "usr/empty").mkdir(),
        lambda r: (r / "usr/link").symlink_to("bin/tool"),
        lambda r: (r / "etc/ld.so.conf").write_text("/usr/lib/x\n"),
        lambda r: ((r / "etc/alternatives/awk").unlink(), (r / "etc/alternatives/awk").symlink_to("/usr/bin/other")),
    ],
)
def test_any_other_tree_has_another_id(root: Path, change: Callable[[Path], object]) -> None:
    first = copied(root)[0]
    change(root)
    assert copied(root, "second")[0] != first


def test_a_hostile_tree_gives_nothing_but_files_links_and_folders(root: Path) -> None:
    (root / "usr/bin/su").write_text("root")
    (root / "usr/bin/su").chmod(0o6777)
    (root / "usr/open").mkdir(mode=0o777)
    (root / "usr/open").chmod(0o1777)
    (root / "usr/out").symlink_to("/etc/shadow")
    (root / "usr/up").symlink_to("../../../..")
    os.mkfifo(root / "usr/pipe")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(root / "usr/sock"))
        _, copy, facts = copied(root)
    kinds = {stat.S_IFMT(path.lstat().st_mode) for path in copy.rglob("*")}
    assert kinds == {stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK}
    assert stat.S_IMODE((copy / "usr/bin/su").stat().st_mode) == 0o755
    assert stat.S_IMODE((copy / "usr/open").stat().st_mode) == 0o755
    assert (os.readlink(copy / "usr/out"), os.readlink(copy / "usr/up")) == ("/etc/shadow", "../../../..")
    assert facts.left_out == {"sockets and pipes": 2, "set-user-id and set-group-id bits": 1}


@pytest.mark.root
def test_devices_owners_and_capabilities_stay_behind(root: Path) -> None:
    os.mknod(root / "usr/mem", stat.S_IFCHR | 0o666, os.makedev(1, 1))
    os.mknod(root / "usr/disk", stat.S_IFBLK | 0o666, os.makedev(7, 0))
    os.chown(root / "usr/bin/tool", 1234, 1234)
    subprocess.run(["setcap", "cap_net_raw+ep", str(root / "usr/bin/tool")], check=False)
    os.setxattr(root / "usr/bin/tool", "user.x", b"y")
    _, copy, facts = copied(root)
    assert facts.left_out == {"devices": 2}
    made = copy / "usr/bin/tool"
    assert (made.stat().st_uid, made.stat().st_gid, os.listxattr(made)) == (0, 0, [])
    assert not (copy / "usr/mem").exists() and not (copy / "usr/disk").exists()


def test_several_names_of_a_file_are_one_file_and_no_part_of_the_id(root: Path) -> None:
    first = (root / "usr/share/doc").read_bytes()
    for number in range(20):
        os.link(root / "usr/share/doc", root / f"usr/share/doc{number}")
    linked, copy, facts = copied(root)
    assert len({path.stat().st_ino for path in (copy / "usr/share").glob("doc*")}) == 1
    assert facts.bytes == 3 + 21 * len(first)
    for number in range(20):
        (root / f"usr/share/doc{number}").unlink()
        (root / f"usr/share/doc{number}").write_bytes(first)
    assert copied(root, "second")[0] == linked


def test_more_files_with_several_names_than_are_remembered(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images_tree, "LINKED", 2)
    for number in range(10):
        (root / f"usr/share/a{number}").write_text(str(number))
        os.link(root / f"usr/share/a{number}", root / f"usr/share/b{number}")
    _, copy, _ = copied(root)
    assert [(copy / f"usr/share/b{n}").read_text() for n in range(10)] == [str(n) for n in range(10)]


def _grows(root: Path) -> None:
    with (root / "usr/share/doc").open("ab") as file:
        file.write(b"more")


@pytest.mark.parametrize(
    "change",
    [
        _grows,
        lambda r: (r / "usr/share/doc").write_bytes(b"short"),
        lambda r: (r / "usr/share/new").write_text("x"),
        lambda r: (r / "usr/share/doc").unlink(),
    ],
)
def test_a_tree_that_changes_while_it_is_read_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    """At the first byte of the file that changes, or is changed beside."""
    written = images_tree._write
    done: list[int] = []

    def meddled(fd: int, data: bytes) -> None:
        if len(data) == images_tree.PIECE and not done:
            done.append(1)
            change(root)
        written(fd, data)

    monkeypatch.setattr(images_tree, "_write", meddled)
    with pytest.raises(Conflict, match="changed while it was read"):
        copied(root)
    assert done


def test_a_file_that_becomes_a_link_is_not_followed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = images_tree._names

    def meddled(fd: int, path: bytes) -> list[bytes]:
        found = names(fd, path)
        if path == b"usr/share":
            (root / "usr/share/doc").unlink()
            (root / "usr/share/doc").symlink_to("/etc/passwd")
        return found

    monkeypatch.setattr(images_tree, "_names", meddled)
    with pytest.raises(Conflict, match="changed"):
        copied(root)


def test_too_deep_and_too_wide(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = root / "usr/share"
    for _ in range(images_tree.DEEPEST + 1):
        deep /= "d"
        deep.mkdir()
    with pytest.raises(Invalid, match="folders deep"):
        copied(root)
    shutil.rmtree(root / "usr/share/d")
    monkeypatch.setattr(images_tree, "WIDEST", 3)
    for number in range(4):
        (root / f"usr/share/{number}").touch()
    with pytest.raises(Invalid, match="more than 3 names"):
        copied(root, "second")


def test_what_is_no_system(root: Path, tmp_path: Path) -> None:
    (root / "bin").unlink()
    (root / "bin").mkdir()
    with pytest.raises(Invalid, match="/bin is not in its /usr"):
        copied(root)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(Invalid, match="no usr"):
        copied(tmp_path / "nothing", "second")
    (tmp_path / "nothing/usr").symlink_to("/usr")
    with pytest.raises(Invalid, match="no folder"):
        copied(tmp_path / "nothing", "third")


def test_a_volume_is_not_filled(root: Path) -> None:
    with (root / "usr/huge").open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(DiskFull, match="no room"):
        copied(root)


def test_memory_does_not_grow_with_the_tree(root: Path) -> None:
    def peak(files: int) -> int:
        for number in range(files):
            folder = root / f"usr/share/f{number // 200}"
            folder.mkdir(exist_ok=True)
            (folder / str(number)).touch()
        tracemalloc.start()
        copied(root, f"copy{files}")
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    few = peak(200)
    assert peak(10_000) < few + (1 << 20)
