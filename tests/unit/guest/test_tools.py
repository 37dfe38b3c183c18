"""The file tools of the native loop."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ringfence.guest import tools
from ringfence.guest.tools import MAX_READ, use


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tools, "ROOTS", (str(tmp_path),))
    return tmp_path


def fails(name: str, **arguments: Any) -> str:
    result = use(name, arguments)
    assert result["ok"] is False
    return str(result["error"])


def test_what_is_written_is_read(home: Path) -> None:
    assert use("write", {"path": "deep/er/f.txt", "text": "héllo\r\n"}) == {"ok": True, "bytes": 8}
    assert (home / "deep/er/f.txt").read_bytes() == "héllo\r\n".encode()
    assert use("read", {"path": "deep/er/f.txt"}) == {"ok": True, "text": "héllo\r\n", "bytes": 8, "rest": 0}
    assert os.listdir(home / "deep/er") == ["f.txt"]


def test_a_long_file_is_read_in_parts(home: Path) -> None:
    (home / "f").write_bytes(b"x" * (MAX_READ + 10))
    first = use("read", {"path": "f"})
    assert (len(first["text"]), first["rest"]) == (MAX_READ, 10)
    assert use("read", {"path": "f", "offset": MAX_READ, "length": 4}) == {
        "ok": True,
        "text": "xxxx",
        "bytes": MAX_READ + 10,
        "rest": 6,
    }


def test_an_edit_is_byte_exact_keeps_the_mode_and_is_idempotent(home: Path) -> None:
    path = home / "f"
    path.write_bytes(b"a\r\nold\r\n\xff\r\n")
    path.chmod(0o750)
    edit = {"path": "f", "old": "old", "new": "new"}
    assert use("edit", edit) == {"ok": True, "replaced": 1, "already": False}
    assert use("edit", edit) == {"ok": True, "replaced": 0, "already": True}
    assert path.read_bytes() == b"a\r\nnew\r\n\xff\r\n"
    assert path.stat().st_mode & 0o777 == 0o750


def test_an_edit_must_be_unambiguous(home: Path) -> None:
    (home / "f").write_text("a a")
    assert "2 times" in fails("edit", path="f", old="a", new="b")
    assert "0 times" in fails("edit", path="f", old="z", new="y")
    assert "0 times" in fails("edit", path="f", old="", new="y")
    assert (home / "f").read_text() == "a a"


def test_a_link_is_written_through_not_replaced(home: Path) -> None:
    (home / "real").write_text("x")
    (home / "link").symlink_to("real")
    use("write", {"path": "link", "text": "y"})
    assert (home / "link").is_symlink()
    assert (home / "real").read_text() == "y"


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "/"])
def test_other_places_are_for_the_shell(path: str) -> None:
    for name, more in (("read", {}), ("write", {"text": "x"}), ("list", {}), ("search", {"text": "x"})):
        assert "not below" in fails(name, path=path, **more)


def test_what_is_no_regular_file_does_not_hang_the_loop(home: Path) -> None:
    os.mkfifo(home / "fifo")
    assert "not a regular file" in fails("read", path="fifo")
    assert "not a regular file" in fails("write", path="fifo", text="x")
    assert use("search", {"text": "x"})["files"] == 0
    assert fails("read", path=".")


def test_a_large_file_is_refused_with_its_size(home: Path) -> None:
    with open(home / "big", "wb") as file:
        file.truncate(tools.MAX_FILE + 1)
    assert str(tools.MAX_FILE) in fails("read", path="big")


def test_a_list_is_sorted_bounded_and_shows_any_name(home: Path) -> None:
    (home / "b").mkdir()
    (home / "a").symlink_to("nowhere")
    with open(os.fsencode(home) + b"/\xff", "wb") as file:
        file.write(b"123")
    entries = use("list", {})["entries"]
    assert entries[0] == {"name": "a", "kind": "symlink", "bytes": 7}
    assert [(e["name"], e["kind"]) for e in entries[1:]] == [("b", "directory"), ("\\xff", "file")]


def test_a_search_finds_lines_without_leaving_the_tree(home: Path) -> None:
    (home / "d").mkdir()
    (home / "d/one").write_text("x\nneedle 1\n")
    (home / "two").write_text("needle 2")
    (home / "binary").write_bytes(b"\0needle")
    (home / "d/loop").symlink_to("..")
    found = use("search", {"text": "needle"})
    assert [(Path(m["path"]).name, m["line"]) for m in found["matches"]] == [("two", 1), ("one", 2)]
    assert found["complete"]
    (home / "many").write_text("needle\n" * 1000)
    assert len(use("search", {"text": "needle"})["matches"]) == tools.MAX_MATCHES
    assert not use("search", {"text": "needle"})["complete"]


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("read", {}, "needs the argument 'path'"),
        ("read", {"path": 7}, "must be text"),
        ("read", {"path": "a\0b"}, "NUL"),
        ("read", {"path": "f", "offset": -1}, "0 or more"),
        ("read", {"path": "f", "offset": "1"}, "0 or more"),
        ("write", {"path": "f"}, "needs the argument 'text'"),
        ("search", {"text": ""}, "empty"),
        ("read", {"path": "absent"}, "No such file"),
        ("shell", {"command": "x"}, "by itself"),
    ],
)
def test_wrong_arguments_are_a_result_that_says_so(name: str, arguments: dict[str, Any], says: str) -> None:
    assert says in fails(name, **arguments)


def test_a_failed_write_leaves_nothing_behind(home: Path) -> None:
    (home / "d").mkdir()
    assert fails("write", path="d", text="x")
    assert sorted(os.listdir(home)) == ["d"]


# --- what a result may be --------------------------------------------------------------------------------------------


def test_a_result_is_never_more_than_the_journal_takes(home: Path) -> None:
    """Bytes that are no text grow to six each as JSON; a line of a match or a name may be long."""
    (home / "binary").write_bytes(b"\xff" * 200_000)
    (home / "control").write_bytes(b"\x01" * 200_000)
    for name in ("binary", "control"):
        result = use("read", {"path": name})
        assert result["ok"]
        assert 0 < len(json.dumps(result)) <= tools.MAX_RESULT + 1000
        assert result["rest"] + (len(result["text"])) == 200_000
    folder = home / "names"
    folder.mkdir()
    for n in range(1000):
        (folder / f"{'é' * 120}{n}").write_text("needle" + "\x01" * 600)
    listed = use("list", {"path": "names"})
    assert len(json.dumps(listed)) <= tools.MAX_RESULT + 1000
    assert len(listed["entries"]) + listed["more"] == 1000
    found = use("search", {"path": "names", "text": "needle"})
    assert len(json.dumps(found)) <= tools.MAX_RESULT + 1000
    assert found["matches"] and not found["complete"]


def test_a_part_ends_with_a_whole_character(home: Path) -> None:
    text = "aé日🙂" * 10
    (home / "f").write_text(text)
    size, at, read = len(text.encode()), 0, ""
    for length in (1, 2, 3, 4, 5, 6, 7, 9, 1000):
        while at < size:
            part = use("read", {"path": "f", "offset": at, "length": max(length, 4)})
            assert "\ufffd" not in part["text"]
            at, read = size - part["rest"], read + part["text"]
        assert read == text
        at, read = 0, ""
