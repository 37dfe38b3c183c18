"""The self-check's questions about commands: streams, limits, time-outs, signals, environment (cases A). Declarations."""

from __future__ import annotations

import hashlib
import time

from ringfence.prove.self_check import Check, Found, Place, equal, refused


def _output(place: Place) -> Found:
    done = place.sh("echo foo; echo bar; echo err >&2")
    return equal((done["stdout"], done["stderr"], done["exit_code"]), ("foo\nbar\n", "err\n", 0))


def _timeout(place: Place) -> Found:
    began = time.monotonic()
    done = place.sh("echo x | cat; sleep 30", timeout=1)
    took = time.monotonic() - began
    return done["reason"] == "timeout" and done["stdout"] == "x\n" and took < 10, f"{done['reason']} after {took:.1f} s"


def _tree_dead(place: Place) -> Found:
    place.sh("while :; do echo . >> grows; sleep .1; done & sleep 30", timeout=1)
    sizes = [place.out("wc -c < grows").strip()]
    time.sleep(0.6)
    sizes.append(place.out("wc -c < grows; rm grows").strip())
    return sizes[0] == sizes[1] != "", " then ".join(sizes)


def _not_executable(place: Place) -> Found:
    done = place.exec(["/etc/passwd"])
    return done["reason"] == "spawn_failed", f"{done['reason']}: {done.get('message', '')}"


def _no_such_program(place: Place) -> Found:
    done = place.exec(["no-such-program-at-all"])
    return done["reason"] == "spawn_failed", str(done["reason"])


def _user(place: Place) -> Found:
    return equal(place.out("id -u; id -G; id -un").split(), ["1000", "1000", "user"])


def _other_user(place: Place) -> Found:
    done = place.sh("su nobody -s /bin/sh -c id </dev/null || setpriv --reuid 0 id || exit 9")
    return done["exit_code"] != 0 and "uid=0" not in done["stdout"], f"exit {done['exit_code']}"


def _stranger(place: Place) -> Found:
    return refused(lambda: place.client.exec("nobody-of-that-name", ["true"]), "not_found")


def _environment(place: Place) -> Found:
    return equal(place.exec(["printenv", "WORDS"], env={"WORDS": "two words é"})["stdout"], "two words é\n")


def _kept(place: Place, stream: int) -> Found:
    done = place.sh(f"{{ head -c 20000000 /dev/zero | tr '\\0' x; echo END; }} >&{stream}", timeout=50)
    name = "stdout" if stream == 1 else "stderr"
    text, dropped = str(done[name]), int(done[f"{name}_dropped"])
    return text.rstrip().endswith("END") and len(
        text
    ) < 1 << 20 and dropped > 19_000_000, f"{dropped} bytes counted out"


def _input(place: Place) -> Found:
    data = b"\xc3\x28" * (4 << 20)
    done = place.exec(["sha256sum"], stdin=data)
    return equal(done["stdout"].split()[0], hashlib.sha256(data).hexdigest())


def _input_unread(place: Place) -> Found:
    return equal(place.exec(["true"], stdin=bytes(4 << 20))["exit_code"], 0)


def _binary(place: Place) -> Found:
    done = place.sh("printf '\\303\\050'")
    return equal(done.get("stdout_b64"), "wyg=")


def _background(place: Place) -> Found:
    began = time.monotonic()
    done = place.sh("sleep 60 & echo done")
    took = time.monotonic() - began
    place.sh("pkill sleep")
    return done["stdout"] == "done\n" and done["exit_code"] == 0 and took < 15, f"{took:.1f} s"


def _trap(place: Place) -> Found:
    done = place.sh("trap 'echo bye; exit 3' TERM; while :; do sleep .1; done", timeout=1)
    return "bye" in done["stdout"], f"{done['stdout']!r}, {done['reason']}"


def _first_facts(place: Place) -> Found:
    words = place.out("nice; ulimit -c; pwd").split()
    return words[0] == "0" and words[1] == "0", " ".join(words)


def _zombies(place: Place) -> Found:
    script = (
        "for i in $(seq 100); do sh -c '(sleep .05 &)'; done; sleep .5; grep -l '^State:.Z' /proc/[0-9]*/status | wc -l"
    )
    return equal(place.out(f"({script}) 2>/dev/null").strip(), "0")


def _many_ends(place: Place) -> Found:
    return equal({place.exec(["false"])["exit_code"] for _ in range(50)}, {1})


def _out_of_memory(place: Place) -> Found:
    limit = int(place.client.box(place.user)["limits"]["memory"])
    done = place.exec(["python3", "-c", f"x = b'1' * {3 * limit}"], timeout=50)
    alive = place.sh("true")["exit_code"] == 0
    return alive and (
        done["reason"] == "oom" or "MemoryError" in done["stderr"]
    ), f"{done['reason']}, then alive: {alive}"


def _lock(place: Place) -> Found:
    return equal(place.exec(["python3", "-c", "import multiprocessing as m; m.Lock(); print('ok')"])["stdout"], "ok\n")


def _cwd(place: Place, cwd: str | None, expected: str) -> Found:
    return equal(place.exec(["pwd"], cwd=cwd)["stdout"], expected + "\n")


CHECKS = (
    Check("exec-output", "both streams, each in order", _output),
    Check("exec-timeout", "A1: reason timeout soon after it, what was said is kept", _timeout),
    Check("exec-timeout-tree", "A2, A4: every process of the command is dead", _tree_dead),
    Check("exec-permission", "spawn_failed for a file that is no program", _not_executable),
    Check("exec-no-program", "spawn_failed", _no_such_program),
    Check("exec-user", "uid 1000, group 1000, named user", _user),
    Check("exec-other-user", "no command becomes another user", _other_user),
    Check("exec-unknown-user", "not_found", _stranger),
    Check("exec-env", "the variable as it was given", _environment),
    Check("exec-stdout-limited", "A16: head and tail kept, the rest counted", lambda place: _kept(place, 1)),
    Check("exec-stderr-limited", "the same for stderr", lambda place: _kept(place, 2)),
    Check("exec-stdin", "A13: 8 MiB arrive byte for byte", _input),
    Check("exec-stdin-unread", "A13: a broken pipe is not fatal", _input_unread),
    Check("exec-stdin-none", "A11: /dev/null", lambda p: equal(p.out("cat; echo ended"), "ended\n")),
    Check("exec-binary", "A19: base64 of what is no UTF-8", _binary),
    Check("exec-unicode", "text as it is", lambda p: equal(p.exec(["echo", "✨ é\n-n"])["stdout"], "✨ é\n-n\n")),
    Check("exec-exit-code", "7", lambda p: equal(p.sh("exit 7")["exit_code"], 7)),
    Check("exec-signal", "9", lambda p: equal(p.sh("kill -9 $$")["signal"], 9)),
    Check("exec-sigpipe", "A30: default dispositions", lambda p: equal(p.out("yes | head -1"), "y\n")),
    Check("exec-background", "A10: back at once", _background),
    Check("exec-trap", "A25: TERM first, and its trap runs", _trap),
    Check("exec-first-facts", "A28: the box's nice and core limit", _first_facts),
    Check("exec-zombies", "A7: none left", _zombies),
    Check("exec-ends", "A14: fifty times status 1", _many_ends),
    Check(
        "exec-long",
        "A21: an argument of 100 KiB",
        lambda p: equal(len(p.exec(["echo", "x" * 102400])["stdout"]), 102401),
    ),
    Check("exec-oom", "A29: reason oom, the box survives", _out_of_memory),
    Check("exec-lock", "C55: multiprocessing.Lock() works", _lock),
    Check("cwd-unspecified", "HOME", lambda place: _cwd(place, None, "/home/user")),
    Check("cwd-absolute", "/usr/bin", lambda place: _cwd(place, "/usr/bin", "/usr/bin")),
    Check("cwd-relative", "invalid: a cwd is absolute", lambda p: refused(lambda: p.exec(["pwd"], cwd="x"), "invalid")),
)
