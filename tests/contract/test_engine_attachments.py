"""Files that a message names, looked at in the author's own tree by the real files helper."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ringfence.host.drivers.files import FilesClient
from ringfence.host.kernel.errors import Invalid, NotFound, TooLarge
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.ports import Accepted
from ringfence.host.kernel.threads import MAX_ATTACHMENTS, Attachment
from tests.support.engine_rig import Rig, rig
from tests.support.files_rig import Tree, files, tree


@asynccontextmanager
async def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Rig, Tree]]:
    """A rig whose boxes' files are one tree behind real helpers."""
    with tree(tmp_path / "tree") as made:

        @asynccontextmanager
        async def helper(box: BoxId) -> AsyncIterator[FilesClient]:
            async with files(made) as (client, _):
                yield client

        async with rig(tmp_path) as r:
            monkeypatch.setattr(r.driver, "files", helper)
            yield r, made


async def attach(r: Rig, *paths: str, thread: str = "t") -> Accepted:
    return await r.engine.threads.say(r.actors["alice"], "default", thread, "look", "queue", None, paths)


def fill() -> None:
    Path("notes").mkdir()
    Path("notes/a b.txt").write_text("12345")
    Path("empty").touch()
    os.symlink("notes/a b.txt", "link")
    os.symlink("../outside/f", "out")
    os.symlink("/etc/passwd", "absolute")
    os.symlink("nowhere", "dangling")
    os.symlink("notes", "folder-link")
    os.mkfifo("fifo")
    os.symlink("fifo", "fifo-link")


@pytest.mark.root
async def test_files_are_kept_as_named_with_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with real(tmp_path, monkeypatch) as (r, made):
        made.as_box(fill)
        names = ("notes/a b.txt", "/home/user/empty", "./notes/../link", "notes/a b.txt")
        said = await attach(r, *names)
        expected = tuple(Attachment(name, size) for name, size in zip(names, (5, 0, 5, 5), strict=True))
        assert said.message.attachments == expected
        assert (await r.engine.threads.messages(r.actors["alice"], "default", "t", None, 10))[0].attachments == expected
        assert r.box("alice").starts <= 1  # only for the run: looking starts nothing


@pytest.mark.root
@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("absent", NotFound, "'absent'"),
        ("notes/a b.txt/x", NotFound, "x'"),
        ("dangling", NotFound, "'dangling'"),
        ("notes", Invalid, "'notes' cannot be attached: it is a folder"),
        (".", Invalid, "folder"),
        ("fifo", Invalid, "'fifo' cannot be attached: it is not a regular file"),
        ("fifo-link", Invalid, "'fifo-link'"),
        ("folder-link", Invalid, "'folder-link'"),
        ("out", Invalid, "'out' cannot be attached"),
        ("absolute", Invalid, "'absolute' cannot be attached"),
        ("../outside/f", Invalid, "outside"),
        ("/etc/passwd", Invalid, "'/etc/passwd'"),
        ("n" * 300, Invalid, "'nnn"),
        ("d/" * 3000, Invalid, "'d/d/"),
        ("a\0b", Invalid, "'a.x00b'"),
        ("", Invalid, "''"),
        ("a\ud800", Invalid, "'a.ud800'"),
        ("a\nb", NotFound, r"'a\\nb'"),
    ],
)
async def test_what_cannot_be_attached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, error: type[Exception], words: str
) -> None:
    async with real(tmp_path, monkeypatch) as (r, made):
        made.as_box(fill)
        for paths in ((path,), ("empty", path, "empty")):
            with pytest.raises(error, match=words) as raised:
                await attach(r, *paths)
            assert "\n" not in str(raised.value)
            assert len(str(raised.value)) < 700
        assert await r.store.threads.of_member(r.actors["alice"].user.id) == []  # type: ignore[union-attr]
        assert (await attach(r, "empty")).message.attachments == (Attachment("empty", 0),)  # the control


@pytest.mark.root
@pytest.mark.sqlite  # no matter of the database, and 5 s
async def test_nothing_outside_is_seen_by_a_link_that_is_swapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that leads in and out by turns is the file inside, or is refused; the size outside is never told."""
    async with real(tmp_path, monkeypatch) as (r, made):
        made.as_box(fill)

        def swap() -> None:
            for target in ("empty", "../outside/f"):
                os.symlink(target, "next")
                os.rename("next", "link")

        sizes, refused = set(), 0
        with made.busy(swap):
            for _ in range(15):  # each with two helpers; half of the looks find the link that leads out
                try:
                    sizes.add((await attach(r, "link")).message.attachments[0].size)
                except (Invalid, NotFound):
                    refused += 1
        assert sizes <= {0, 5}
        assert refused
        assert len((made.outside / "f").read_text()) not in sizes


async def test_too_many_and_a_box_that_was_never_started(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        too_many = ["f"] * (MAX_ATTACHMENTS + 1)
        with pytest.raises(TooLarge, match="21 attachments; the limit is 20"):
            await attach(r, *too_many)
        with pytest.raises(TooLarge, match="the limit is 16384"):
            await attach(r, *["x" * 1000] * 17)
        with pytest.raises(NotFound, match="'f'"):
            await attach(r, "f")
        box = r.box("alice")
        assert box.starts == 0
        (box.folder / "f").write_text("abc")
        assert (await attach(r, *["f"] * MAX_ATTACHMENTS)).message.attachments == (Attachment("f", 3),) * 20


async def test_a_file_is_sought_in_the_authors_own_box(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.engine.threads.add(r.actors["alice"], "default", "t", ["bob"], False)
        await r.engine.boxes.start(r.actors["alice"], "default", "alice")
        (r.box("alice").folder / "mine").write_text("alice's")
        with pytest.raises(NotFound, match="'mine'"):
            await r.engine.threads.say(r.actors["bob"], "default", "t", "look", "queue", None, ["mine"])
        assert (await attach(r, "mine")).message.attachments[0].size == 7
