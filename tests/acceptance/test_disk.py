"""A full disk as people meet it: in a command, in `files put`, after a stop (C53); bounded by an image as root, by being
stopped elsewhere."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.disk_rig import holding, mounts_below, nothing_left
from tests.support.installation import Installation, eventually, installation

MIB = 1 << 20
LIMITS = '[limits]\ndisk = "64MiB"\ninodes = 2048\n'
FILL = "head -c 100663296 /dev/zero > /workspace/large"  # 96 MiB


@pytest.fixture(scope="module")
def bounded() -> Iterator[Installation]:
    with installation(settings=LIMITS) as made:
        made.ok("user", "add", "ada")
        yield made
    assert nothing_left(made.home)


@pytest.fixture(scope="module")
def counted() -> Iterator[Installation]:
    accept = [] if os.geteuid() else ["--accept", "no-disk-quota"]
    with installation(*accept, settings='disk = "accounting"\n' + LIMITS) as made:
        made.ok("user", "add", "ada")
        yield made


def error(made: Installation, *words: str, stdin: bytes = b"") -> dict[str, Any]:
    done = made.run(*words, "--json", stdin=stdin)
    assert done.code == 5
    found: dict[str, Any] = done.json()["error"]
    return found


@pytest.mark.root
def test_a_full_disk_in_every_way_it_is_met(bounded: Installation) -> None:
    filled = bounded.shell("ada", FILL)
    assert filled.code != 0 and "No space left" in filled.errors
    shown = bounded.box("ada")
    assert (shown["disk_by"], shown["disk_limit_bytes"], shown["disk_full"]) == ("image", 64 * MIB, True)
    assert 50 * MIB < shown["disk_bytes"] <= 64 * MIB and "no-disk-quota" not in shown["weak"]
    refused = error(bounded, "files", "put", "ada", "note", "-", stdin=b"x" * MIB)
    assert refused["code"] == "disk_full" and refused["details"]["limit_bytes"] == 64 * MIB
    assert "box limits" in refused["remedy"]
    assert bounded.shell("ada", "echo still here").out == b"still here\n"
    assert bounded.say("ada", "full", "hello")["status"] == "completed"
    bounded.ok("box", "stop", "ada")
    bounded.ok("box", "start", "ada")
    bounded.ok("files", "rm", "ada", "/workspace/large")
    assert bounded.box("ada")["disk_full"] is False
    bounded.ok("files", "put", "ada", "note", "-", stdin=b"x" * MIB)
    assert bounded.shell("ada", "wc -c < note").out.split() == [b"1048576"]


@pytest.mark.root
def test_limits_of_the_disk_from_the_command_line(bounded: Installation) -> None:
    bounded.ok("box", "stop", "ada")
    assert bounded.ok("box", "limits", "ada", "--disk", "128MiB", "--json").json()["limits"]["disk"] == 128 * MIB
    assert bounded.shell("ada", FILL).code == 0
    bounded.ok("files", "rm", "ada", "/workspace/large")
    shrunk = bounded.run("box", "limits", "ada", "--disk", "64MiB", "--json")
    assert shrunk.code == 3 and "cannot shrink" in shrunk.json()["error"]["message"]
    assert bounded.box("ada")["limits"]["disk"] == 128 * MIB  # what is refused is not kept
    part = bounded.ok("status", "--json").json()["parts"]["disk"]
    assert part["by"] == "image" and part["ok"] and part["free_bytes"] > part["reserve_bytes"]
    assert 0 < part["promised_bytes"] <= 256 * MIB and part["overcommitted"] is False


@pytest.mark.root
def test_the_limit_outlives_a_server_that_was_killed(bounded: Installation) -> None:
    bounded.ok("user", "add", "eve")
    bounded.ok("exec", "eve", "--", "sh", "-c", "echo kept > kept")
    bounded.kill()
    bounded.start()
    assert bounded.shell("eve", "cat kept").out == b"kept\n"
    assert "No space left" in bounded.shell("eve", FILL).errors
    bounded.ok("user", "rm", "--purge", "eve")
    assert len(mounts_below(bounded.home)) == 1  # ada's


@pytest.mark.root
def test_a_box_whose_disk_is_broken_is_shown_so_and_can_be_stopped_and_removed(bounded: Installation) -> None:
    bounded.ok("user", "add", "max")
    shown = bounded.box("max")
    assert shown["disk_problem"] == "" and bounded.ok("status", "--json").json()["parts"]["disk"]["broken_boxes"] == []
    bounded.kill()
    place = bounded.home / "boxes" / shown["box"]
    subprocess.run(["umount", place / "tree"], check=True)
    os.truncate(place / "disk.img", 32 * MIB)
    bounded.start()
    assert "shorter than its file system" in bounded.box("max")["disk_problem"]
    assert "shorter than its file system" in bounded.ok("box", "show", "max").out.decode()
    part = bounded.run("status", "--json").json()["parts"]["disk"]
    assert part["broken_boxes"] == [shown["box"]] and part["ok"] is True
    refused = bounded.run("box", "start", "max", "--json").json()["error"]
    assert "cannot be mounted" in refused["message"]
    bounded.ok("box", "stop", "max")
    bounded.ok("user", "rm", "--purge", "max")
    assert not place.exists()
    assert bounded.ok("status", "--json").json()["parts"]["disk"]["broken_boxes"] == []


@pytest.mark.root
def test_a_disk_that_somebody_keeps_read_only_is_said_by_stop_with_who_it_is(bounded: Installation) -> None:
    bounded.ok("user", "add", "kim")
    bounded.ok("exec", "kim", "--", "sh", "-c", "echo kept > kept; sync")
    place = bounded.home / "boxes" / bounded.box("kim")["box"] / "tree"
    device = f"loop{os.minor(place.stat().st_dev)}"
    with holding("namespace", place) as pid:
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1")
        refused = bounded.run("files", "put", "kim", "note", "-", "--json", stdin=b"x")
        assert refused.code == 5 and "takes no write" in refused.json()["error"]["message"]
        assert "box stop" in refused.json()["error"]["remedy"]
        stopped = bounded.run("box", "stop", "kim")
        assert (
            stopped.code == 1
            and "the box is stopped; " in stopped.errors
            and f"process {pid} (sleep)" in stopped.errors
        )
        assert bounded.box("kim")["observed"] == "stopped"
        assert f"process {pid} (sleep)" in bounded.box("kim")["disk_problem"]
        for verb in ("stop", "start"):
            refused = bounded.run("box", verb, "kim")
            assert refused.code != 0 and f"process {pid} (sleep)" in refused.errors
        own = (
            bounded.run("box", "stop", "kim", "--as", "kim"),
            bounded.run("box", "start", "kim", "--as", "kim"),
        )
        for refused in own:  # its owner, who has no business with the host's processes
            assert refused.code != 0 and "a process of the host holds it" in refused.errors
            assert "tell the operator" in refused.errors
            assert str(pid) not in refused.errors and "sleep" not in refused.errors
        seen = bounded.ok("box", "show", "kim", "--as", "kim").text
        assert "a process of the host holds it" in seen and f"process {pid}" not in seen and "sleep" not in seen
    bounded.ok("box", "stop", "kim")
    assert bounded.box("kim")["disk_problem"] == ""
    bounded.ok("files", "put", "kim", "note", "-", stdin=b"x")
    assert bounded.ok("exec", "kim", "--", "cat", "kept", "note").out == b"kept\nx"


@pytest.mark.root
def test_what_is_said_of_inodes_is_what_holds(bounded: Installation) -> None:
    bounded.ok("user", "add", "ivy")
    before = bounded.box("ivy")["inode_limit"]
    refused = bounded.run("box", "limits", "ivy", "--inodes", "4096", "--json").json()["error"]
    assert "made for 2048 inodes" in refused["message"] and refused["remedy"].startswith("raise --disk")
    bounded.ok("box", "limits", "ivy", "--disk", "1GiB")
    after = bounded.box("ivy")["inode_limit"]
    assert after > 4 * before and f"the disk image has {after}," in bounded.ok("box", "limits", "ivy").out.decode()


def test_where_nothing_bounds_it_the_box_is_stopped_and_comes_back(counted: Installation) -> None:
    """The positive control too: the very same fill passes the limit here."""
    if os.geteuid() == 0:
        assert counted.shell("ada", FILL).code == 0
    else:
        counted.shell("ada", FILL)  # may be stopped on the way
    eventually(lambda: counted.box("ada")["observed"] == "stopped", 60, "the stop")
    shown = counted.box("ada")
    assert (shown["disk_by"], shown["disk_full"]) == ("accounting", True) and shown["disk_bytes"] > 64 * MIB
    assert "no-disk-quota" in shown["weak"] and "no-disk-quota" in counted.ok("status", "--json").json()["weak"]
    assert error(counted, "files", "put", "ada", "note", "-", stdin=b"x")["code"] == "disk_full"
    counted.ok("files", "rm", "ada", "/workspace/large")
    assert counted.shell("ada", "echo back").out == b"back\n"
    counted.ok("files", "put", "ada", "note", "-", stdin=b"x")
