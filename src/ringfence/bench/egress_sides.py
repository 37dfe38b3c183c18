"""The two sides of `bench egress`: an installation whose box leads to a server of ours, and the same program straight to it.

The worker is the product's, closed in, its listeners in the box; its copy of the package differs in one thing, how many requests a
second a box may make. Must never be given a rule or a credential that anybody else has.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringfence.bench import egress_client
from ringfence.bench.throwaway import CommandFailed, Installation, remove, state_base
from ringfence.host.egress.configuration import Bounds

USER, HOST, MODEL = "alice", "bench.test", "bench"
FIRSTS = tuple(f"h{n}.bench.test" for n in range(20))  # 30 names a minute get a certificate
PYTHON = "/usr/bin/python3"
BUNDLE = "/etc/ringfence/bundle.pem"
SECONDS = 900.0
_REST_SECONDS = 10.0  # a worker looks every second whether it is idle, and ends in some milliseconds
_PACKAGE = Path(__file__).parents[1]
_BOUNDS = {"requests_second: float = 200.0": "requests_second: float = 1e6", "burst: int = 400": "burst: int = 10**6"}


@dataclass(frozen=True, slots=True)
class Upstream:
    tls: int
    plain: int
    ca: Path


@dataclass(frozen=True, slots=True)
class Sides:
    made: Installation
    upstream: Upstream

    def box(self, what: str, **more: Any) -> dict[str, Any]:
        """By the worker."""
        ask = {"what": what, "host": HOST, "ca": BUNDLE, "to": None, **more}
        done = self.made.run(
            "exec", USER, "--", "python3", "-I", "-c", _program(), stdin=json.dumps(ask).encode(), limit=SECONDS
        )
        return _said(done.code, done.out, done.err)

    def direct(self, what: str, port: int = 0, **more: Any) -> dict[str, Any]:
        """Without one."""
        ask = {
            "what": what,
            "host": HOST,
            "ca": str(self.upstream.ca),
            "to": ["127.0.0.1", port or self.upstream.tls],
            **more,
        }
        return on_host(ask)

    def worker(self) -> int:
        """Its pid. CommandFailed: there is none, or not one."""
        found = self.workers()
        if len(found) != 1:
            raise CommandFailed(f"the box has {len(found)} workers")
        return found[0]

    def workers(self) -> list[int]:
        uid = int(self.made.box(USER)["uid"]) + 1
        return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and _uid(path) == uid]

    def at_rest(self) -> int:
        """Bytes that the box's way out has to itself once nothing was asked for longer than a worker stays: of what runs then."""
        until = time.monotonic() + Bounds().idle_ends + _REST_SECONDS
        while (found := self.workers()) and time.monotonic() < until:
            time.sleep(0.5)
        return sum(own_bytes(pid) for pid in found)


def on_host(ask: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [PYTHON, "-I", "-c", _program()],
        input=json.dumps(ask).encode(),
        capture_output=True,
        env={"PATH": "/usr/bin:/bin"},
        timeout=SECONDS,
        check=False,
    )
    return _said(done.returncode, done.stdout, done.stderr)


def _program() -> str:
    return Path(egress_client.__file__).read_text()


def _said(code: int, out: bytes, err: bytes) -> dict[str, Any]:
    if code:
        raise CommandFailed(f"the asking program ended with {code}: {err.decode(errors='replace')[-800:]}")
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def _uid(path: Path) -> int:
    try:
        found = re.search(r"^Uid:\t(\d+)", (path / "status").read_text(), re.M)
    except OSError:
        return -1
    return int(found[1]) if found else -1


def cpu_seconds(pid: int) -> float:
    """On a processor so far, all threads (proc_pid_schedstat: nanoseconds)."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def own_bytes(pid: int) -> int:
    """What only this process has in memory (USS)."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(kib) << 10 for kib in re.findall(r"^Private_(?:Clean|Dirty):\s+(\d+) kB$", text, re.M))


# --- made and taken away ----------------------------------------------------------------------------------------------


@contextmanager
def sides() -> Iterator[Sides]:
    """CommandFailed: not root, or no such server here."""
    if os.geteuid() != 0:
        raise CommandFailed("bench egress needs root: it looks into the worker")
    with ExitStack() as stack:
        root = Path(tempfile.mkdtemp(prefix="ringfence-bench-egress-", dir=state_base()))
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        root.chmod(0o711)
        upstream = stack.enter_context(_serving(root))
        _copied(root / "site")
        made = Installation(root / "state", site=root / "site")
        stack.callback(remove, made)
        made.ok("init")
        (made.home / "ringfence.toml").write_text(_settings(upstream))
        made.start()
        _person(made)
        yield Sides(made, upstream)


@contextmanager
def _serving(folder: Path) -> Iterator[Upstream]:
    words = [sys.executable, "-m", "ringfence.bench.egress_upstream", str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            ports = json.loads(process.stdout.readline() or "{}")
            if not ports:
                raise CommandFailed("the server to be asked did not come up")
            (folder / "ca.pem").chmod(0o644)
            yield Upstream(ports["tls"], ports["plain"], folder / "ca.pem")
        finally:
            process.kill()


def _copied(site: Path) -> None:
    shutil.copytree(_PACKAGE, site / "ringfence", ignore=shutil.ignore_patterns("__pycache__"))
    path = site / "ringfence" / "host" / "egress" / "configuration.py"
    text = path.read_text()
    for before, after in _BOUNDS.items():
        if text.count(before) != 1:
            raise CommandFailed(f"no bound is written {before!r}")
        text = text.replace(before, after)
    path.write_text(text)


def _settings(upstream: Upstream) -> str:
    pins = ", ".join(f'"{host}=127.0.0.1:{upstream.tls}"' for host in (HOST, *FIRSTS))
    return f"""[egress]
pins = [{pins}]
root_ca = "{upstream.ca}"
rules = ["allow {HOST}", "allow *.{HOST}"]
[[model_upstream]]
alias = "{MODEL}"
provider = "openai"
base_url = "http://127.0.0.1:{upstream.plain}/v1"
model = "none"
key = "bench-key"
"""


def _person(made: Installation) -> None:
    made.ok("user", "add", USER)
    made.ok("secret", "set", USER, "bench-key", "--tenant-wide", stdin=b"key-of-no-provider")
    words = ("--recipe", "bearer", "--host", HOST, "--env", "BENCH_TOKEN", "--as", USER)
    made.ok("secret", "set", USER, "bench", *words, stdin=b"x" * 40)
