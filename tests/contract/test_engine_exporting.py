"""A user's own data as one archive: what is in it, what never is, for whom; and the rehearsal of a removal."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.engine import exporting
from ringfence.host.kernel.audit import Lane
from ringfence.host.kernel.errors import Failed, NotFound, Refused, Unavailable
from ringfence.host.kernel.people import Actor
from tests.support.access_rig import ALICE, CAROL, THREAD, scene
from tests.support.engine_rig import OPERATOR, Rig, rig
from tests.support.fake_driver import FolderFiles

MIB = 1 << 20


@pytest.fixture
async def r(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


async def taken(r: Rig, actor: Actor, name: str = "alice") -> dict[str, bytes]:
    """Contents by name; of a folder b"", of a link what it names."""
    async with r.engine.exports.open(actor, "default", name) as stream:
        packed = b"".join([piece async for piece in stream])
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(packed)), errors="surrogateescape") as tar:
        for each in tar:
            file = tar.extractfile(each) if each.isreg() else None
            assert each.name not in found, "no name is there twice"
            found[each.name] = file.read() if file is not None else each.linkname.encode(errors="surrogateescape")
    assert list(found)[-1] == "export/manifest.json", "the last says that it is whole"
    return found


def rows(found: dict[str, bytes], kind: str) -> list[dict[str, Any]]:
    parts = sorted(name for name in found if name.startswith(f"export/{kind}/"))
    return [json.loads(line) for name in parts for line in found[name].splitlines()]


def manifest(found: dict[str, bytes]) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(found["export/manifest.json"])
    return said


# --- what is in it ---------------------------------------------------------------------------------------------------


async def test_all_that_is_hers_and_nothing_of_others_but_what_they_said_where_she_reads_it() -> None:
    async with scene() as s:
        other = await s.at_work("carol", CAROL["text"])
        await s.command(other, 1, f"echo {CAROL['command']}")
        first = other.guest.starts[other.run]["messages"][0]["cursor"]
        await other.does("thread.summarise", cursor=first, text=CAROL["summary"])
        await other.does("checkpoint.save", boundary="before_model", step=1, state=CAROL["state"], blobs=[])
        await s.finish(other, CAROL["reply"])
        found = await taken(s, s.actors["alice"])
        of_carol = await taken(s, s.actors["carol"], "carol")
    whole = b"\n".join([*(name.encode() for name in found), *found.values()])
    for kind in ("text", "path", "file", "command", "result", "reply", "asked", "secret"):
        assert ALICE[kind].encode() in whole, kind
    assert ALICE["value"].encode() not in whole, "a value of the vault is nobody's to read"
    for kind in ("text", "reply"):
        assert CAROL[kind].encode() in whole, f"{kind}: she reads it in the thread"
    for kind in ("command", "result", "summary", "state"):
        assert CAROL[kind].encode() not in whole, kind
    theirs = b"\n".join(of_carol.values())
    assert CAROL["command"].encode() in theirs, "control: it is there to be found"
    assert not [kind for kind in ("file", "command", "result", "asked", "secret") if ALICE[kind].encode() in theirs]
    counts = manifest(found)["counts"]
    assert (counts["runs"], counts["steps"], counts["gates"]) == (4, 2, 1)
    assert {row["name"] for row in rows(found, "threads")} == {THREAD, "asks"}
    assert [row["name"] for row in rows(found, "credentials")] == [ALICE["secret"]]
    assert len(rows(found, "tokens")) == counts["tokens"] == 3
    assert found[f"export/files/home/user/{ALICE['path']}"] == ALICE["file"].encode()


async def test_of_a_thread_that_she_has_left_only_what_she_said(r: Rig) -> None:
    await r.engine.threads.add(r.actors["bob"], "default", "t", ["alice"], True)
    await r.asked("alice", "hers")
    await r.asked("bob", "his-before")
    await r.engine.threads.set_member(r.actors["bob"], "default", "t", "alice", False)
    await r.asked("bob", "his-after")
    found = await taken(r, r.actors["alice"])
    assert [row["text"] for row in rows(found, "messages")] == ["hers"]
    [thread] = rows(found, "threads")
    assert (thread["member"], "members" in thread) == (False, False)
    assert len(rows(found, "runs")) == 1


async def test_everything_comes_page_by_page_and_once(r: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    from ringfence.host.store import exporting as pages

    monkeypatch.setattr(exporting, "PAGE", 3)
    monkeypatch.setattr(exporting, "PART", 300)
    monkeypatch.setattr(pages, "_MESSAGES", pages._MESSAGES.limit(3))
    monkeypatch.setattr(pages, "_RUNS", pages._RUNS.limit(3))
    said = [f"message {n}" for n in range(7)]
    for text in said:
        await r.asked("alice", text)
    found = await taken(r, r.actors["alice"])
    assert [row["text"] for row in rows(found, "messages") if row["author_name"] == "alice"] == said
    assert len({row["id"] for row in rows(found, "runs")}) == len(rows(found, "runs")) == 7
    assert len([name for name in found if name.startswith("export/messages/")]) > 2
    assert manifest(found)["counts"]["messages"] == 14


# --- files -----------------------------------------------------------------------------------------------------------


async def test_files_as_they_are_whatever_they_are_called(r: Rig) -> None:
    home = r.box("alice").folder
    odd = os.fsencode(home) + b"/\xff\n'; rm -rf"
    with open(odd, "wb") as file:
        file.write(b"odd")
    (home / "deep" / ("x" * 200) / ("y" * 200)).mkdir(parents=True)
    (home / "deep" / ("x" * 200) / ("y" * 200) / "f").write_bytes(b"deep")
    (home / "empty").touch(mode=0o751)
    found = await taken(r, r.actors["alice"])
    top = "export/files/home/user"
    assert found[os.fsdecode(b"export/files/home/user/\xff\n'; rm -rf")] == b"odd"
    assert found[f"{top}/deep/{'x' * 200}/{'y' * 200}/f"] == b"deep"
    assert found[f"{top}/empty"] == b""
    assert manifest(found)["counts"]["files"] == 3
    assert manifest(found)["left_out"] == [
        {"path": "/workspace", "why": "no such file: b'/workspace'"},  # the folder of the fake has none
    ]


async def test_a_large_box_in_flat_memory(r: Rig) -> None:
    folder = r.box("alice").folder
    for n in range(1200):
        (folder / f"f{n:05d}").write_bytes(b"x")
    with (folder / "large").open("wb") as file:
        file.truncate(200 * MIB)
    size = 0
    tracemalloc.start()
    async with r.engine.exports.open(r.actors["alice"], "default", "alice") as stream:
        async for piece in stream:
            size += len(piece)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size < 20 * MIB and peak < 16 * MIB


async def test_wide_and_deep_folders_come_once_each(r: Rig) -> None:
    home, made = r.box("alice").folder, set()
    for n in range(200):
        for name in (f"d{n:03d}/a/b", f"d{n:03d}/f{n}"):
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(name.encode())
            made.add(f"export/files/home/user/{name}")
    found = await taken(r, r.actors["alice"])
    files = {name for name, data in found.items() if name.startswith("export/files/home/user/") and data}
    assert files == made


async def test_what_goes_or_shrinks_meanwhile_is_left_out_and_said(r: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = r.box("alice").folder
    for name in ("gone", "shrinks", "stays"):
        (folder / name).write_bytes(b"x" * 1000)
    listed = FolderFiles.list

    async def then(self: FolderFiles, path: bytes, after: bytes | None, limit: int) -> Any:
        entries = await listed(self, path, after, limit)
        (folder / "gone").unlink(missing_ok=True)
        return entries

    async def less(self: FolderFiles, path: bytes) -> AsyncIterator[bytes]:
        yield b"x" * (10 if path.endswith(b"shrinks") else 1000)

    monkeypatch.setattr(FolderFiles, "list", then)
    monkeypatch.setattr(FolderFiles, "get", less)
    found = await taken(r, r.actors["alice"])
    assert found["export/files/home/user/stays"] == b"x" * 1000
    assert found["export/files/home/user/shrinks"] == b"x" * 10 + b"\0" * 990
    said = {each["path"]: each["why"] for each in manifest(found)["left_out"]}
    assert "its last 990 bytes are zeros" in said["/home/user/shrinks"]
    assert "no such file" in said["/home/user/gone"]


async def test_of_a_box_in_quarantine_an_operator_alone_has_the_files(r: Rig) -> None:
    (r.box("alice").folder / "f").write_bytes(b"x")
    await r.store.boxes.quarantine(r.box("alice").id, "it is looked at")
    found = await taken(r, r.actors["alice"])
    assert not [name for name in found if name.startswith("export/files")]
    assert [each["why"] for each in manifest(found)["left_out"]] == [exporting.QUARANTINED]
    assert "export/files/home/user/f" in await taken(r, OPERATOR)


async def test_one_that_breaks_off_has_no_end(r: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    (r.box("alice").folder / "f").write_bytes(b"x")

    async def broken(self: FolderFiles, path: bytes) -> AsyncIterator[bytes]:
        if path:
            raise Failed("the helper died")
        yield b""

    monkeypatch.setattr(FolderFiles, "get", broken)
    pieces = []
    with pytest.raises(Failed):
        async with r.engine.exports.open(r.actors["alice"], "default", "alice") as stream:
            async for piece in stream:
                pieces.append(piece)
    with pytest.raises(EOFError):
        gzip.decompress(b"".join(pieces))


# --- for whom --------------------------------------------------------------------------------------------------------


async def test_for_her_and_for_operators_and_that_is_recorded(r: Rig) -> None:
    await taken(r, r.actors["alice"])
    assert not await _acts(r, "user.export"), "her own act is nobody's business"
    await taken(r, OPERATOR)
    [act] = await _acts(r, "user.export")
    assert act["subject"] == f"user:{_user(r, 'alice')}"
    with pytest.raises(NotFound):
        await taken(r, r.actors["bob"])
    with pytest.raises(NotFound):
        await taken(r, OPERATOR, "nobody")


async def test_the_record_comes_before_the_first_byte(r: Rig) -> None:
    async with r.engine.exports.open(OPERATOR, "default", "alice"):
        assert await _acts(r, "user.export")


async def _acts(r: Rig, action: str) -> list[dict[str, Any]]:
    found = await r.store.audit.page({Lane.ACT}, None, None, 1000)
    return [row for row in found if row["action"] == action]


def _user(r: Rig, name: str) -> str:
    user = r.actors[name].user
    assert user is not None
    return user.id


# --- what a removal would take ---------------------------------------------------------------------------------------


async def test_what_a_removal_would_take_and_then_takes() -> None:
    async with scene() as s:
        await s.engine.threads.add(s.actors["alice"], "default", "alone", [], False)
        (s.box("alice").folder / "f").write_bytes(b"x" * 5000)
        before = await _state(s)
        found = await s.engine.exports.removal(OPERATOR, "default", "alice")
        assert await _state(s) == before, "nothing was changed"
        assert await _acts(s, "user.removal")
        assert found.threads_alone == ["alone"]
        assert found.threads_shared == ["asks", THREAD]
        assert (len(found.runs), found.tokens, found.bindings, found.rules) == (2, 3, 1, 1)
        assert list(found.credentials) == [ALICE["secret"]]
        assert found.messages == 4
        assert found.box is not None and found.box["disk_bytes"] >= 5000
        await s.engine.people.user_remove(OPERATOR, "default", "alice")
        assert {(await s.store.runs.get(run)).state.value for run in found.runs} == {"cancelled"}  # type: ignore[arg-type]
        thread = await s.store.threads.get(_tenant(s), THREAD)
        kept = await s.store.threads.messages(thread.id, None, 1000)
        assert ALICE["text"] in [message.text for message in kept]


async def test_who_may_rehearse_it(r: Rig) -> None:
    for name in ("alice", "bob"):
        with pytest.raises((Refused, NotFound)):
            await r.engine.exports.removal(r.actors[name], "default", "alice")
    with pytest.raises(NotFound):
        await r.engine.exports.removal(OPERATOR, "default", "nobody")


def _tenant(r: Rig) -> Any:
    user = r.actors["alice"].user
    assert user is not None
    return user.tenant


async def _state(r: Rig) -> list[Any]:
    store = r.store
    return [
        await store.users.all("default"),
        await store.tokens.all(_user(r, "alice")),  # type: ignore[arg-type]
        [(run.id, run.state) for run in await store.runs.all(_tenant(r), 1000)],
        [(box.id, box.observed, box.desired) for box in await store.boxes.all()],
    ]


async def test_a_helper_that_ends_between_two_folders_ends_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not in it must not be called left out, and the whole `whole`."""
    async with rig(tmp_path) as r:
        await r.exec("alice", "mkdir -p deep")
        listing = FolderFiles.list

        async def ends(self: FolderFiles, path: bytes, after: bytes, most: int) -> Any:
            if path.startswith(b"/workspace"):
                raise Unavailable("the files helper has ended")
            return await listing(self, path, after, most)

        monkeypatch.setattr(FolderFiles, "list", ends)
        with pytest.raises(Unavailable):
            async with r.engine.exports.open(r.actors["alice"], "default", "alice") as pieces:
                async for _ in pieces:
                    pass
