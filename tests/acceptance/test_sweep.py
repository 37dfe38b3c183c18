"""`ringfence sweep` over its whole way: a server that is killed, what it leaves, and what its next start and an operator do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ringfence.client import SyncClient
from ringfence.client.errors import ApiError
from tests.support.installation import Installation, eventually, installation, until_file

pytestmark = pytest.mark.root


def report(made: Installation, *options: str) -> dict[str, Any]:
    answer = made.ok("sweep", "--json", *options).json()
    assert isinstance(answer, dict)
    return answer


def kinds(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((each["kind"], each["action"]) for each in answer["found"])


@contextmanager
def under(uid: int) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "600"], user=uid, group=uid, extra_groups=[]) as one:
        try:
            yield one
        finally:
            one.kill()


def listing(home: Path) -> list[str]:
    """Everything below the state but what a database writes by itself."""
    return sorted(str(path) for path in home.rglob("*") if "/db/" not in str(path) and "/tree/" not in str(path))


def test_a_server_that_was_killed_is_swept_up_after_and_whoever_lives_lives_on(
    server: Installation, alice: str
) -> None:
    """`server` is another installation of the same host, with a box at work."""
    server.ok("box", "start", alice)
    theirs = server.box(alice)
    with installation() as made:
        for name in ("anna", "bert"):
            made.ok("user", "add", name)
            made.ok("box", "start", name)
        anna, bert = made.box("anna"), made.box("bert")
        at_work = made.popen("exec", "anna", "--", "sh", "-c", until_file("/workspace/go"))
        made.ok("box", "stop", "bert")
        folder = made.home / "boxes" / bert["box"]
        with under(bert["uid"]) as left, under(anna["uid"] + 1) as worker, under(theirs["uid"]) as of_the_others:
            (folder / ".disk.json.new").write_text("{")
            before = listing(made.home)
            dry = report(made, "--dry-run")
            assert kinds(dry) == [("processes", "reported"), ("temporary", "reported"), ("worker", "reported")]
            assert {each["owner"] for each in dry["found"]} == {"default/anna", "default/bert"} and dry["dry_run"]
            assert listing(made.home) == before and left.poll() is worker.poll() is None
            made.kill()  # in the middle; what is left is for the next one
            at_work.communicate()
            made.start()
            eventually(lambda: left.poll() == -9 and worker.poll() == -9, what="the sweep of the start")
            eventually(lambda: not (folder / ".disk.json.new").exists())
            assert of_the_others.poll() is None
        assert made.ok("exec", "anna", "--", "sh", "-c", "touch /workspace/go; echo lives").out == b"lives\n"
        assert made.box("anna")["generation"] == anna["generation"] and report(made)["found"] == []
        rows = made.ok("audit", "ls", "--json").json()["rows"]
        by_itself = [row for row in rows if row["action"] == "sweep.removed"]
        assert [row["actor"] for row in by_itself] == [None] and by_itself[0]["details"]["count"] == 3
        said = made.ok("sweep").out.decode()
        assert said == "0 removed, 0 reported, 0 failed\n"
    assert server.box(alice)["generation"] == theirs["generation"] and server.box(alice)["observed"] == "running"


def test_while_boxes_come_run_and_go_a_sweep_in_a_loop_touches_none() -> None:
    """Whoever removes, and a sweep that comes in between, end the same row: neither fails for the other."""
    from ringfence.client import SyncClient

    def lives(made: Installation, who: int) -> list[str]:
        told = []
        with SyncClient(socket=made.socket) as client:
            for turn in range(5):
                name = f"u{who}-{turn}"
                client.add_user(name)
                told.append(client.exec(name, ["echo", "one"])["stdout"])
                client.stop_box(name)
                told.append(client.exec(name, ["echo", "two"])["stdout"])
                client.remove_user(name, purge=True)
        return told

    with installation() as made:
        made.ok("user", "add", "anna")
        made.ok("box", "start", "anna")
        with ThreadPoolExecutor(4) as pool, SyncClient(socket=made.socket) as client:
            people = [pool.submit(lives, made, who) for who in range(4)]
            swept = 0
            while not all(one.done() for one in people):
                found = client.sweep()["found"]
                swept += 1
                odd = [each for each in found if each["action"] != "reported" and each["kind"] not in ("row", "user")]
                assert odd == [], odd
            assert [one.result() for one in people] == [["one\n", "two\n"] * 5] * 4 and swept > 3
            assert client.sweep()["found"] == [] and client.box("anna")["generation"] == 1
        assert len(os.listdir(made.home / "boxes")) == 1


def test_boxes_that_an_older_database_does_not_know_go_only_by_name(tmp_path: Path) -> None:
    with installation() as made:
        made.ok("user", "add", "anna")
        made.ok("db", "backup", str(tmp_path / "before"))
        made.ok("user", "add", "carl")
        made.ok("exec", "carl", "--", "sh", "-c", "echo precious > /workspace/kept")
        box = made.box("carl")["box"]
        made.stop()
        made.ok("db", "restore", str(tmp_path / "before"))
        made.start()
        shown = report(made)
        assert [(each["kind"], each["box"], each["action"]) for each in shown["found"]] == [("box", box, "reported")]
        assert box in made.ok("sweep").err.decode()  # the command to copy
        known = made.box("anna")["box"]
        wrong = made.run("sweep", "--boxes", f"{box},{known}", "--json")
        assert wrong.code == 2 and known in wrong.json()["error"]["message"]
        assert (made.home / "boxes" / box).is_dir()
        gone = report(made, "--boxes", box)
        assert kinds(gone) == [("box", "removed")]
        assert not (made.home / "boxes" / box).exists() and (made.home / "boxes" / known).is_dir()
        assert report(made) == {"found": [], "dry_run": False, "ids": gone["ids"] | {"spent": 8, "held": 8}}


def test_a_token_that_is_no_operators_sweeps_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with installation("--listen", f"127.0.0.1:{port}") as made:
        made.ok("user", "add", "alice")
        words = [("--user", "alice"), ("--user", "operator", "--scope", "operator")]
        own, operators = (made.ok("token", "add", *each, "--json").json()["token"] for each in words)
        with SyncClient(url=f"http://127.0.0.1:{port}", token=operators) as client:
            assert client.sweep(dry_run=True)["found"] == []  # control
        with SyncClient(url=f"http://127.0.0.1:{port}", token=own) as client, pytest.raises(ApiError) as refusal:
            client.sweep()
        assert refusal.value.code == "refused"


@pytest.mark.parametrize("words", [["--boxes", ""], ["--boxes", "../../etc"], ["--boxes", "a" * 16, "--dry-run"]])
def test_what_it_cannot_mean_is_refused(server: Installation, words: list[str]) -> None:
    answer = server.run("sweep", "--json", *words)
    assert answer.code == 2 and json.loads(answer.out)["error"]["remedy"]


def test_it_is_for_operators(server: Installation, alice: str) -> None:
    with SyncClient(socket=server.socket, act_as=alice) as acting, pytest.raises(ApiError) as refusal:
        acting.sweep(dry_run=True)
    assert refusal.value.code == "refused" and os.path.exists(server.socket)


def test_a_box_whose_directory_is_away_is_lost_and_comes_back_with_it(server: Installation, person: str) -> None:
    """As with a volume that is not mounted. Nothing is made in its place."""
    server.ok("exec", person, "--", "sh", "-c", "echo kept > /workspace/kept")
    server.ok("box", "stop", person)
    folder = server.home / "boxes" / server.box(person)["box"]
    subprocess.run(["umount", folder / "tree"], check=False, capture_output=True)  # of an image
    folder.rename(server.home / "away")
    told = [each for each in report(server)["found"] if each["kind"] == "row"]
    assert [(each["owner"], each["action"]) for each in told] == [(f"default/{person}", "reported")]
    assert server.box(person)["observed"] in ("lost", "absent")  # by the row, and by what the driver sees
    refused = server.run("exec", person, "--", "true")
    assert refused.code == 5 and not folder.exists(), refused
    (server.home / "away").rename(folder)
    assert server.ok("exec", person, "--", "cat", "/workspace/kept").out == b"kept\n"
    assert [each for each in report(server)["found"] if each["box"] == folder.name] == []
