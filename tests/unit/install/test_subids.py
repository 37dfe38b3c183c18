"""/etc/subuid as people write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.host.install.subids import Range, choose, largest, parse


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ann:100000:65536\n", [Range(100000, 65536)]),
        ("1000:100000:65536", [Range(100000, 65536)]),
        ("bob:1:2\n# ann:1:1\nann:200000:10\n", [Range(200000, 10)]),
        ("ann:5:6\nann:7:800\n", [Range(5, 6), Range(7, 800)]),
        ("ann\nann:x:1\nann:1:-1\nann:1:0\nann:0:5\nann:4294967295:2\nann:1:2:3\n\n", []),
        ("annie:1:2\n10000:1:2\n", []),
    ],
)
def test_parse(text: str, found: list[Range]) -> None:
    assert parse(text, "ann", 1000) == found


def test_the_largest_wins() -> None:
    assert largest([Range(5, 6), Range(7, 800), Range(1, 9)]) == Range(7, 800)
    assert largest([]) is None


def host(base: Path, subuid: str, subgid: str, tools: tuple[str, ...] = ("newuidmap", "newgidmap")) -> tuple[Path, str]:
    (base / "bin").mkdir()
    for tool in tools:
        (base / "bin" / tool).write_text("#!/bin/sh\n")
        (base / "bin" / tool).chmod(0o755)
    (base / "subuid").write_text(subuid)
    (base / "subgid").write_text(subgid)
    return base, str(base / "bin")


def test_own_ids_where_everything_is_there(tmp_path: Path) -> None:
    etc, path = host(tmp_path, "ann:100000:65536\n", "1000:200000:65536\n")
    choice = choose("ann", 1000, etc=etc, path=path)
    assert (choice.mode, choice.uids, choice.gids) == ("subuid", Range(100000, 65536), Range(200000, 65536))
    assert not choice.lacks


@pytest.mark.parametrize(
    ("subuid", "subgid", "tools", "remedy"),
    [
        ("ann:1:65536", "", ("newuidmap", "newgidmap"), "usermod --add-subuids"),
        ("ann:1:14", "ann:1:65536", ("newuidmap", "newgidmap"), "usermod --add-subuids"),
        ("ann:1:65536", "ann:1:65536", ("newuidmap",), "apt-get install -y uidmap"),
        ("", "", (), "apt-get install -y uidmap && usermod"),
    ],
)
def test_one_shared_id_where_something_lacks(
    tmp_path: Path, subuid: str, subgid: str, tools: tuple[str, ...], remedy: str
) -> None:
    etc, path = host(tmp_path, subuid, subgid, tools)
    choice = choose("ann", 1000, etc=etc, path=path)
    assert (choice.mode, choice.uids) == ("shared", None)
    assert remedy in choice.remedy
    assert choice.lacks


def test_no_files_at_all(tmp_path: Path) -> None:
    assert choose("ann", 1000, etc=tmp_path, path=str(tmp_path)).mode == "shared"
