"""F16: the machine stops. What was acknowledged is on disk, whichever sync was the last.

A SIGKILL before the n-th sync ends the process between any two of them. A power loss takes more: what was written and not
synced may be gone, in any part. So a writer's own system calls are recorded, and the files are put together again as a disk
may hold them at each moment: everything that was synced, and any of the rest.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.clocks import HandClock
from tests.support.store import a_team, opened
from tests.support.store_work import Db

pytestmark = pytest.mark.root  # strace may be forbidden to others

ROOT = Path(__file__).parents[2]
NAME = "ringfence.db"
MESSAGES = 6
FEW = 3  # where each sync costs a process of its own, some 0.8 s
SEEDS = 6  # of what is kept of the writes that were not synced: none, all, and some four times
# Says what is acknowledged, one write(2) each: the recorder sees it in its place among the syncs.
WRITER = """
import asyncio, os, sys
from pathlib import Path
from tests.support.store import opened
def weaken(connection):
    connection.connection.dbapi_connection.execute("PRAGMA synchronous=NORMAL")  # not within a transaction
async def main():
    async with opened(Path(sys.argv[1]), first=1 << 41) as store:
        if sys.argv[3] == "normal":
            await store._database._engines.write.run(weaken)
        [tenant] = await store.tenants.all()
        thread = await store.threads.get(tenant.id, "#team")
        alice = await store.users.get("default", "alice")
        for number in range(int(sys.argv[2])):
            said = await store.turns.accept(thread.id, alice.id, f"word {number}", "queue", f"key {number}")
            os.write(1, f"ack {said.message.cursor} {number}\\n".encode())
asyncio.run(main())
"""


async def made(folder: Path) -> Path:
    folder.mkdir()
    async with a_team(folder):
        pass
    return folder


def traced(
    folder: Path, options: list[str], how: str = "full", messages: int = MESSAGES
) -> subprocess.CompletedProcess[str]:
    words = ["strace", "-f", "-qq", *options, sys.executable, "-c", WRITER, str(folder), str(messages), how]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "PATH": os.environ["PATH"]}
    return subprocess.run(words, env=environment, check=False, capture_output=True, text=True, timeout=300)


async def test_killed_before_each_sync(tmp_path: Path) -> None:
    """Until a writer comes to its end; each on a copy of the same database."""
    first = await made(tmp_path / "first")
    kills, most = 0, 0
    for n in range(1, 1000):
        folder = shutil.copytree(first, tmp_path / str(n))
        log = tmp_path / f"{n}.strace"
        inject = f"inject=fdatasync:signal=SIGKILL:when={n}"
        options = ["-o", str(log), "-e", "trace=fdatasync", "-e", inject]
        done = await asyncio.to_thread(traced, folder, options, messages=FEW)
        told = [tuple(map(int, line.split()[1:])) for line in done.stdout.splitlines()]
        await check(folder, told)
        most = max(most, len(told))
        if done.returncode == 0:
            break
        assert "killed by SIGKILL" in log.read_text(), done.stderr
        kills += 1
    assert kills >= FEW, "each acknowledgement has a sync of its own before it"
    assert most == FEW


async def check(folder: Path, told: list[tuple[int, ...]]) -> None:
    async with opened(folder, first=1 << 42) as store:
        [tenant] = await store.tenants.all()
        thread = await store.threads.get(tenant.id, "#team")
        alice = await store.users.get("default", "alice")
        kept = {message.cursor: message.text for message in await store.threads.messages(thread.id, None, 1000)}
        assert {cursor: kept.get(cursor) for cursor, _ in told} == {cursor: f"word {n}" for cursor, n in told}
        again = await store.turns.accept(thread.id, alice.id, f"word {len(told)}", "queue", f"key {len(told)}")
        assert len(kept) in (len(told), len(told) + 1), "at most the one that was under way is there unacknowledged"
        assert again.repeated == (len(kept) > len(told)), "and a retry makes one of it"
    assert await Db(folder, HandClock()).findings() == set()


# --- a disk without what was not synced ------------------------------------------------------------------------------

_CALL = re.compile(r"^(\d+) +(?:<\.\.\. )?(\w+)(\(| resumed>)(.*)$")
_PATH = re.compile(r"^\d+<([^>]*)>")
_DATA = re.compile(r', "((?:\\x[0-9a-f]{2})*)", (\d+), (\d+)')


@dataclass
class Disk:
    """What was synced of each file, and what was written to it since."""

    synced: dict[str, bytearray] = field(default_factory=dict)
    loose: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)

    def write(self, name: str, at: int, data: bytes) -> None:
        self.loose.setdefault(name, []).append((at, data))

    def sync(self, name: str) -> None:
        for at, data in self.loose.pop(name, []):
            _put(self.synced.setdefault(name, bytearray()), at, data)

    def after_power_loss(self, seed: int) -> dict[str, bytes]:
        """Seed 0: nothing that was not synced; 1: all of it; else any part of it, whole sectors or not."""
        chance, found = random.Random(seed), {name: bytearray(content) for name, content in self.synced.items()}
        for name, writes in self.loose.items():
            for at, data in writes:
                if seed == 1 or (seed > 1 and chance.random() < 0.5):
                    half = data if seed == 1 or chance.random() < 0.7 else data[: len(data) // 2]
                    _put(found.setdefault(name, bytearray()), at, half)
        return {name: bytes(content) for name, content in found.items()}


def _put(content: bytearray, at: int, data: bytes) -> None:
    content.extend(bytes(max(0, at + len(data) - len(content))))
    content[at : at + len(data)] = data


def unescaped(text: str) -> str:
    return bytes.fromhex(text.replace("\\x", "")).decode() if "\\x" in text else text


def moments(log: Path, disk: Disk) -> Iterator[tuple[int, int]]:
    """(cursor, number) of each acknowledgement, with `disk` as it was then. A call that strace shows in two halves counts
    as a write when it begins and as a sync when it has ended."""
    under_way: dict[str, str] = {}
    for line in log.read_text().splitlines():
        if (found := _CALL.match(line)) is None:
            continue
        thread, call, half, rest = found.groups()
        path = _PATH.match(rest)
        name = Path(unescaped(path[1])).name if path else under_way.pop(thread, "")
        if call == "write" and half == "(" and rest.startswith("1<"):
            said = unescaped(rest.split('"')[1])
            if said.startswith("ack "):
                _, cursor, number = said.split()
                yield int(cursor), int(number)
        elif call == "pwrite64" and half == "(":
            data = _DATA.search(rest)
            assert data is not None, line[:200]
            disk.write(name, int(data[3]), bytes.fromhex(data[1].replace("\\x", "")))
        elif call in ("fdatasync", "fsync"):
            if "unfinished" in rest:
                under_way[thread] = name
            else:
                disk.sync(name)


def lost(folder: Path, files: dict[str, bytes], told: list[int]) -> list[int]:
    """Numbers of the acknowledged messages that are not there after the start."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    with closing(sqlite3.connect(folder / NAME)) as after:
        assert after.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        kept = {text for (text,) in after.execute("SELECT text FROM messages")}
        gaps = "SELECT count(*) FROM threads t WHERE t.cursor <> (SELECT count(*) FROM events e WHERE e.thread = t.id)"
        assert after.execute(gaps).fetchone() == (0,)
    return [number for number in told if f"word {number}" not in kept]


@pytest.mark.parametrize("how", ["full", "normal"])
async def test_the_power_fails_after_each_acknowledgement(tmp_path: Path, how: str) -> None:
    """`normal` is the control: with a sync for every thousand pages only, what was acknowledged is lost."""
    folder, log = await made(tmp_path / "first"), tmp_path / "log"
    disk = Disk({path.name: bytearray(path.read_bytes()) for path in folder.iterdir() if path.is_file()})
    calls = "trace=pwrite64,write,fdatasync,fsync"
    done = await asyncio.to_thread(traced, folder, ["-y", "-xx", "-s", "70000", "-o", str(log), "-e", calls], how)
    assert done.returncode == 0, done.stderr
    told: list[int] = []
    missing: dict[int, list[int]] = {}
    for _, number in moments(log, disk):
        told.append(number)
        for seed in range(SEEDS):
            files = {name: data for name, data in disk.after_power_loss(seed).items() if not name.endswith("-shm")}
            missing.setdefault(seed, []).extend(lost(tmp_path / f"{number}.{seed}", files, told))
    assert told == list(range(MESSAGES))
    assert any(missing.values()) == (how == "normal"), missing
    assert bool(missing[0]) == (how == "normal"), "nothing but what was synced"
    assert not missing[1], "nothing is lost when the disk kept it all"
