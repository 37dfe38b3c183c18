"""`ringfence support-bundle` of a real installation: what is in it, and that nothing of what was planted everywhere is."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.install import support
from ringfence.host.kernel.life.support import Words
from tests.support.installation import Installation, installation

PARTS = {"manifest", "versions", "doctor", "status", "settings", "database", "audit", "host"}
CANARIES = {
    "message": "canarymessage",
    "reply": "canaryreply",
    "thread": "canarythread",
    "user": "canaryuser",
    "value": "canaryvalue",  # of a credential
    "credential": "canarycredential",
    "environment": "canaryenvironment",
    "file": "canaryfile",
    "content": "canarycontent",
    "note": "canarynote",  # of a token
    "reason": "canaryreason",
    "script": "canaryscript",
    "webhook": "canarywebhook",
    "host": "canaryhost.test",
    "log": "canarylog",
}
SETTINGS = """
script = "{script}"
domain = "{host}"
accept_reason = "{reason}"
[[webhook]]
name = "hook"
url = "https://example.org/hook?token={webhook}"
lookup_url = "https://example.org/look?token={webhook}"
secret_file = "{secret}"
"""


def planted(made: Installation) -> list[str]:
    """Secrets beside CANARIES: those that the program made."""
    c = CANARIES
    made.ok("user", "add", c["user"])
    token = made.ok("token", "add", "--user", c["user"], "--note", c["note"]).text.split()[0]
    made.ok("thread", "add", c["thread"], "--member", c["user"])
    assert made.say(c["user"], c["thread"], c["message"])["reply"] == c["reply"]
    made.ok("secret", "set", c["user"], c["credential"], stdin=c["value"].encode())
    made.ok(
        "exec", c["user"], "--env", f"CANARY={c['environment']}", "--", "sh", "-c", f"echo {c['content']} > {c['file']}"
    )
    made.run("exec", c["user"], "--", c["environment"])  # which there is not
    keys = [
        path.read_text(errors="replace").strip() for path in sorted((made.home / "vault").iterdir()) if path.is_file()
    ]
    return [token, *filter(None, keys)]


def lines_of(token: str) -> str:
    """A log into which somebody's values came."""
    said = {"at": "2026-01-31T12:00:00+00:00", "level": "warning", "part": "ringfence.engine"}
    error = f'Traceback (most recent call last):\n  File "/{CANARIES["log"]}", line 1, in x\nValueError: {token}'
    rows = [
        {**said, "message": f"box {CANARIES['log']} was not adopted: {token}", "error": error},
        {**said, "message": f"Authorization: Bearer {token}", "part": CANARIES["log"], token: CANARIES["log"]},
    ]
    return "".join(json.dumps(row) + "\n" for row in rows) + f"{token} {CANARIES['log']}\n" * 3


def settings(folder: Path) -> str:
    folder.chmod(0o755)
    script = [
        {"when": CANARIES["message"], "answers": [{"text": CANARIES["reply"]}]},
        {"when": CANARIES["script"], "answers": [{"text": "-"}]},
    ]
    (folder / "script.json").write_text(json.dumps(script))
    given = {**CANARIES, "script": folder / "script.json", "secret": f"/nowhere/{CANARIES['content']}"}
    return SETTINGS.format(**given)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Installation, list[str], Path]]:
    folder = tmp_path_factory.mktemp("canaries")
    with installation(settings=settings(folder)) as given:
        secrets = planted(given)
        log = folder / "log"
        log.write_text(given.log.read_text() + lines_of(secrets[0]))
        yield given, secrets, log


def opened(bundle: Path) -> dict[str, bytes]:
    with tarfile.open(bundle) as tar:
        return {Path(each.name).stem: tar.extractfile(each).read() for each in tar}  # type: ignore[union-attr]


def leaks(found: dict[str, bytes], secrets: list[str]) -> set[str]:
    whole = b"\n".join(found.values())
    return {word for word in [*CANARIES.values(), *secrets] if word.encode() in whole}


def bundled(made: Installation, tmp_path: Path, *words: str) -> dict[str, bytes]:
    target = tmp_path / "bundle.tar.gz"
    told = json.loads(made.ok("support-bundle", "--output", str(target), "--json", *words).text)
    status = target.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_size) == (0o600, told["size_bytes"])
    return opened(target)


Made = tuple[Installation, list[str], Path]


def test_with_a_server(made: Made, tmp_path: Path) -> None:
    given, secrets, log = made
    found = bundled(given, tmp_path, "--log", str(log))
    assert leaks(found, secrets) == set()
    assert set(found) == {*PARTS, "log"}
    facts = {name: json.loads(data) for name, data in found.items() if name != "log"}
    assert facts["status"]["ok"] and facts["status"]["parts"]["store"]["ok"]
    assert facts["audit"]["ok"] and facts["audit"]["rows"] > 0
    assert facts["doctor"]["ok"]
    database = facts["database"]
    assert (database["dialect"], database["rows"]["messages"], database["schema"]) == ("sqlite", 2, database["newest"])
    assert "text" in database["columns"]["messages"]
    [box] = [each for each in database["boxes"] if each["observed"] == "running"]
    assert box["id"] == given.box(CANARIES["user"])["box"]
    assert facts["settings"]["webhook"] == 1
    assert facts["host"]["boxes"] >= 1
    lines = [json.loads(line) for line in found["log"].splitlines()]
    assert any("boxes adopted" in line["message"] for line in lines), "what is ours is there to be read"
    assert {part["holds"] for part in facts["manifest"]["parts"].values()} == {
        support.SAFE[f"{name}.json"] for name in PARTS - {"manifest"}
    } | {support.SAFE["log.jsonl"]}


def test_what_was_planted_is_there_to_be_found(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: the same bundle by the same code, with what leaves out switched off."""
    given, secrets, log = made
    raw: Callable[[Any, Any], Any] = lambda _, value: value  # noqa: E731
    monkeypatch.setattr(Words, "plain", raw)
    monkeypatch.setattr(Words, "line", lambda _, text: {"message": text})
    monkeypatch.setattr(support, "picked", lambda settings: settings.to_json())
    packed = support.bundle({"RINGFENCE_HOME": str(given.home)}, status=dict, audit=dict, log=str(log))
    target = log.parent / "raw.tar.gz"
    target.write_bytes(packed)
    found = leaks(opened(target), secrets)
    assert found >= {secrets[0], *(CANARIES[name] for name in ("log", "webhook", "host", "reason"))}
    database = (given.home / "db" / "ringfence.db").read_bytes() + b"".join(
        path.read_bytes() for path in (given.home / "db").iterdir() if path.name.endswith("-wal")
    )
    for name in ("message", "reply", "thread", "user", "credential", "note"):
        assert CANARIES[name].encode() in database, name


def test_without_a_server(made: Made, tmp_path: Path) -> None:
    given, secrets, _ = made
    given.stop()
    try:
        found = bundled(given, tmp_path)
    finally:
        given.start()
    assert leaks(found, secrets) == set()
    assert set(found) == PARTS
    assert json.loads(found["status"]) == {"ok": False, "code": "unavailable"}
    assert json.loads(found["audit"])["ok"] is True
    assert json.loads(found["database"])["rows"]["users"] == 2


def test_lines_on_stdin_and_only_the_last(made: Made, tmp_path: Path) -> None:
    given, secrets, _ = made
    target = tmp_path / "b.tar.gz"
    lines = (lines_of(secrets[0]) * 1000).encode()
    given.ok("support-bundle", "--output", str(target), "--log", "-", stdin=lines)
    found = opened(target)
    assert len(found["log"].splitlines()) == support.LOG_LINES
    assert leaks(found, secrets) == set()


def test_where_there_is_no_installation(tmp_path: Path) -> None:
    home = tmp_path / "none" / "here"
    target = tmp_path / "b.tar.gz"
    done = subprocess.run(
        [str(Path(os.sys.executable).parent / "ringfence"), "support-bundle", "--output", str(target)],  # type: ignore[attr-defined]
        env={**os.environ, "RINGFENCE_HOME": str(home)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done
    found = opened(target)
    assert set(found) == PARTS
    assert json.loads(found["database"])["code"] == "unavailable"
    assert not home.exists()


@pytest.mark.parametrize("words", [("--log", "/nowhere/at/all"), ("--output", "/nowhere/at/all/b.tar.gz")])
def test_bad_input(made: Made, tmp_path: Path, words: tuple[str, str]) -> None:
    given = made[0]
    done = given.run("support-bundle", "--output", str(tmp_path / "b"), *words)
    assert done.code == 2
    assert list(tmp_path.iterdir()) == []


def test_it_overwrites_nothing(made: Made, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    done = made[0].run("support-bundle", "--output", str(tmp_path / "there"))
    assert (done.code, (tmp_path / "there").read_text()) == (2, "mine")
