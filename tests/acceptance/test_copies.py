"""Copies of a box's files with a real server, real boxes and the command line: cases.md C52, C53, E93, threats.md F10, F15."""

from __future__ import annotations

import json
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.installation import Installation, eventually

pytestmark = pytest.mark.root


@pytest.fixture
def other(server: Installation, person: str) -> str:
    name = f"{person}-too"
    server.ok("user", "add", name)
    return name


def sh(server: Installation, who: str, script: str) -> str:
    return server.ok("exec", who, "--", "sh", "-c", script).out.decode()


def taken(server: Installation, who: str, *more: str) -> str:
    return str(json.loads(server.ok("box", "snapshot", who, "--json", *more).out)["snapshot"]["id"])


def test_a_copy_is_made_of_a_running_box_and_put_back(server: Installation, person: str) -> None:
    sh(server, person, "echo one > f; ln f g; echo two > /workspace/w; chmod 700 .; echo gone > /tmp/t")
    pid = sh(server, person, "readlink /proc/self/ns/pid")
    made = json.loads(server.ok("box", "snapshot", person, "--name", "good", "--json").out)
    assert made["snapshot"]["kind"] == "asked" and made["left_out"] == {}
    assert sh(server, person, "readlink /proc/self/ns/pid") == pid  # the same box goes on
    sh(server, person, "echo later > f; rm /workspace/w; mkfifo pipe; echo more > h")
    changed = json.loads(server.ok("box", "restore", person, "good", "--json").out)
    assert (changed["box"]["observed"], changed["before"]["kind"]) == ("stopped", "before")
    assert sh(server, person, "cat f g /workspace/w; ls; stat -c %h f; ls /tmp") == "one\none\ntwo\nf\ng\n2\n"
    server.ok("box", "restore", person, changed["before"]["id"], "--no-keep")  # undone
    assert sh(server, person, "cat f h; ls") == "later\nmore\nf\ng\nh\n"  # a FIFO is in no copy
    listed = json.loads(server.ok("box", "snapshots", person, "--json").out)["snapshots"]
    assert [(each["name"], each["kind"]) for each in listed] == [("good", "asked"), ("", "before")]
    assert b"good" in server.ok("box", "snapshots", person).out
    server.ok("box", "snapshot-rm", person, "good")
    assert server.run("box", "restore", person, "good").code == 4


def test_reset_empties_or_keeps(server: Installation, person: str) -> None:
    sh(server, person, "echo one > f; echo t > /tmp/t; (sleep 600 >/dev/null 2>&1 &)")
    kept = json.loads(server.ok("box", "reset", person, "--keep-files", "--json").out)
    assert (kept["box"]["pids"], kept["before"]) == (0, None)
    assert sh(server, person, "ls; ls /tmp; pgrep -c sleep || true") == "f\n0\n"
    emptied = json.loads(server.ok("box", "reset", person, "--json").out)
    assert sh(server, person, "ls -A . /workspace") == ".:\n\n/workspace:\n"
    server.ok("box", "restore", person, emptied["before"]["id"])
    assert sh(server, person, "cat f") == "one\n"


def test_what_is_at_work_is_named_waited_for_or_ended(server: Installation, person: str) -> None:
    """Refuse, drain, force."""
    sh(server, person, "echo one > f")
    copy = taken(server, person)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.run, "exec", person, "--", "sleep", "3")
        eventually(lambda: server.box(person)["pids"] > 0 and "sleep" in sh(server, person, "ps -eo comm"))
        refused = server.run("box", "reset", person, "--json")
        error = json.loads(refused.out)["error"]
        assert (refused.code, error["code"]) == (1, "conflict") and "at work: a command" in error["message"]
        server.ok("box", "restore", person, copy, "--drain", "60")
        assert running.result().code == 0  # it came to its end
        running = pool.submit(server.run, "exec", person, "--", "sleep", "600")
        eventually(lambda: "sleep" in sh(server, person, "ps -eo comm"))
        server.ok("box", "reset", person, "--force")
        assert running.result().code != 0
    for wait in ("-1", "nan", "1e12"):
        assert server.run("box", "reset", person, "--drain", wait).code == 2


def test_an_archived_box_is_unpacked_by_its_next_use(server: Installation, person: str) -> None:
    sh(server, person, "echo one > f; head -c 30000000 /dev/urandom > large")
    used = server.box(person)["disk_bytes"]
    archived = json.loads(server.ok("box", "archive", person, "--json").out)
    assert archived["disk_bytes"] < used - 25_000_000
    server.ok("box", "archive", person)  # once more
    copy = taken(server, person)  # of one that is archived
    assert server.ok("files", "get", person, "f", "-").out == b"one\n"  # without a start
    assert sh(server, person, "cat f; stat -c %s large") == "one\n30000000\n"
    server.ok("box", "archive", person)
    assert sh(server, person, "cat f") == "one\n"
    server.ok("box", "archive", person)
    server.ok("box", "restore", person, copy)  # also in the place of an archived one
    assert sh(server, person, "cat f; stat -c %s large") == "one\n30000000\n"


def test_a_clone_has_the_files_and_nothing_else_of_the_other(server: Installation, person: str, other: str) -> None:
    """E93: another machine-id, another name; no credential of the one is in the box of the other."""
    bound = ("--host", "example.org", "--header", "X-Api-Key", "--env", "API_KEY")
    server.ok("secret", "set", person, "key", *bound, stdin=b"canary-secret-value")
    sh(server, person, "echo mine > f; cat /etc/machine-id > before")
    sh(server, other, "echo theirs > g")
    server.ok("box", "clone", person, other, "--force")
    assert sh(server, other, "ls; cat f") == "before\nf\nmine\n"
    ids = [sh(server, who, "cat /etc/machine-id") for who in (person, other)]
    assert ids[0] != ids[1] and sh(server, other, "cat before") == ids[0]
    first, second = (server.box(who) for who in (person, other))
    assert (first["uid"], first["box"]) != (second["uid"], second["box"])
    look = "env | grep -c ^API_KEY=.; true"  # a placeholder is what of a credential is in a box
    assert [sh(server, who, look) for who in (person, other)] == ["1\n", "0\n"]
    copy = taken(server, person)
    assert server.run("box", "restore", other, copy).code == 4  # not the other's to have
    server.ok("box", "clone", person, other, "--snapshot", copy, "--force")


def test_an_operator_exports_a_box_in_quarantine(server: Installation, person: str, tmp_path: Path) -> None:
    sh(server, person, "echo one > f")
    server.ok("box", "quarantine", person, "--reason", "seen mining")
    target = tmp_path / "out.tar"
    said = json.loads(server.ok("box", "recover", person, "--export", str(target), "--json").out)
    assert said["size_bytes"] == target.stat().st_size and target.stat().st_mode & 0o777 == 0o600
    with tarfile.open(target) as read:
        file = read.extractfile("home/f")
        assert file is not None and file.read() == b"one\n"
    assert server.run("box", "recover", person, "--export", str(target)).code == 2  # overwrites nothing
    copy = taken(server, person)  # one may be made
    for verb in (("reset",), ("restore", copy), ("archive",), ("recover", "--fsck")):
        assert server.run("box", verb[0], person, *verb[1:]).code == 3
    server.ok("box", "release", person)
    assert sh(server, person, "cat f") == "one\n"


def test_twice_at_once_the_second_is_told_so(server: Installation, person: str) -> None:
    sh(server, person, "head -c 60000000 /dev/urandom > large")

    def copy(_: int) -> tuple[int, str]:
        done = server.run("box", "snapshot", person, "--json")
        return done.code, json.loads(done.out).get("error", {}).get("message", "")

    done: list[tuple[int, str]] = []
    while not any(code for code, _ in done):  # four that came one after the other are no such pair
        assert len(done) < 28, "no two of them met"
        with ThreadPoolExecutor(4) as pool:
            done += pool.map(copy, range(4))
    assert any(code == 0 for code, _ in done)
    assert all("the box is busy: snapshot is under way" in text for code, text in done if code)


def test_what_names_no_copy_is_told_so(server: Installation, person: str) -> None:
    assert server.run("box", "snapshot", person, "--name", "../x").code == 2
    assert server.run("box", "restore", person, "snp_aaaaaaaaaaaaaaaaaaaa").code == 4
    assert server.run("box", "snapshot", "nobody-there").code == 4


def test_files_of_copies_are_the_servers_alone(server: Installation, person: str) -> None:
    sh(server, person, "echo one > f")
    copy = taken(server, person)
    folder = Path(server.home) / "snapshots"
    assert folder.stat().st_mode & 0o7777 == 0o700
    (path,) = folder.glob(f"{copy}.tar.*")
    assert path.stat().st_mode & 0o7777 == 0o600
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    refused = server.run("box", "restore", person, copy, "--json")
    assert refused.code == 1 and "digest is another" in json.loads(refused.out)["error"]["message"]
    assert sh(server, person, "cat f") == "one\n"
    server.ok("box", "snapshot-rm", person, copy)
    assert not path.exists()
