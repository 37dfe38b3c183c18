"""The field's own acceptance test, on both stores: a turn in a person's box that asks a model, works with a credential that it
never sees, and outlives its loop and its box. Then what whoever takes that shell over tries first.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ringfence.bench import processes
from ringfence.bench.cluster import cluster
from ringfence.prove import programs
from ringfence.prove.attacks import trying
from tests.support import spike_attacks
from tests.support.installation import Installation, eventually, installation, of_uid
from tests.support.spike_doubles import API, GitHub, Model, github, model

IS_ROOT = os.geteuid() == 0
TOKEN = "ghp_r3alR3alR3alR3alR3alR3alR3alR3alR3al"
MODEL_KEY = "sk-real-r3alr3alr3alr3alr3al"
ASK = '{"model": "gpt", "messages": [{"role": "user", "content": "ping"}]}'
WORK = (
    "set -e; echo begun >> once; echo one; "
    'curl -sS --fail "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" '
    f"-H 'Content-Type: application/json' -d '{ASK}' > answer; echo two; gh pr list -R team/fence | tee pulls; echo three"
)
THREAD = ("--as", "alice", "--thread", "fence")


@dataclass(frozen=True)
class Spike:
    made: Installation
    github: GitHub
    model: Model


@contextlib.contextmanager
def database(kind: str) -> Iterator[str]:
    """A line of the settings."""
    if kind == "sqlite":
        yield ""
        return
    with cluster() as server:
        server.folder.chmod(0o711)  # the server's account is another one, and is to reach the socket
        yield f'database = "{server.create("spike")}"\n'


def settings(outside: GitHub, provider: Model) -> str:
    return f"""model = "gpt"
[egress]
pins = ["{API}=127.0.0.1:{outside.port}"]
root_ca = "{outside.ca}"
[[model_upstream]]
alias = "gpt"
provider = "openai"
base_url = "http://127.0.0.1:{provider.port}/v1"
model = "real-1"
key = "gpt-key"
"""


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def spike(request: pytest.FixtureRequest) -> Iterator[Spike]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)  # the server has an account of its own, and reads the CA
        line = stack.enter_context(database(request.param))
        outside = stack.enter_context(github(folder))
        provider = stack.enter_context(model(WORK))
        made = stack.enter_context(installation(settings=line + settings(outside, provider)))
        made.ok("user", "add", "alice")
        made.ok("user", "add", "bob")
        made.ok("secret", "set", "alice", "gpt-key", "--tenant-wide", stdin=MODEL_KEY.encode())
        for name in ("alice", "bob"):
            made.ok("secret", "set", name, "gh", "--recipe", "github", "--as", name, stdin=TOKEN.encode())
            for preset in ("github-graphql", "github-api-read"):
                made.ok("egress", "allow", name, "--preset", preset, "--as", name)
        yield Spike(made, outside, provider)


def test_a_turn_with_a_credential_outlives_its_loop_and_its_box(spike: Spike) -> None:
    made, provider = spike.made, spike.model
    before = _existing_box(made)
    assert made.say("alice", "fence", "Remember: the word is picket.")["reply"] == "Noted."
    watching = made.popen("events", "fence", "--as", "alice", "--follow", "--json")
    client = made.popen("say", *THREAD, "--json", "List the pull requests.")
    assert spike.github.arrived.wait(60), (client.poll(), made.log.read_text()[-2000:])
    _never_in_the_box(made)
    spike.github.go_on.set()
    eventually(lambda: provider.after_the_tool == 1, 60, "the tool's answer is at the model, and so saved")
    assert made.server is not None
    for loop in processes.forks_of(before.first) - before.idle:
        processes.kill(loop, made.server.pid)
    eventually(lambda: provider.after_the_tool == 2, 60, "another loop goes on from there")
    processes.kill(before.first, made.server.pid)
    eventually(lambda: provider.after_the_tool == 3, 60, "another box goes on from there")
    provider.go_on.set()
    out, err = client.communicate(timeout=120)
    answer = json.loads(out)
    assert (answer["status"], answer["reply"]) == ("completed", "It is listed."), (answer, err)
    _once(made, answer, before.box)
    _in_order(_until_ended(watching))
    asked = [json.dumps(each) for each in provider.asked]
    first = next(text for text in asked if "List the pull requests." in text)
    assert "picket" in first and "Noted." in first, "the thread is what the run began with"
    assert "Mend the fence" in asked[-1]
    assert spike.github.seen == [("POST /graphql HTTP/1.1", f"token {TOKEN}")]
    assert provider.keys == {f"Bearer {MODEL_KEY}"}
    _kept_nowhere(made, asked)


@dataclass(frozen=True)
class _Before:
    box: str
    first: int  # PID 1, as the host sees it
    idle: set[int]  # what it forked, without a run


def _existing_box(made: Installation) -> _Before:
    made.ok("files", "put", "alice", "of-before", "-", stdin=b"here\n")
    marker = made.popen("exec", "alice", "--", "sleep", "97.25")
    first = processes.first_of("97.25")
    return _Before(made.box("alice")["box"], first, processes.idle_forks(marker, "97.25"))


def _never_in_the_box(made: Installation) -> None:
    """While `gh` waits for its answer. The stand-in is what the same look finds."""
    seen = made.shell(
        "alice", "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; tar -cf - -C / home workspace tmp run 2>/dev/null"
    ).out
    if IS_ROOT:
        seen += b"".join(_memory(pid) for pid in of_uid(made.box("alice")["uid"]))
    assert b"ghp_EXAMPLE" in seen and b"team/fence" in seen
    assert TOKEN.encode() not in seen and MODEL_KEY.encode() not in seen


def _memory(pid: int) -> bytes:
    """All of a process that can be read; nothing of one that is gone."""
    found = []
    with contextlib.suppress(OSError), open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            begin, end = (int(word, 16) for word in line.split()[0].split("-"))
            if "rw" in line.split()[1]:
                with contextlib.suppress(OSError, ValueError):
                    memory.seek(begin)
                    found.append(memory.read(end - begin))
    return b"".join(found)


def _once(made: Installation, answer: dict[str, Any], box: str) -> None:
    run = made.ok("run", "show", answer["run"], "--json").json()
    assert [(step["tool"], step["state"]) for step in run["steps"]] == [("shell", "ended")]
    assert run["attempts"] == 3, "one that was begun, one for the loop, one for the box"
    assert made.box("alice")["box"] == box
    said = made.shell("alice", "cat of-before once pulls answer").text
    assert said.startswith("here\nbegun\n42\tMend the fence\tmend\tOPEN") and '"pong"' in said, said
    assert said.count("begun") == 1


def _until_ended(watching: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    assert watching.stdout is not None
    found: list[dict[str, Any]] = []
    for line in watching.stdout:
        found.append(json.loads(line))
        if [each["kind"] for each in found].count("run.ended") == 2:
            break
    watching.terminate()
    watching.communicate(timeout=60)
    return found


def _in_order(events: list[dict[str, Any]]) -> None:
    """Of the second turn: what is durable counts up and tells the story once; what is live came where it happened."""
    lasting = [each for each in events if each.get("cursor")]
    assert [each["cursor"] for each in lasting] == list(range(1, len(lasting) + 1))
    kinds = [each["kind"] for each in lasting]
    second = kinds[kinds.index("run.ended") + 1 :]
    once = [kind for kind in second if kind not in ("run.queued", "run.redriven")]
    assert once == ["message", "run.started", "step.begun", "step.ended", "reply", "run.ended"], second
    assert second.count("run.redriven") == 2, second


def _kept_nowhere(made: Installation, asked: list[str]) -> None:
    """Neither value is in what the model was told, the log, the audit, or any file of the state (the vault seals them)."""
    values = (TOKEN, MODEL_KEY)
    told = "\n".join(
        [*asked, made.log.read_text(), made.ok("audit", "ls", "--json").text, made.ok("events", "fence").text]
    )
    assert not [value for value in values if value in told]
    for folder in ("db", "vault", "run"):
        for path in (made.home / folder).rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                assert not [value for value in values if value.encode() in content], path


# --- the same shell, taken over ---------------------------------------------------------------------------------------

ALL = f"{programs.LOADER}\nimport json\nfor ask in json.load(sys.stdin):\n    print(json.dumps(load(ask)))\n"


def tried(made: Installation, user: str, *asks: tuple[str, ...]) -> list[dict[str, str]]:
    """Each: name of a program of support/spike_attacks.py, its arguments. All from one shell of the user's."""
    words = ("exec", user, "--", "sh", "-c", 'exec python3 -I -c "$0"', ALL)
    return _answers(made.ok(*words, stdin=_payloads(asks)).text, len(asks))


def bare(*asks: tuple[str, ...]) -> list[dict[str, str]]:
    """The same in no box: ours."""
    ran = subprocess.run(["/usr/bin/python3", "-I", "-c", ALL], input=_payloads(asks), capture_output=True, check=True)
    return _answers(ran.stdout.decode(), len(asks))


def _payloads(asks: tuple[tuple[str, ...], ...]) -> bytes:
    modules = [
        ("trying", Path(str(trying.__file__)).read_text()),
        ("spike", Path(str(spike_attacks.__file__)).read_text()),
    ]
    return json.dumps([{"modules": modules, "name": name, "arguments": rest} for name, *rest in asks]).encode()


def _answers(text: str, count: int) -> list[dict[str, str]]:
    answers = [json.loads(line) for line in text.splitlines()]
    assert len(answers) == count, text
    return answers


@contextlib.contextmanager
def held_by(made: Installation, user: str) -> Iterator[dict[str, str]]:
    """Two commands of the user's that live for as long as this: the environment of one, and `ports` of both."""
    clients = [made.popen("exec", user, "--", "sh", "-c", "env; echo END; exec sleep 3600") for _ in range(2)]
    found: dict[str, str] = {}
    ports: list[str] = []
    try:
        for client in clients:
            assert client.stdout is not None
            for line in iter(client.stdout.readline, b"END\n"):
                assert line, client.communicate()
                name, _, value = line.decode().rstrip("\n").partition("=")
                found[name] = value
            ports.append(found["HTTPS_PROXY"].rpartition(":")[2])
        yield {**found, "ports": " ".join(ports)}
    finally:
        for client in clients:
            client.terminate()
            client.communicate(timeout=60)


def environment(made: Installation, user: str) -> dict[str, str]:
    """Of a command that has ended, and that used what it was given."""
    use = f'curl -sS --fail -o used -H "Authorization: token $GH_TOKEN" https://{API}/user && env'
    lines = made.ok("exec", user, "--", "sh", "-c", use).text.splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def stopped(outcomes: dict[str, str]) -> None:
    assert not [name for name, outcome in outcomes.items() if outcome.startswith("done")], outcomes


def test_eight_attacks_from_the_same_shell_each_meet_their_wall(spike: Spike) -> None:
    made, url = spike.made, f"https://{API}/user"
    assert made.server is not None
    ended = environment(made, "alice")
    files = [made.home / "vault" / "master.key", made.home / "db" / "ringfence.db"]
    paths = [str(path) for path in files if path.exists()]
    with held_by(made, "bob") as bobs:
        asks: list[tuple[str, ...]] = [
            ("credentials", *paths),
            ("scope", made.socket, bobs["OPENAI_API_KEY"]),
            ("target", "https://denied.test/", "192.0.2.7"),
            ("metadata",),
            ("process", str(made.server.pid)),
            ("placeholder", url, ended["GH_TOKEN"]),
            ("placeholder", url, bobs["GH_TOKEN"]),
            ("run_token", ended["OPENAI_API_KEY"]),
            ("port", *bobs["ports"].split()),
        ]
        seen = len(spike.github.seen)
        came = tried(made, "alice", *asks)
        assert len(spike.github.seen) == seen, "nothing of it was sent"
        for outcomes in came:
            stopped(outcomes)
        read, scope, target, metadata, process, expired, foreign, token, port = came
        assert {read[path.name] for path in files if str(path) in paths} == {"ENOENT"}, "no such tree in a box"
        assert (scope["api"], scope["wire"]) == ("ENOENT", "EACCES"), "no socket of the API; PID 1 is not dumpable"
        assert scope["gateway"] == "Answered: 401 placeholder_unknown", "the key of another user"
        assert set(target.values()) == {"Answered: 403 denied"}, "no rule"
        assert set(metadata.values()) == {"Answered: 403 denied"}
        assert (process["host"], process["host_memory"]) == ("ESRCH", "ENOENT"), "a namespace of its own"
        assert (process["first"], process["first_memory"]) == ("EPERM", "EACCES"), "another domain of Landlock's"
        assert (expired["sent"], foreign["sent"]) == (
            "Answered: 403 placeholder_expired",
            "Answered: 403 placeholder_unknown",
        )
        assert token["gateway"] == "Answered: 401 placeholder_unknown", "a key ends with its command"
        assert port["straight"] == "ECONNREFUSED", "a loopback of its own"
        assert port["proxy"] == "Answered: 403 denied"


def test_the_same_attacks_work_where_the_wall_is_not(spike: Spike) -> None:
    made = spike.made
    assert made.server is not None
    paths = [str(path) for path in (made.home / "vault").iterdir() if path.is_file()]
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        read, scope, process = bare(("credentials", *paths), ("scope", made.socket, "x"), ("process", str(sleeper.pid)))
    finally:
        sleeper.kill()
        sleeper.wait()
    assert paths and all(read[Path(path).name].startswith("done") for path in paths), read
    assert scope["api"].startswith("done") and process["host"].startswith("done"), (scope, process)
    assert not IS_ROOT or process["host_trace"].startswith("done"), process
    own, keyed, target = tried(
        made,
        "alice",
        ("placeholder", f"https://{API}/user", "GH_TOKEN"),
        ("run_token", "OPENAI_API_KEY"),
        ("target", f"https://{API}/user", "192.0.2.7"),
    )
    assert own["sent"].startswith("done") and keyed["gateway"].startswith("done"), (own, keyed)
    assert all(outcome.startswith("done") for outcome in target.values()), target
    assert spike.github.seen[-3][1] == f"token {TOKEN}"
    with held_by(made, "bob") as bobs:
        [port] = tried(made, "bob", ("port", *bobs["ports"].split()))
        assert port["straight"].startswith("done"), port
