"""A store of yesterday under a rig: backed up, and put back while the boxes and the world outside have gone on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path

from ringfence.host.store import verbs
from ringfence.host.store.audit_keys import Signer
from ringfence.host.store.store import open_store
from tests.support.clocks import CountingIds
from tests.support.databases import address
from tests.support.engine_rig import CONFIG, RealClock, Rig


async def backup(folder: Path) -> bytes:
    file = BytesIO()
    await verbs.run(_job(folder), "backup", {}, file)
    return file.getvalue()


@asynccontextmanager
async def put_back(r: Rig, folder: Path, content: bytes) -> AsyncIterator[Rig]:
    """The same boxes, another store, another kernel."""
    await r.engine.stop()
    await r.store.close()
    await verbs.run(_job(folder), "restore", {"anyway": True}, BytesIO(content))  # the rig's audit has no key
    r.store = await open_store(address(folder), RealClock(), CountingIds(1 << 40), installation=CONFIG.installation)
    try:
        r.engine = r._made()
        await r.engine.start()
        yield r
    finally:
        await r.engine.stop()
        await r.store.close()


def _job(folder: Path) -> verbs.Job:
    return verbs.Job(
        url=address(folder),
        installation=CONFIG.installation,
        release="0.1",
        clock=RealClock(),
        ids=CountingIds(1 << 44),
        signer=Signer(),
        by="the operator",
        alone=True,
    )
