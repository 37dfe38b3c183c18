"""Bad input gets a clear error with its remedy, loses nothing, and the server keeps answering."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from tests.support.installation import RINGFENCE, Installation, installation, state_base


@pytest.fixture(autouse=True)
def _still_answers(server: Installation) -> object:
    yield
    assert server.ok("status", "--json").json()["ok"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("exec", "nobody", "--", "true"), 4),
        (("exec", "alice", "--tenant", "nowhere", "--", "true"), 4),
        (("user", "add", "x", "--tenant", "nowhere"), 4),
        (("user", "add", "alice"), 1),
        (("exec", "alice", "--timeout", "0", "--", "true"), 2),
        (("exec", "alice", "--timeout", "nan", "--", "true"), 2),
        (("exec", "alice", "--timeout", "1e12", "--", "true"), 2),
        (("exec", "alice", "--cwd", "relative", "--", "true"), 2),
        (("exec", "alice", "--env", "NOEQUALS", "--", "true"), 2),
        (("thread", "show", "absent", "--as", "alice"), 4),
        (("run", "show", "run_absent"), 4),
        (("box", "limits", "alice", "--memory", "lots"), 2),
        (("no-such-command",), 2),
    ],
)
def test_wrong_words(server: Installation, alice: str, words: tuple[str, ...], code: int) -> None:
    result = server.run(*words)
    assert result.code == code, result.errors
    assert result.errors.strip()
    assert "Traceback" not in result.errors


def test_errors_are_json_when_asked_for(server: Installation) -> None:
    error = server.run("exec", "nobody", "--json", "--", "true").json()["error"]
    assert set(error) == {"code", "message", "remedy", "details"}
    assert error["code"] == "not_found"


def test_no_server(tmp_path: Path) -> None:
    lonely = Installation(tmp_path / "none")
    result = lonely.run("status")
    assert result.code == 5
    assert "ringfence serve" in result.errors


def test_a_large_message(server: Installation, alice: str) -> None:
    from ringfence.client import ApiError, SyncClient

    with SyncClient(socket=server.socket, act_as=alice) as client, pytest.raises(ApiError) as raised:
        client.post_message("big", "x" * 300_000)
    assert raised.value.code == "too_large"


def test_a_message_that_is_no_text(server: Installation, alice: str) -> None:
    """Bytes that are not UTF-8 are the caller's to mend, from stdin as from the command line."""
    for words, stdin in ((("-",), b"x\xff"), ((b"x\xff",), None)):
        done = server.run("say", "--as", alice, "--thread", "no-text", *words, stdin=stdin)
        assert done.code == 2 and "UTF-8" in done.errors and "report it" not in done.errors


def test_garbage_on_the_operator_socket(server: Installation) -> None:
    for data in (
        b"\0" * 100,
        b"GET",
        b"POST /v1/tenants HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n",
        b"\xff" * 70_000,
    ):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(server.home / "run" / "api.sock"))
            client.settimeout(10)
            try:
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
                client.recv(100)
            except OSError:
                pass


# --- the state and the host ------------------------------------------------------------------------------------------


def init(home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [RINGFENCE, "init"]
    env = {**os.environ, "RINGFENCE_HOME": str(home), **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_a_symlinked_state_directory(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    refused = init(tmp_path / "link")
    assert refused.returncode == 5 or refused.returncode == 3
    assert "link" in refused.stderr
    assert not any((tmp_path / "real").iterdir())


def test_a_world_writable_state_directory(tmp_path: Path) -> None:
    home = tmp_path / "open"
    home.mkdir()
    home.chmod(0o777)
    refused = init(home)
    assert refused.returncode in (3, 5)
    assert "chmod" in refused.stderr
    assert not any(home.iterdir())


@pytest.mark.root
def test_a_setuid_or_foreign_bubblewrap() -> None:
    home = state_base() / f"ringfence-test-bwrap-{os.getpid()}"
    copy = state_base() / f"bwrap-copy-{os.getpid()}"
    shutil.copy("/usr/bin/bwrap", copy)
    home.mkdir(mode=0o711)
    (home / "ringfence.toml").write_text(f'bwrap = "{copy}"\n')
    made = Installation(home)
    try:
        made.ok("init")
        for mode, word in ((0o4755, "setuid"), (0o757, "writable")):
            copy.chmod(mode)
            assert stat.S_IMODE(copy.stat().st_mode) == mode
            process = made.start(wait=False)
            assert process.wait(30) == 5
            assert process.stdout is not None
            process.stdout.close()
            assert word in made.log.read_text()
        copy.chmod(0o755)
        box_id = json.loads((home / "installation.json").read_text())["ids"][0] + 8  # of the first box there will be
        os.chown(copy, box_id, box_id)
        process = made.start(wait=False)
        assert process.wait(30) == 5
        assert process.stdout is not None
        process.stdout.close()
        assert f"belongs to uid {box_id}" in made.log.read_text() and "chown root" in made.log.read_text()
        row = next(row for row in made.run("doctor", "--json").json()["rows"] if row["id"] == "bubblewrap")
        assert (row["ok"], row["level"]) == (False, "required") and row["remedy"].startswith("chown root")
        copy.unlink()
        process = made.start(wait=False)
        assert process.wait(30) == 5
        assert process.stdout is not None
        process.stdout.close()
        assert "apt-get install" in made.log.read_text()  # F97: never an unjailed run
    finally:
        made.stop()
        copy.unlink(missing_ok=True)
        shutil.rmtree(home)
        made.log.unlink(missing_ok=True)


@pytest.mark.root
def test_a_full_disk() -> None:
    """The database's volume is full, with no room for a reserve: no acknowledgement, reads go on, and it recovers."""
    with installation() as made:
        made.ok("user", "add", "ann")
        made.stop()
        db = made.home / "db"
        owner = db.stat()
        saved = {path.name: path.read_bytes() for path in db.iterdir() if path.name != "reserve"}
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "none", str(db)], check=True)
        try:
            os.chown(db, owner.st_uid, owner.st_gid)
            for name, data in saved.items():
                (db / name).write_bytes(data)
                os.chown(db / name, owner.st_uid, owner.st_gid)
            made.start()
            filler = db / "filler"
            room = os.statvfs(db).f_bavail * os.statvfs(db).f_frsize
            assert room > 1 << 20, "the volume is full before the test fills it"
            filler.write_bytes(b"\0" * (room - 8192))
            codes = {made.run("user", "add", f"u{number}").code for number in range(30)}
            assert 5 in codes
            refused = made.run("user", "add", "one-more", "--json")
            assert refused.json()["error"]["code"] == "disk_full", refused.text
            assert "ann" in made.ok("user", "ls").text
            filler.unlink()
            made.ok("user", "add", "after")
            assert "after" in made.ok("user", "ls").text
            made.stop()
        finally:
            made.stop()
            subprocess.run(["umount", "-l", str(db)], check=True)


def test_configuration(tmp_path: Path) -> None:
    file = tmp_path / "ringfence.toml"
    file.write_text("lisen = 'x'\n")
    refused = subprocess.run([RINGFENCE, "config", "check", str(file)], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "lisen" in refused.stderr and "listen" in refused.stderr
    file.write_text("")
    subprocess.run([RINGFENCE, "config", "check", str(file)], capture_output=True, check=True)
