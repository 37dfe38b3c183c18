"""The main job on embedded defaults: two people, one agent, two boxes. Prints a transcript, checks every claim, exits 0.

Uses the command line only, as a person would, against a throw-away installation that it removes at the end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ringfence.bench.throwaway import CommandFailed, Installation, installation

PROJECT = Path(__file__).resolve().parent.parent
ACCEPTED = {
    "no-landlock-scope": "this kernel's Landlock cannot scope signals: a command can end the loop of its own box",
    "no-cgroup": "no cgroup is delegated to this account: no memory limit for a box as a whole, and pause means stop",
    "shared-uid": "no subordinate ids: both boxes run under one host id, so only namespaces keep them apart",
    "no-landlock": "this kernel cannot scope signals: a command can end the agent loop of its own box",
    "no-pidfs": "this kernel has no pidfs: a box is recognised by pid and start time only",
    "no-nft": "no nf_tables: connections are refused by the missing route",
}


def heading(text: str) -> None:
    print(f"\n== {text}", flush=True)


def note(text: str) -> None:
    for line in text.rstrip().splitlines():
        print(f"   {line}", flush=True)


class Failed(AssertionError):
    """A claim of the demo that did not hold."""


def check(holds: object, claim: str) -> None:
    if not holds:
        raise Failed(claim)
    note(f"[checked] {claim}")


def ask(question: str, *commands: str) -> str:
    """A message to the scripted provider, which is no model: lines that begin with `$ ` become shell steps."""
    return "\n".join([question, *(f"$ {command}" for command in commands)])


QUESTIONS = {
    "alice": ask(
        "How much Python do we have? Please keep the answer in result.txt.",
        "git clone -q project.bundle project && sleep 1",
        "python3 project/scripts/census.py project .py > result.txt",
        "cat result.txt",
    ),
    "bob": ask(
        "How much prose do we have? Please keep the answer in result.txt.",
        "git clone -q project.bundle project && sleep 1",
        "python3 project/scripts/census.py project .md > result.txt",
        "cat result.txt",
    ),
}


def census(suffix: str) -> str:
    """What the agents should find: the same script over the same commit, outside any box."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "project")
        subprocess.run(["git", "clone", "-q", str(PROJECT), str(clone)], check=True)
        script = [sys.executable, str(clone / "scripts" / "census.py"), str(clone), suffix]
        return subprocess.run(script, check=True, capture_output=True, text=True).stdout


def people(demo: Installation) -> None:
    heading("Two people, one thread, one agent")
    for user in QUESTIONS:
        demo.ok("user", "add", user)
    demo.ok("thread", "add", "demo", "--member", "alice", "--member", "bob", "--parallel")
    bundle = subprocess.run(
        ["git", "-C", str(PROJECT), "bundle", "create", "-q", "-", "HEAD"], check=True, capture_output=True
    ).stdout
    for user in QUESTIONS:
        demo.ok("files", "put", user, "project.bundle", "-", stdin=bundle)
    note(f"alice and bob exist; each has the project as a git bundle of {len(bundle) // 1024} KiB in the own box")


def turns(demo: Installation) -> None:
    heading("Each asks the agent; both boxes work at once")
    said = {
        user: demo.popen("say", "--as", user, "--thread", "demo", "--json", text) for user, text in QUESTIONS.items()
    }
    for user, process in said.items():
        note(f"{user}> {QUESTIONS[user]}")
        out, err = process.communicate(timeout=120)
        answer = json.loads(out)
        check(process.returncode == 0 and answer["status"] == "completed", f"{user}'s turn completed {err.decode()}")
        note(f"agent> {answer['reply']}")
    events = demo.ok("events", "demo", "--json").json()["events"]
    started = [event["cursor"] for event in events if event["kind"] == "run.started"]
    ended = [event["cursor"] for event in events if event["kind"] == "run.ended"]
    check(max(started[:2]) < min(ended), "both runs were under way at the same time")
    for user, suffix in (("alice", ".py"), ("bob", ".md")):
        result = demo.ok("files", "get", user, "result.txt", "-").text
        check(result == census(suffix), f"{user}'s result.txt holds {user}'s own answer: {result.strip()}")


def attacks(demo: Installation) -> None:
    heading("bob tries to reach what is not his")
    alice, bob = demo.box("alice"), demo.box("bob")
    secret = "only-in-alices-environment"
    job = demo.popen("exec", "alice", "--env", f"TOKEN={secret}", "--", "sleep", "30")
    tree = f"{demo.home}/boxes/{alice['box']}/tree/home/result.txt"
    key = f"{demo.home}/vault/master.key"
    tries = (
        ("read alice's file", f"cat {tree}", "mount namespace: her tree does not exist in bob's view"),
        ("find it anywhere", f"find / -path '*{alice['box']}*' 2>/dev/null | grep .", "mount namespace"),
        (
            "read her processes' environment",
            f"cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep {secret}",
            "pid namespace: her processes have no number in bob's box",
        ),
        ("read the server's key", f"cat {key}", "mount namespace; behind it 0600 below a 0700 directory"),
        (
            "reach the network",
            "python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 443), 3)'",
            "network namespace: no way out, refused at once",
        ),
        ("become root", "unshare -Ur true", "seccomp: no new namespaces"),
    )
    for what, script, wall in tries:
        code, output = shell(demo, "bob", script)
        note(f"bob$ {script}")
        note(f"     -> exit {code}: {output.splitlines()[-1] if output else '(nothing)'}")
        check(code != 0 and secret not in output, f"{what}: stopped by the {wall}")
    code, output = shell(demo, "alice", f"cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep {secret}")
    check(code == 0 and secret in output, "(control: in alice's own box the same command finds it)")
    if alice["uid"] != bob["uid"]:
        check(True, f"behind those walls: host ids {alice['uid']} and {bob['uid']}, neither of them the server's")
    job.terminate()
    job.communicate(timeout=30)


def survive(demo: Installation) -> None:
    heading("The server is killed with SIGKILL while everybody works")
    for user in QUESTIONS:
        demo.shell(user, "nohup sh -c 'while :; do echo tick >> ticks; sleep 0.1; done' >/dev/null 2>&1 &")
    text = ask("One slow thing, please, exactly once.", "sleep 3; echo done >> once.txt", "cat once.txt")
    words = ("say", "--as", "alice", "--thread", "demo", "--key", "slow-1", "--json", text)
    boxes = {user: demo.box(user)["box"] for user in QUESTIONS}
    interrupted = demo.popen(*words)
    deadline = time.monotonic() + 20
    while demo.shell("alice", "pgrep -f '[e]cho done' >/dev/null").code:
        if time.monotonic() > deadline:
            raise Failed("the slow step did not start within 20 s")
    note(f"killed: {demo.kill()}; boxes and their jobs go on without a server")
    if os.geteuid() == 0:  # root can look into the trees from outside
        trees = {user: demo.home / "boxes" / box / "tree" / "home" / "ticks" for user, box in boxes.items()}
        before = {user: path.stat().st_size for user, path in trees.items()}
        time.sleep(0.5)
        for user, path in trees.items():
            check(path.stat().st_size > before[user], f"{user}'s background job kept running with no server at all")
    demo.start()
    note(demo.lines[-1])
    answer = json.loads(interrupted.communicate(timeout=60)[0])
    check(answer["status"] == "completed", "alice's client waited, and the turn that was under way completed")
    note(f"agent> {answer['reply']}")
    check(demo.ok(*words).json()["turn"] == answer["turn"], "the same message under the same key is the same turn")
    check(demo.ok("files", "get", "alice", "once.txt", "-").text == "done\n", "and its step ran exactly once")
    for user in QUESTIONS:
        first = int(shell(demo, user, "wc -l < ticks")[1])
        time.sleep(0.5)
        check(int(shell(demo, user, "wc -l < ticks")[1]) > first, f"{user}'s box was adopted, its job still runs")
    check(all(demo.box(user)["generation"] == 1 for user in QUESTIONS), "no box was started a second time")


def shell(demo: Installation, user: str, script: str) -> tuple[int, str]:
    """A script in the user's box: (exit code, what it printed)."""
    result = demo.shell(user, script)
    return result.code, (result.text + result.errors).strip()


def main() -> int:
    started = time.monotonic()
    try:
        with installation(name="demo") as demo:
            heading("A fresh installation")
            note(demo.lines[-1])
            for weak in demo.ok("status", "--json").json()["weak"]:
                note(f"accepted on this host: {weak}: {ACCEPTED.get(weak, 'see `ringfence doctor`')}")
            people(demo)
            turns(demo)
            attacks(demo)
            survive(demo)
            for user in QUESTIONS:
                demo.ok("box", "stop", user)
    except (Failed, CommandFailed) as claim:
        print(f"\nDEMO FAILED: {claim}", file=sys.stderr)
        return 1
    heading(f"Done in {time.monotonic() - started:.1f} s: every claim above was checked.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
