"""What `status` says of a vault that cannot read what it holds."""

from __future__ import annotations

import os
from pathlib import Path

from ringfence.host.vault.keyring import MASTER
from tests.support.engine_rig import OPERATOR
from tests.support.outward_rig import Out, out
from tests.support.vault_rig import a_vault


async def _vault(o: Out) -> dict[str, object]:
    part: dict[str, object] = (await o.rig.engine.health.status(OPERATOR))["parts"]["vault"]
    return part


async def test_another_key_in_the_place_of_the_key(tmp_path: Path) -> None:
    async with out(tmp_path) as o:
        await o.set("alice")
        assert await _vault(o) == {"ok": True}
        key = tmp_path / "vault" / MASTER
        right = key.read_bytes()
        key.write_bytes(os.urandom(32))
        o.rig.with_parts["vault"] = await a_vault(tmp_path, o.rig.store)
        await o.rig.restart()
        assert await _vault(o) == {"ok": False, "unreadable": 1}
        assert not (await o.rig.engine.health.status(OPERATOR))["ok"]
        key.write_bytes(right)
        o.rig.with_parts["vault"] = await a_vault(tmp_path, o.rig.store)
        await o.rig.restart()
        assert await _vault(o) == {"ok": True}
