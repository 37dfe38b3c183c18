"""The command line as a process of its own against the real web servers: words, costs, people, boxes, failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.web_rig import RINGFENCE, Web, web


@pytest.fixture(scope="module")
def served() -> Iterator[Web]:
    with web() as made:
        made.user("alice")
        made.user("bob")
        yield made


@pytest.mark.parametrize(
    "words",
    [
        ["exec", "alice"],
        ["exec", "alice", "--"],
        ["exec", "alice", "--timeout", "--", "true"],
        ["exec", "alice", "--timeout", "soon", "--", "true"],
        ["exec", "alice", "--timeout", "nan", "--", "true"],
        ["exec", "alice", "--env", "NOEQUALS", "--", "true"],
        ["exec", "alice", "--unknown", "--", "true"],
        ["exec", "alice", "bob", "--unknown", "--", "true"],
        ["exec", "", "--", "true"],
        ["exec", "alice", "--tenant", "", "--", "true"],
        ["user", "show", ""],
        ["box", "stop", ""],
        ["token", "rm", "--user", "alice", ""],
        ["run", "show", ""],
        ["say", "--thread", "", "hi"],
        ["no-such-command"],
        ["box", "no-such-verb"],
        ["box", "limits", "alice", "--memory", "lots"],
        ["box", "limits", "alice", "--cpu", "nan"],
        ["box", "limits", "alice", "--cpu", "inf"],
        ["files", "put", "alice", "x", "/nonexistent"],
        ["files", "put", "alice", "/"],
    ],
)
def test_wrong_words_are_2(served: Web, words: list[str]) -> None:
    done = served.cli(*words)
    assert done.returncode == 2, done.stderr
    assert 2 <= len(done.stderr.strip().splitlines()) <= 3
    assert b"Traceback" not in done.stderr
    position = words.index("--") if "--" in words else len(words)
    error = json.loads(served.cli(*words[:position], "--json", *words[position:]).stdout)["error"]
    assert error["message"] and error["remedy"]


def imported(served: Web, *words: str) -> set[str]:
    command = [sys.executable, "-X", "importtime", RINGFENCE, *words]
    done = subprocess.run(command, env=served.environment, capture_output=True, text=True, timeout=120, check=True)
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


SERVER_SIDE = {"fastapi", "sqlalchemy", "starlette", "uvicorn"}  # pydantic: typer itself converts arguments with it


@pytest.mark.parametrize(
    ("words", "also"),
    [
        (("exec", "alice", "--", "true"), {"httpx2", "rich", "typer", "click", "pydantic"}),
        (("exec", "alice", "--json", "--", "true"), {"httpx2", "rich", "typer", "click", "pydantic"}),
        (("status",), {"websockets", "rich"}),
        (("box", "ls"), {"websockets", "rich"}),
        (("files", "ls", "alice"), {"websockets", "rich"}),
        (("thread", "ls"), {"websockets", "rich"}),
    ],
)
def test_a_client_command_imports_little(served: Web, words: tuple[str, ...], also: set[str]) -> None:
    modules = imported(served, *words)
    assert "ringfence.client.client" in modules  # the control: the list is of this program
    tops = {module.split(".")[0] for module in modules}
    assert tops & (SERVER_SIDE | also) == set()
    assert not [module for module in modules if module.startswith(("ringfence.host", "ringfence.wire"))]


def test_people_and_tokens(served: Web) -> None:
    def ok(*words: str) -> str:
        done = served.cli(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    ok("tenant", "add", "acme")
    assert "acme" in ok("tenant", "ls")
    ok("user", "add", "carol", "--tenant", "acme")
    ok("user", "add", "robot", "--tenant", "acme", "--kind", "agent", "--owner", "carol")
    assert json.loads(ok("user", "show", "robot", "--tenant", "acme", "--json"))["kind"] == "agent"
    names = [user["name"] for user in json.loads(ok("user", "ls", "--tenant", "acme", "--json"))["users"]]
    assert names == ["carol", "robot"]
    assert served.cli("user", "show", "carol").returncode == 4  # another tenant
    assert served.cli("user", "add", "carol", "--tenant", "acme").returncode == 1
    made = json.loads(ok("token", "add", "--user", "carol", "--tenant", "acme", "--note", "ci", "--json"))
    listed = ok("token", "ls", "--user", "carol", "--tenant", "acme", "--json")
    assert made["id"] in listed and made["token"] not in listed
    plain = served.cli("token", "add", "--user", "carol", "--tenant", "acme")
    secret = plain.stdout.decode().strip()
    assert (
        secret
        and secret not in plain.stderr.decode()
        and secret not in ok("token", "ls", "--user", "carol", "--tenant", "acme")
    )
    ok("token", "rm", "--user", "carol", "--tenant", "acme", made["id"])
    assert made["id"] not in ok("token", "ls", "--user", "carol", "--tenant", "acme", "--json")
    ok("user", "rm", "robot", "--tenant", "acme")
    ok("user", "rm", "carol", "--tenant", "acme")
    ok("tenant", "rm", "acme")
    assert served.cli("tenant", "rm", "acme").returncode == 4


def test_over_tcp_with_a_token(served: Web) -> None:
    env = {"RINGFENCE_URL": served.url, "RINGFENCE_TOKEN": served.token("alice")}
    assert served.cli("exec", "alice", "--", "echo", "hi", env=env).stdout == b"hi\n"
    assert served.cli("exec", "bob", "--", "true", env=env).returncode == 4
    assert served.cli("tenant", "ls", env=env).returncode == 3
    for words in (("exec", "alice", "--", "true"), ("status",)):
        refused = served.cli(*words, env={**env, "RINGFENCE_TOKEN": "wrong-token"})
        assert refused.returncode == 3
        assert b"wrong-token" not in refused.stderr + refused.stdout
        assert served.cli(*words, env={"RINGFENCE_URL": served.url}).returncode == 3
    assert served.cli("say", "--as", "alice", "--thread", "tcp", "hi", env=env).returncode == 0
    assert served.cli("say", "--as", "bob", "--thread", "tcp", "hi", env=env).returncode == 3


def test_no_server(tmp_path: Path) -> None:
    env = {**os.environ, "RINGFENCE_HOME": str(tmp_path)}
    for words in (("status",), ("exec", "alice", "--", "true")):
        done = subprocess.run([RINGFENCE, *words], env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 5
        assert f"no server answers at {tmp_path}/run/api.sock" in done.stderr
        assert "start one: ringfence serve" in done.stderr


@pytest.mark.root
def test_a_socket_that_this_account_may_not_open(served: Web) -> None:
    served.home.chmod(0o711)
    served.listening.socket.parent.chmod(0o750)
    program = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from ringfence.client.address import Address, unreachable\n"
        "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "error = unreachable(Address(socket=sys.argv[1])); print(error.message, '|', error.remedy)"
    )
    source = str(Path(__file__).parents[2] / "src")
    command = [sys.executable, "-c", program, served.socket, source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "may not open" in done.stdout and "group root" in done.stdout and "usermod -aG root" in done.stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_name_that_the_terminal_has_no_letters_for(served: Web, encoding: str) -> None:
    """F94: shown as an escape, and the list goes on."""
    served.user(f"经济{encoding}")
    done = served.cli("user", "ls", env={"PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr) == (0, b"")
    assert rf"\u7ecf\u6d4e{encoding}".encode() in done.stdout
    assert b"bob" in done.stdout


@pytest.mark.parametrize("words", [("status", "--json"), ("box", "ls"), ("exec", "alice", "--", "echo", "hi")])
def test_a_full_disk_under_the_output(served: Web, words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        process = served.popen(*words, stdout=full)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert b"No space left on device" in said and len(said.splitlines()) == 2
    assert b"report it" not in said and b"Traceback" not in said


def test_boxes(served: Web) -> None:
    assert json.loads(served.cli("box", "start", "bob", "--json").stdout)["observed"] == "running"
    assert {"alice", "bob"} <= {each["user"] for each in json.loads(served.cli("box", "ls", "--json").stdout)["boxes"]}
    changed = served.cli("box", "limits", "bob", "--memory", "2GiB", "--pids", "256", "--cpu", "1.5", "--json")
    limits = json.loads(changed.stdout)["limits"]
    assert (limits["memory"], limits["pids"], limits["cpu_milli"]) == (2 << 30, 256, 1500)
    assert json.loads(served.cli("box", "stop", "bob", "--json").stdout)["observed"] == "stopped"
    assert b"stopped" in served.cli("box", "show", "bob").stdout


COMMANDS = ("init", "serve", "status", "doctor", "tenant", "user", "token", "exec", "files", "box", "say", "thread")


def test_help_names_every_command(served: Web) -> None:
    text = served.cli("--help").stdout.decode()
    for word in (*COMMANDS, "run", "events", "config", "bench"):
        assert f"  {word} " in text, word
        assert served.cli(word, "--help").returncode == 0
    assert served.cli("--version").stdout.startswith(b"ringfence ")
    assert served.cli().returncode == 2
