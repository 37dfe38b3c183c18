"""A backup of the whole installation, made while people work, and put back where nothing of it is."""

from __future__ import annotations

import functools
import json
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ringfence.bench.cluster import Cluster, cluster
from ringfence.client.errors import Refused
from ringfence.client.sync import SyncClient
from ringfence.host.install import jobs
from ringfence.prove import remains
from tests.support.installation import Installation, eventually, installation
from tests.support.whole_backups import DIGEST, HOSTILE, WRITER, at, away, facts_of, home, python, refused

pytestmark = pytest.mark.root
SETTINGS = '[limits]\ndisk = "64MiB"\n\n[[policy]]\ntool = "write"\nanswer = "ask"\n'
WRITERS = 20


@dataclass
class Made:
    """A backup, and what was there when it was made."""

    file: Path
    installation: str
    ids: tuple[int, int]
    digest: str  # of alice's tree
    events: list[Any]
    master: bytes
    token: str
    runs: dict[str, str]
    facts: dict[str, Any]
    uids: dict[str, int] = field(default_factory=dict)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Of an installation that is no more: alice's tree is hostile, her runs are over, parked and queued, a secret is hers."""
    folder = tmp_path_factory.mktemp("backups")
    with installation(settings=SETTINGS) as server:
        for name in ("alice", "bob"):
            server.ok("user", "add", name)
        server.ok("secret", "set", "alice", "key", stdin=b"canary-of-the-vault")
        token = server.ok("token", "add", "--user", "alice", "--json").json()["token"]
        assert server.say("alice", "done", "$ echo done >> done")["status"] == "completed"
        assert server.say("alice", "parked", "@write there by hand")["status"] == "parked"
        waiting = server.popen("say", "--as", "alice", "--thread", "parked", "--json", "$ echo queued > /tmp/queued")
        eventually(lambda: len(runs(server)) == 3)
        python(server, "alice", HOSTILE)
        digest = python(server, "alice", DIGEST)
        file = folder / "whole.tar"
        facts = server.ok("backup", "create", "--output", str(file), "--json").json()
        said = facts_of(server.home)
        master = (server.home / "vault" / "master.key").read_bytes()
        events = thread(server)
        kept = Made(file, said.installation, said.ids, digest, events, master, token, runs(server), facts)
        kept.uids = {name: server.box(name)["uid"] for name in ("alice", "bob")}
        waiting.kill()
        waiting.communicate()
        # The host that it was made on: a second state of the same installation is refused beside it.
        with home("second") as place:
            code, error = refused(server, "backup", "restore", str(file), "--home", str(place))
            assert (code, error["code"]) == (1, "conflict")
            assert str(server.home) in error["message"]
            assert not place.exists()
        server.stop()
        away(server.home)
        with installation(started=False):  # whose ids are those of then
            yield kept


def runs(server: Installation) -> dict[str, str]:
    return {run["run"]: run["state"] for run in server.ok("run", "ls", "--json").json()["runs"]}


def thread(server: Installation) -> list[Any]:
    said: list[Any] = server.ok("events", "done", "--as", "alice", "--json").json()["events"]
    return said


def test_what_is_said_of_it(made: Made) -> None:
    facts, status = made.facts, made.file.stat()
    assert (stat.S_IMODE(status.st_mode), facts["size_bytes"]) == (0o600, status.st_size)
    assert (facts["boxes"], facts["with_key"], facts["gone"], facts["lacks"]) == (2, False, [], [])
    assert made.master not in made.file.read_bytes()
    looked = Installation(Path("/nonexistent/state")).ok("backup", "verify", str(made.file), "--json").json()
    assert looked == {**facts, "settings": []}


def test_another_host(made: Made) -> None:
    """Another state directory and another range of ids. The vault is sealed until its key is there."""
    with home("other") as place:
        other = Installation(place)
        said = other.ok("backup", "restore", str(made.file), "--home", str(place), "--json").json()
        assert (said["boxes"], said["boxes_empty"], said["generation"], said["with_key"]) == (2, 0, 2, False)
        now = facts_of(place)
        assert now.installation == made.installation
        assert now.ids == tuple(said["ids"]) != made.ids
        with at(place) as server:
            assert "0 boxes adopted" in server.lines[-1]
            sealed = server.run("vault", "status", "--json")
            assert (sealed.code, "master.key" in sealed.json()["sealed"]) == (5, True)
            box = server.box("alice")
            assert now.ids[0] <= box["uid"] <= now.ids[1]
            assert python(server, "alice", DIGEST) == made.digest
            assert server.ok("exec", "alice", "--", "cat", "done").text == "done\n"
            assert thread(server)[: len(made.events)] == made.events
            assert server.ok("audit", "verify", "--json").json()["ok"]
            ended = runs(server)
            assert {ended[run] for run, was in made.runs.items() if was == "completed"} == {"completed"}
            eventually(lambda: all(at_ in ("failed", "completed") for at_ in runs(server).values()))
            assert [run for run, was in made.runs.items() if was == "parked" and runs(server)[run] == "failed"]
            with SyncClient(socket=server.socket) as client:  # who is known there is known here
                assert client.user("alice")["name"] == "alice"
        key = place / "vault" / "master.key"
        key.write_bytes(made.master)
        shutil.chown(key, now.ids[0], now.ids[0])
        key.chmod(0o600)
        with at(place) as server:
            assert server.ok("vault", "status", "--json").json()["sealed"] in ("", None)
            assert [each["name"] for each in server.ok("secret", "ls", "alice", "--json").json()["secrets"]] == ["key"]
            code, error = refused(server, "backup", "restore", str(made.file), "--home", str(place))
            assert (code, error["code"]) == (1, "conflict")
            code, error = refused(server, "backup", "restore", str(made.file), "--home", str(place), "--force")
            assert (code, error["code"]) == (5, "unavailable")  # a server runs there
            spent = server.box("bob")["uid"]
            assert server.ok("exec", "alice", "--", "echo", "on").text == "on\n"
        code, error = refused(other, "backup", "restore", str(made.file), "--home", str(place), "--force")
        assert (code, error["code"]) == (5, "unavailable")  # a box runs there
        other.ok("uninstall")
        # Once more, over what is there: that is kept, and no id of it is given out again.
        again = other.ok("backup", "restore", str(made.file), "--home", str(place), "--force", "--json").json()
        assert Path(again["moved"], "installation.json").exists()
        with at(place) as server:
            assert min(server.box(name)["uid"] for name in ("alice", "bob")) > spent
            assert python(server, "alice", DIGEST) == made.digest


@pytest.fixture(scope="module")
def database() -> Iterator[Cluster]:
    with cluster() as running:
        running.folder.chmod(0o711)  # the server's account is another one, and is to reach the socket
        yield running


def test_into_a_database_server_and_out_of_it(made: Made, database: Cluster, tmp_path: Path) -> None:
    url = database.create("whole")
    with home("pg") as place, home("back") as back:
        other = Installation(place)
        other.ok("backup", "restore", str(made.file), "--home", str(place), "--db", url)
        further = tmp_path / "further.tar"
        with at(place) as server:
            assert server.run("status", "--json").json()["parts"]["store"]["kind"] == "postgresql"
            assert python(server, "alice", DIGEST) == made.digest
            assert server.ok("audit", "verify", "--json").json()["ok"]
            server.ok("exec", "alice", "--", "touch", "after")
            facts = server.ok("backup", "create", "--output", str(further), "--with-key", "--json").json()
            assert (facts["dialect"], facts["generation"]) == ("postgresql", 2)
        away(place)
        code, error = refused(other, "backup", "restore", str(further), "--home", str(back))
        assert (code, error["code"], "--db" in error["remedy"]) == (3, "refused", True)
        assert not back.exists()
        said = other.ok("backup", "restore", str(further), "--home", str(back), "--db", "sqlite", "--json").json()
        assert said["generation"] == 3
        with at(back) as server:
            assert server.run("status", "--json").json()["parts"]["store"]["kind"] == "sqlite"
            assert server.ok("exec", "alice", "--", "ls", "after").code == 0
            assert server.ok("audit", "verify", "--json").json()["ok"]


def test_files_that_are_none_change_nothing(made: Made, tmp_path: Path) -> None:
    data = made.file.read_bytes()
    cut, flipped, other = (tmp_path / name for name in ("cut", "flipped", "other"))
    cut.write_bytes(data[: len(data) // 2])
    flipped.write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    other.write_bytes(b"no tar at all")
    with home("none") as place:
        at_home = Installation(place)
        for file in (cut, flipped, other, tmp_path):
            for words in (("restore", str(file), "--home", str(place)), ("verify", str(file))):
                code, error = refused(at_home, "backup", *words)
                assert (code, error["code"]) == (2, "invalid")
        assert refused(at_home, "backup", "verify", str(tmp_path / "absent"))[0] == 4
        assert not place.exists()
        assert not list(place.parent.glob(f"{place.name}*"))


def test_while_everybody_writes(tmp_path: Path) -> None:
    """Twenty boxes write and turns run. In each tree is one moment, what the rows say was done is in it, and everything goes on."""
    people = [f"p{n}" for n in range(WRITERS)]
    file = tmp_path / "whole.tar"
    with installation(settings=SETTINGS) as server, home("busy") as place:
        with SyncClient(socket=server.socket) as client:
            for name in people:
                client.add_user(name)
        writers = [server.popen("exec", name, "--", "python3", "-c", WRITER) for name in people]
        for name in people:
            eventually(functools.partial(has_written, server, name))
        talk = [server.popen("say", "--as", name, "--thread", f"of-{name}", "--json", turn()) for name in people[:3]]
        for name in people[:3]:
            eventually(lambda name=name: done_steps(server, name))  # type: ignore[misc]
        server.ok("backup", "create", "--output", str(file))
        for process in talk:
            assert json.loads(process.communicate(timeout=120)[0])["status"] == "completed"
        before = [int(server.ok("exec", name, "--", "cat", "b").text or 0) for name in people[:3]]
        eventually(lambda: int(server.ok("exec", people[0], "--", "cat", "b").text or 0) > before[0])  # it goes on
        assert [process.poll() for process in writers] == [None] * WRITERS
        for process in writers:
            process.kill()
            process.communicate()
        server.stop()
        away(server.home)
        Installation(place).ok("backup", "restore", str(file), "--home", str(place))
        with at(place) as restored:
            for name in people:
                a, b = numbers(restored, name)
                assert a - 1 <= b <= a
            for name in people[:3]:
                there = restored.shell(name, "wc -l < said 2>/dev/null || echo 0").text
                steps = done_steps(restored, name)
                assert int(there) >= steps > 0
            assert restored.ok("audit", "verify", "--json").json()["ok"]


def test_archived_and_started_while_it_is_made(tmp_path: Path) -> None:
    """Its reader takes no more while the first box is read; of the others one is archived by then, and one is not any more. Both are put
    back byte for byte, as they were at either moment."""
    file = tmp_path / "whole.tar"
    with installation(settings=SETTINGS.replace("64MiB", "256MiB")) as server, home("archived") as place:
        for name in ("alice", "bob", "carol", "dave"):
            server.ok("user", "add", name)
            python(server, name, HOSTILE)
        names = sorted(("alice", "bob", "carol"), key=lambda name: str(server.box(name)["box"]))  # as they are read
        first, away_later, back_later = names
        server.ok("exec", first, "--", "sh", "-c", "head -c 60000000 /dev/urandom > noise; sync")
        digests = {name: python(server, name, DIGEST) for name in (*names, "dave")}
        for name in (back_later, "dave"):
            server.ok("box", "archive", name)
        process = server.popen("backup", "create", "--output", "-")
        assert process.stdout is not None
        with file.open("wb") as out:
            out.write(process.stdout.read(1 << 20))
            server.ok("box", "archive", away_later)
            server.ok("exec", back_later, "--", "true")
            shutil.copyfileobj(process.stdout, out)
        process.communicate()
        assert process.returncode == 0
        server.stop()
        away(server.home)
        said = Installation(place).ok("backup", "restore", str(file), "--home", str(place), "--json").json()
        assert (said["boxes"], said["boxes_empty"]) == (4, 0)
        with at(place) as restored:
            assert len(list((place / "snapshots").iterdir())) == 1  # dave's; the tree of every other one is there
            assert {name: python(restored, name, DIGEST) for name in digests} == digests


def test_what_is_refused_touches_nothing_of_what_is_there(tmp_path: Path) -> None:
    """Disks of the state that is there stay mounted until everything was looked at."""
    file, mounts = tmp_path / "whole.tar", jobs.mounts
    with installation() as server:
        server.ok("user", "add", "alice")
        server.ok("exec", "alice", "--", "sh", "-c", "echo here > here")
        server.ok("backup", "create", "--output", str(file))
        server.ok("box", "stop", "alice")
        server.stop()
        before = mounts(server.home)
        assert before, "there is something to lose"
        other = server.home.with_name(f"{server.home.name}.restoring")
        other.mkdir()
        try:
            (other / "somebodys").touch()
            code, error = refused(server, "backup", "restore", str(file), "--home", str(server.home), "--force")
            assert (code, error["code"]) == (1, "conflict")
            assert mounts(server.home) == before
        finally:
            shutil.rmtree(other)
        moved = server.ok("backup", "restore", str(file), "--home", str(server.home), "--force", "--json").json()[
            "moved"
        ]
        try:
            server.start()
            assert server.ok("exec", "alice", "--", "cat", "here").text == "here\n"
        finally:
            shutil.rmtree(moved)


def has_written(server: Installation, user: str) -> bool:
    return server.shell(user, "test -s b").code == 0


def turn() -> str:
    return "\n".join(f"$ echo {n} >> said" for n in range(15))


def numbers(server: Installation, user: str) -> tuple[int, int]:
    a, b = server.ok("exec", user, "--", "sh", "-c", "cat a; echo; cat b").text.split()
    return int(a), int(b)


def done_steps(server: Installation, user: str) -> int:
    """Commands that the rows say were done."""
    found = 0
    for run in server.ok("run", "ls", "--json").json()["runs"]:
        if run["user"] == user:
            shown = server.ok("run", "show", run["run"], "--as", user, "--json").json()
            found += sum(step["state"] == "ended" for step in shown["steps"])
    return found


def test_who_may(tmp_path: Path) -> None:
    """Root does; an operator by token has everything but this, and so has a user."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with installation("--listen", f"127.0.0.1:{port}") as server:
        server.ok("user", "add", "alice")
        operator = server.ok("token", "add", "--user", "operator", "--scope", "operator", "--json").json()["token"]
        with SyncClient(url=f"http://127.0.0.1:{port}", token=operator) as client:
            assert client.status()
            with pytest.raises(Refused, match="only root"), client.open_backup() as chunks:
                next(iter(chunks))
        server.ok("backup", "create", "--output", str(tmp_path / "by-root.tar"))
        code, error = refused(server, "backup", "create", "--output", str(tmp_path / "by-root.tar"))
        assert (code, error["code"]) == (1, "conflict")
        acts = [row["action"] for row in server.ok("audit", "ls", "--json").json()["rows"]]
        assert acts.count("backup") == 1


def in_it(file: Path, box: str) -> bytes:
    command = f"tar -xOf {file} --wildcards 'boxes/{box}/tree.*' | zcat | tar -xO home/kept"
    return subprocess.run(["sh", "-c", command], capture_output=True, check=False).stdout


def test_what_a_removal_kept_is_kept_on_the_other_host_too(tmp_path: Path) -> None:
    """Nobody has it: it is not started, and goes when somebody asks for that."""
    first, second, third = (tmp_path / f"{name}.tar" for name in ("first", "second", "third"))
    with installation() as server, home("kept") as place:
        boxes = {}
        for name in ("alice", "bob", "carol"):
            server.ok("user", "add", name)
            server.ok("exec", name, "--", "sh", "-c", f"echo {name}s > kept")
            boxes[name] = str(server.box(name)["box"])
        server.ok("box", "archive", "bob")
        for name in ("alice", "bob"):
            server.ok("user", "rm", name)
        server.ok("user", "rm", "carol", "--purge")
        facts = server.ok("backup", "create", "--output", str(first), "--json").json()
        assert (facts["boxes"], facts["gone"], facts["lacks"]) == (2, [], [])
        assert in_it(first, boxes["alice"]) == b"alices\n"
        server.stop()
        away(server.home)
        said = server.ok("backup", "restore", str(first), "--home", str(place), "--json").json()
        assert (said["boxes"], said["boxes_empty"]) == (2, 0)
        with at(place) as restored:
            assert restored.ok("box", "ls", "--json").json()["boxes"] == []
            restored.ok("sweep")
            restored.ok("backup", "create", "--output", str(second))
            assert in_it(second, boxes["alice"]) == b"alices\n"
            for name in ("alice", "bob"):
                restored.ok("user", "rm", name, "--purge")
            assert restored.ok("backup", "create", "--output", str(third), "--json").json()["boxes"] == 0
            assert list((place / "boxes").iterdir()) == list((place / "snapshots").iterdir()) == []


def test_to_standard_output_and_by_another_program(tmp_path: Path) -> None:
    """Without a server too; and what is in it is read without us."""
    with installation() as server:
        server.ok("user", "add", "alice")
        server.ok("exec", "alice", "--", "sh", "-c", "echo here > here")
        box = server.box("alice")["box"]
        running = server.run("backup", "create", "--output", "-")
        server.ok("box", "stop", "alice")
        server.stop()
        stopped = server.run("backup", "create", "--output", "-", "--with-key")
        for result in (running, stopped):
            assert result.code == 0, result.errors
            (tmp_path / "b.tar").write_bytes(result.out)
            server.ok("backup", "verify", str(tmp_path / "b.tar"))
            command = f"tar -xOf b.tar --wildcards 'boxes/{box}/tree.*' | zcat | tar -xO home/here"
            shown = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, check=True)
            assert shown.stdout == b"here\n"
        assert "whoever has this file has every secret" in stopped.errors
        assert "is not in it" in running.errors


def test_no_room_for_it(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    with installation() as server:
        server.ok("user", "add", "alice")
        server.ok("exec", "alice", "--", "sh", "-c", "head -c 30000000 /dev/urandom > noise")
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", small], check=True)
        try:
            code, error = refused(server, "backup", "create", "--output", str(small / "b.tar"))
            assert (code, error["code"]) == (5, "disk_full")
            assert list(small.iterdir()) == []
        finally:
            subprocess.run(["umount", small], check=True)
        assert server.ok("exec", "alice", "--", "echo", "on").text == "on\n"


def test_settings_that_name_programs_want_trust(tmp_path: Path) -> None:
    """Whoever wrote the file would else choose what root runs."""
    with installation(started=False) as server:
        (server.home / "ringfence.toml").write_text('python = "/usr/bin/python3.11"\n')
        file = tmp_path / "b.tar"
        server.ok("backup", "create", "--output", str(file))
        assert server.ok("backup", "verify", str(file), "--json").json()["settings"] == ["python"]
        there = facts_of(server.home)
        away(server.home)
        assert remains.find(there, server.home) == []
        with home("trust") as place:
            code, error = refused(server, "backup", "restore", str(file), "--home", str(place))
            assert (code, error["code"]) == (3, "refused")
            assert "python" in error["message"]
            assert not place.exists()
            server.ok("backup", "restore", str(file), "--home", str(place), "--trust-settings")
            assert "python3.11" in (place / "ringfence.toml").read_text()
