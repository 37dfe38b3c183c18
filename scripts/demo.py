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

from ringfence.bench import processes
from ringfence.bench.throwaway import CommandFailed, Installation, installation

PROJECT = Path(__file__).resolve().parent.parent
ACCEPTED = {
    "no-landlock-scope": "this kernel's Landlock cannot scope signals: a command can end the loop of its own box",
    "no-cgroup": "no cgroup is delegated to this account: no memory limit for a box as a whole, and pause means stop",
    "shared-uid": "no subordinate ids: both boxes run under one host id, so only namespaces keep them apart",
    "no-landlock": "this kernel cannot scope signals: a command can end the agent loop of its own box",
    "no-disk-quota": "an ordinary account cannot bound the size of a box's files: they are counted, a box above is stopped",
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
            "python3 -c 'import urllib.request as u; u.urlopen(\"https://1.1.1.1/\", timeout=10)'",
            "network namespace, whose only way out is the egress worker: no rule lets this out",
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


# A request whose credential is the first argument: prints why it was refused.
REQUEST = """import sys, urllib.error, urllib.request as u
request = u.Request("https://api.example.com/", headers={"Authorization": "Bearer " + sys.argv[1]})
try:
    u.urlopen(request, timeout=10)
except urllib.error.HTTPError as error:
    print(error.headers["X-Egress-Reason"])
"""


def credential(demo: Installation) -> None:
    heading("alice's token never enters her box")
    token = "ghp_" + "realtokenofalice".ljust(36, "0")
    demo.ok("secret", "set", "alice", "github", "--recipe", "github", stdin=token.encode())
    note("alice$ printf %s TOKEN | ringfence secret set alice github --recipe github")
    standin = shell(demo, "alice", "printenv GITHUB_TOKEN")[1]
    note(f"in her box GITHUB_TOKEN is {standin}")
    check("EXAMPLE" in standin and token not in standin, "her commands have a placeholder, as long as a token")
    environments = "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep ^GITHUB_TOKEN="
    found = shell(demo, "alice", environments)[1].split()
    check(found, f"who looks through her processes finds {found[0] if found else 'nothing'}")
    check(all("EXAMPLE" in each for each in found), "of this very command: each has its own, and the token is in none")
    for user in QUESTIONS:
        demo.ok("egress", "allow", user, "api.example.com")
        demo.ok("files", "put", user, "request.py", "-", stdin=REQUEST.encode())
    tries = (
        ("alice", '"$GITHUB_TOKEN"', "placeholder_misplaced", "it is bound to GitHub, and goes nowhere else"),
        ("bob", standin, "placeholder_unknown", "for bob it stands for nothing"),
    )
    for user, word, reason, why in tries:
        output = shell(demo, user, f"python3 request.py {word}")[1]
        note(f"{user}$ python3 request.py {word}")
        check(output == reason, f"refused inside the box's own TLS: {output}: {why}")


def until(name: str) -> str:
    """A command that waits for a file, so that what happens meanwhile does not depend on how fast this host is."""
    return f"until [ -e {name} ]; do sleep 0.1; done"


def accepted(demo: Installation, words: str, count: int) -> None:
    """Waits until so many messages with these words are in the thread."""
    deadline = time.monotonic() + 60
    while True:
        events = demo.ok("events", "demo", "--as", "alice", "--json").json()["events"]
        if sum(event["kind"] == "message" and words in event["body"]["text"] for event in events) >= count:
            return
        if time.monotonic() > deadline:
            raise Failed(f"{count} messages with {words!r} were not accepted within 60 s")
        time.sleep(0.1)


def steer(demo: Installation) -> None:
    heading("alice adds something while her turn runs; bob tries to")
    first = ask("Wait until I say so.", f"{until('go-on')}; echo first >> steps.txt")
    process = demo.popen("say", "--as", "alice", "--thread", "demo", "--json", first)
    note(f"alice> {first}")
    processes.first_of(until("go-on"))
    said = {}
    for user, word in (("bob", "from bob"), ("alice", "second")):
        text = ask("One more thing:", f"echo {word} >> steps.txt")
        note(f"{user} (steer)> {text}")
        said[user] = demo.popen("say", "--as", user, "--thread", "demo", "--mode", "steer", "--json", text)
    accepted(demo, "One more thing:", len(said))
    demo.ok("files", "put", "alice", "go-on", "-", stdin=b"")
    turn = json.loads(process.communicate(timeout=60)[0])
    answers = {user: json.loads(client.communicate(timeout=60)[0]) for user, client in said.items()}
    note(f"agent> {turn['reply']}")
    check(answers["alice"]["turn"] == turn["turn"], "what alice added joined the turn that was under way")
    check(
        answers["bob"]["turn"] != turn["turn"], "what bob said became a turn of his own: no steer reaches another's run"
    )
    for user, wanted in (("alice", "first\nsecond\n"), ("bob", "from bob\n")):
        check(demo.ok("files", "get", user, "steps.txt", "-").text == wanted, f"each worked in the own box: {user}'s")
    hidden = demo.ok("run", "show", turn["run"], "--as", "bob", "--json").json()
    check("steps.txt" not in json.dumps(hidden), "bob sees that alice's run was there, not what it did")


def killed_loop(demo: Installation) -> None:
    heading("The agent loop is killed with SIGKILL in mid-turn")
    idle = processes.idle_forks(demo.popen("exec", "alice", "--", "sleep", "61.75"), "61.75")
    wait = until("loop-is-gone")
    text = ask("Once, please.", f"{wait}; echo counted >> counted.txt", "cat counted.txt")
    client = demo.popen("say", "--as", "alice", "--thread", "demo", "--json", text)
    note(f"alice> {text}")
    loops = processes.forks_of(processes.first_of(wait)) - idle
    assert demo.server is not None
    for pid in loops:
        processes.kill(pid, demo.server.pid)
    check(loops, f"killed: {sorted(loops)}, the loop of this turn, while its command runs")
    demo.ok("files", "put", "alice", "loop-is-gone", "-", stdin=b"")
    answer = json.loads(client.communicate(timeout=60)[0])
    note(f"agent> {answer['reply']}")
    check(answer["status"] == "completed", "a new loop took over from the checkpoint, and the turn completed")
    check(demo.ok("files", "get", "alice", "counted.txt", "-").text == "counted\n", "its command ran exactly once")
    run = demo.ok("run", "show", answer["run"], "--json").json()
    check(run["attempts"] == 2, "two attempts, one run, one reply")


def survive(demo: Installation) -> None:
    heading("The server is killed with SIGKILL while everybody works")
    for user in QUESTIONS:
        demo.shell(user, "nohup sh -c 'while :; do echo tick >> ticks; sleep 0.1; done' >/dev/null 2>&1 &")
    wait = until("server-is-back")
    text = ask("One slow thing, please, exactly once.", f"{wait}; echo done >> once.txt", "cat once.txt")
    words = ("say", "--as", "alice", "--thread", "demo", "--key", "slow-1", "--json", text)
    boxes = {user: demo.box(user)["box"] for user in QUESTIONS}
    interrupted = demo.popen(*words)
    processes.first_of(wait)
    note(f"killed: {demo.kill()}; boxes and their jobs go on without a server")
    if os.geteuid() == 0:  # root can look into the trees from outside
        trees = {user: demo.home / "boxes" / box / "tree" / "home" / "ticks" for user, box in boxes.items()}
        before = {user: path.stat().st_size for user, path in trees.items()}
        time.sleep(0.5)
        for user, path in trees.items():
            check(path.stat().st_size > before[user], f"{user}'s background job kept running with no server at all")
    demo.start()
    note(demo.lines[-1])
    demo.ok("files", "put", "alice", "server-is-back", "-", stdin=b"")
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


def record(demo: Installation) -> None:
    heading("What the thread's durable record says of alice's last turn, as bob may see it")
    events = demo.ok("events", "demo", "--as", "bob", "--json").json()["events"]
    check([event["cursor"] for event in events] == list(range(1, len(events) + 1)), "no event is missing or twice")
    last = max(event["cursor"] for event in events if event["kind"] == "run.ended")
    turn = next(event["turn"] for event in events if event["cursor"] == last)
    first = min(event["cursor"] for event in events if event["turn"] == turn)
    note(demo.ok("events", "demo", "--as", "bob", "--after", str(first - 1)).text)
    ends = [event for event in events if event["turn"] == turn and event["kind"] in ("reply", "run.ended")]
    check(len(ends) == 2, "one reply and one end, though the server was killed in between")


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
            credential(demo)
            steer(demo)
            killed_loop(demo)
            survive(demo)
            record(demo)
            for user in QUESTIONS:
                demo.ok("box", "stop", user)
    except (Failed, CommandFailed) as claim:
        print(f"\nDEMO FAILED: {claim}", file=sys.stderr)
        return 1
    heading(f"Done in {time.monotonic() - started:.1f} s: every claim above was checked.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
