"""`ringfence files` as a process of its own against the real web servers. Numbers: cases.md."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.web_rig import Web, web


@pytest.fixture(scope="module")
def served() -> Iterator[Web]:
    with web() as made:
        made.user("alice")
        made.user("bob")
        yield made


def test_files(served: Web, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"\0data\xff")
    (tmp_path / "in").chmod(0o755)
    assert served.cli("files", "put", "bob", "dir/tool", str(tmp_path / "in")).returncode == 0
    info = json.loads(served.cli("files", "stat", "bob", "dir/tool", "--json").stdout)
    assert (info["kind"], info["size"], info["mode"]) == ("file", 6, "755")
    assert served.cli("files", "get", "bob", "dir/tool", str(tmp_path / "out")).returncode == 0
    assert (tmp_path / "out").read_bytes() == b"\0data\xff"
    assert served.cli("files", "get", "bob", "dir/tool", "-").stdout == b"\0data\xff"
    assert b"tool" in served.cli("files", "ls", "bob", "dir").stdout
    missing = served.cli("files", "get", "bob", "absent", str(tmp_path / "never"))
    assert missing.returncode == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]
    assert json.loads(served.cli("files", "get", "bob", "absent", "--json", "-").stdout)["error"]["code"] == "not_found"
    assert served.cli("files", "rm", "bob", "dir").returncode == 1
    assert served.cli("files", "rm", "-r", "bob", "dir").returncode == 0
    data = os.urandom(5 << 20)
    assert served.cli("files", "put", "bob", "big", "-", stdin=data).returncode == 0
    assert served.cli("files", "get", "bob", "big", "-").stdout == data


@pytest.mark.parametrize("name", [b"./-rf", b"new\nline", b"bad \xff\xfe", b"%2e%2e", "é🎉".encode()])
def test_file_names_are_bytes(served: Web, name: bytes) -> None:
    """C38."""
    assert served.cli("files", "put", "bob", name, "-", stdin=b"x").returncode == 0
    assert served.cli("files", "get", "bob", name, "-").stdout == b"x"
    assert served.cli("files", "ls", "bob").returncode == 0
    assert served.cli("files", "rm", "bob", name).returncode == 0
    assert served.cli("files", "stat", "bob", name).returncode == 4


def test_a_download_never_replaces_what_is_no_file(served: Web, tmp_path: Path) -> None:
    """As root a rename over a device would take it from the whole machine. Here a pipe stands for every special file."""
    assert served.cli("files", "put", "bob", "special", "-", stdin=b"hello").returncode == 0
    pipe, link, folder = tmp_path / "pipe", tmp_path / "link", tmp_path / "folder"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    folder.mkdir()
    for local in (pipe, link):
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        try:
            assert served.cli("files", "get", "bob", "special", str(local)).returncode == 0
            assert os.read(reader, 100) == b"hello"
        finally:
            os.close(reader)
        assert pipe.is_fifo() and link.is_symlink()
    (tmp_path / "out").symlink_to("/proc/self/fd/1")  # as /dev/stdout is, which no test may put at risk
    assert served.cli("files", "get", "bob", "special", str(tmp_path / "out")).stdout == b"hello"
    refused = served.cli("files", "get", "bob", "special", str(folder))
    assert refused.returncode == 2 and b"folder" in refused.stderr and b"report it" not in refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "out", "pipe"]


def test_a_download_through_a_link_replaces_what_it_names(served: Web, tmp_path: Path) -> None:
    served.cli("files", "put", "bob", "linked", "-", stdin=b"new")
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    assert served.cli("files", "get", "bob", "linked", str(tmp_path / "link")).returncode == 0
    assert (tmp_path / "real").read_text() == "new" and (tmp_path / "link").is_symlink()


def test_a_name_cannot_speak_to_the_terminal(served: Web) -> None:
    served.cli("files", "put", "bob", b"esc\x1b[31m", "-", stdin=b"")
    assert b"\x1b" not in served.cli("files", "ls", "bob").stdout
