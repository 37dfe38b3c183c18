"""A box whose user's CA cannot be read: the worker is there all the same, and says what is missing."""

from __future__ import annotations

import pytest

from ringfence.host.vault.keyring import Keyring
from ringfence.host.vault.keys import open_keys
from ringfence.host.vault.vault import open_vault
from tests.support.driver_stage import own_installation
from tests.support.egress_engine import outside

__all__ = ["own_installation"]
pytestmark = pytest.mark.root
SEALED = Keyring(why="its key is gone", remedy="bring it back")
ASK = "curl -s --max-time 20 -o /dev/null -w '%{http_connect} %{http_code}' https://api.test/x || true"


async def test_with_a_sealed_vault_the_caller_is_told() -> None:
    async with outside() as o:
        await o.allow("alice")
        assert await o.said("alice", ASK) == "200 200"  # the control
        o.vault = open_vault(await open_keys(lambda: SEALED), o.vault._witnesses)
        await o.restart()
        assert await o.said("alice", ASK) == "503 000"
        told = await o.said("alice", "curl -sv --max-time 20 https://api.test/x 2>&1 || true")
        assert "X-Egress-Reason: credential_unavailable" in told
        assert await o.audited("egress.worker_ended") == []  # no row for each request, and no back-off
        assert o.egress.facts(await o.box("alice"))["worker"] is True
