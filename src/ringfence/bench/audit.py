"""`ringfence bench audit`: how long a walk along 100,000 rows of the audit takes, and how much memory, against hashing them.

The rows are made by the kernel's own functions and put into a database of their own; the walk is that of `audit verify` on a
stopped store, in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ringfence.bench.figures import Row, at_most
from ringfence.bench.throwaway import CommandFailed
from ringfence.host.app import bootstrap
from ringfence.host.kernel.audit import GENESIS, OPEN, Head, Lane, head_mac, key_id, row_hash, row_mac
from ringfence.host.kernel.settings import Settings

ROWS = 100_000
MOST_SECONDS, MOST_MIB = 10, 200
_CHAIN, _KEY = "krn_bench", b"k" * 32
_WALK = """
import asyncio, json, resource, sys, time
from ringfence.host.app import read_audit
from ringfence.host.kernel.settings import Settings
settings = Settings().at(sys.argv[1], "i" * 16, "shared")
begun = time.perf_counter()
report = asyncio.run(read_audit(settings, {"verb": "verify"}))
took = time.perf_counter() - begun
print(json.dumps({"seconds": took, "kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "report": report}))
"""


def run(say: Callable[[str], None]) -> tuple[list[Row], list[str]]:
    """(rows, notes). CommandFailed."""
    with tempfile.TemporaryDirectory(prefix="rf-bench-") as name:
        home = Path(name)
        say(f"{ROWS} rows")
        _state(home)
        asyncio.run(bootstrap(Settings().at(str(home), "i" * 16, "shared")))
        _fill(home / "db" / "ringfence.db")
        say("a walk along them")
        done = subprocess.run([sys.executable, "-c", _WALK, name], capture_output=True, text=True, check=False)
        if done.returncode:
            raise CommandFailed(f"the walk ended with {done.returncode}: {done.stderr[-2000:]}")
        found = json.loads(done.stdout)
    report = found["report"]
    if not report["ok"] or report["rows"] != ROWS:
        raise CommandFailed(f"the walk did not find {ROWS} whole rows: {report}")
    seconds = float(found["seconds"])
    return [
        at_most(f"audit verify of {ROWS} rows", seconds, "s", MOST_SECONDS, rows_a_second=round(ROWS / seconds)),
        at_most("memory of it at its peak", found["kib"] / 1024, "MiB", MOST_MIB),
    ], []


def _state(home: Path) -> None:
    for folder in ("db", "vault"):
        (home / folder).mkdir(mode=0o700)
    fd = os.open(home / "vault" / "audit.key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "wb") as file:
        file.write(_KEY)


def _rows() -> Iterator[tuple[object, ...]]:
    """As the columns of the table, an act of an operator each."""
    previous, begun = GENESIS, datetime(2026, 1, 1, tzinfo=UTC)
    actor = {"user": None, "name": None, "tenant": None, "operator": True, "via": "socket:0", "impersonated": False}
    for seq in range(1, ROWS + 1):
        lane, action = (Lane.CHAIN.value, OPEN) if seq == 1 else (Lane.ACT.value, "box.start")
        at, subject, details = begun + timedelta(seconds=seq), f"box:{seq}", {"n": seq, "why": "a reason of some words"}
        fresh = row_hash(previous, (_CHAIN, seq), at, lane, actor, action, subject, None, details)
        stamp = at.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
        texts = (json.dumps(actor), action, subject, None, json.dumps(details))
        yield (_CHAIN, seq, stamp, lane, *texts, previous, fresh, row_mac(_KEY, _CHAIN, seq, fresh))
        previous = fresh


def _fill(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        last = GENESIS
        columns = "chain, seq, at, lane, actor, action, subject, ref, details, previous, hash, mac"
        statement = f"INSERT INTO audit_rows ({columns}) VALUES ({', '.join('?' * 12)})"
        for row in _rows():
            connection.execute(statement, row)
            last = str(row[10])
        head = Head(_CHAIN, 1, key_id(_KEY), ROWS, last, False, None, 0, "", "")
        connection.execute(
            "INSERT INTO audit_chains (chain, generation, key, opened_at, seen_at, seq, hash, news, ended, closed_by, "
            "cut_seq, cut_hash, mac) VALUES (?, 1, ?, '2026-01-01', '2026-01-01', ?, ?, ?, 0, NULL, 0, '', ?)",
            (_CHAIN, head.key, ROWS, last, ROWS, head_mac(_KEY, head)),
        )
        connection.commit()
