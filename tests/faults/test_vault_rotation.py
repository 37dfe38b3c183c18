"""F10: SIGKILL during the rotation of keys, at each row, before and after its commit: every value opens with the old key or the
new one, and the next rotation goes on where that one ended. And F49 for the vault: no room, no release.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from ringfence.bench.cluster import cluster
from ringfence.host.kernel.audit import Lane
from ringfence.host.kernel.errors import DiskFull
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.outward.ports import Wanted
from ringfence.host.vault.release import Counter
from ringfence.host.vault.sealing import kek_id
from tests.support.databases import SEARCH_PATH, Databases
from tests.support.store import a_team, opened
from tests.support.vault_rig import CANARY, KEY, SECOND, a_vault, put_key, stored, value_of

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "PATH": os.environ["PATH"]}
ROWS = 4
ROTATE = """
import asyncio, sys
from pathlib import Path
from ringfence.host.store.store import open_store
from tests.support.clocks import CountingIds, HandClock
from tests.support.databases import address
from tests.support.failing import Armed
from tests.support.vault_rig import a_vault

async def main(folder, n):
    armed = Armed(None, n, "kill")
    store = await open_store(address(folder), HandClock(), CountingIds(n << 40), failpoints=armed)
    assert not armed.reached, "what is armed is the rotation's alone"
    print(await (await a_vault(folder, store)).rotate(store.credentials), flush=True)
    await store.close()

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def databases() -> Iterator[Databases]:
    with cluster(SEARCH_PATH) as running:
        yield Databases.over(running)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_f10_killed_at_each_row(databases: Databases, tmp_path: Path, kind: str) -> None:
    with nullcontext() if kind == "sqlite" else databases.within(tmp_path, alone=True):
        put_key(tmp_path)
        async with a_team(tmp_path) as team:
            vault = await a_vault(tmp_path, team.store)
            ids = [(await stored(team, vault, f"n{number}", b"%d" % number)).id for number in range(ROWS)]
        put_key(tmp_path, KEY, "master.key.old")
        put_key(tmp_path, SECOND)
        rewrapped = [0]
        for reach in range(1, 3 * ROWS):
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", ROTATE, str(tmp_path), str(1 + (reach - 1) % 2)],
                env=ENVIRONMENT,
                capture_output=True,
                text=True,
            )
            rewrapped.append(await _new_ones(tmp_path, ids))
            if done.returncode == 0:
                break
            assert done.returncode == -signal.SIGKILL, done.stderr
        # Before the commit nothing of that row is done, after it that row and no other is.
        steps = [after - before for before, after in itertools.pairwise(rewrapped)]
        assert steps == [0, 1] * ROWS + [0], steps
        assert "rewrapped=0" in done.stdout, done.stderr
        (tmp_path / "vault" / "master.key.old").unlink()
        assert await _new_ones(tmp_path, ids) == ROWS


async def _new_ones(folder: Path, ids: list[str]) -> int:
    """How many the new key wraps; every one of them opens, whatever wraps it."""
    async with opened(folder, first=1 << 49) as store:
        vault = await a_vault(folder, store)
        for number, each in enumerate(ids):
            assert await value_of(store, vault, each) == b"%d" % number
        return sum([(await store.credentials.opening(each))[1].kek == kek_id(SECOND) for each in ids])


@pytest.mark.root
async def test_f49_no_room_no_release(small: Path) -> None:
    ballast = small / "ballast"
    ballast.write_bytes(bytes(700 << 10))
    put_key(small)
    async with a_team(small) as team:
        vault = await a_vault(small, team.store)
        made = await stored(team, vault)
        counter = Counter(vault, team.store.credentials, team.store.audit)
        wanted = Wanted(BoxId("b" * 16), team.alice.id, made.id, "", "inv", "api.test", "GET", "/" * 400)
        given = 0
        with pytest.raises(DiskFull):
            for _ in range(5000):
                assert (await counter.release(None, wanted)).reveal() == CANARY
                given += 1
        assert given > 0, "control: there was room before"
        assert len(await team.store.audit.page({Lane.RELEASE}, None, None, 10_000)) == given
        ballast.unlink()
        assert (await counter.release(None, wanted)).reveal() == CANARY
