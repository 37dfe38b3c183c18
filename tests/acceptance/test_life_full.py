"""C53: with a full disk everything that needs no room goes on, and what does says so by its name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ringfence.spawner import protocol
from tests.support.disk_rig import BOX, SMALL, fill_bytes, fill_inodes, nothing_left, with_disk
from tests.support.installation import Installation, installation

pytestmark = pytest.mark.root
MIB = 1 << 20
FILLS = {
    "bytes": "head -c 100M /dev/zero > /workspace/large",
    "inodes": "cd /workspace; seq 5000 | xargs touch",
}


@pytest.fixture(scope="module")
def small() -> Iterator[Installation]:
    with installation(settings='[limits]\ndisk = "64MiB"\ninodes = 2048\n') as made:
        yield made


@pytest.mark.parametrize("what", FILLS)
def test_a_full_disk_then_run_stop_start_and_delete(small: Installation, what: str) -> None:
    user = f"ann-{what}"
    small.ok("user", "add", user)
    filled = small.outcome(user, FILLS[what])
    assert filled["reason"] == "disk_full" and filled["exit_code"] != 0
    assert 0 < filled["disk_used_bytes"] <= filled["disk_limit_bytes"] <= 64 * MIB
    assert small.box(user)["disk_full"]
    assert small.outcome(user, "echo room needs none")["reason"] == "exit"
    refused = small.run("files", "put", user, "note", "-", "--json", stdin=b"x" * MIB)
    assert (refused.code, refused.json()["error"]["code"]) == (5, "disk_full")
    assert refused.json()["error"]["details"]["limit_bytes"] == 64 * MIB
    turn = small.say(user, f"full-{what}", "$ cp /etc/passwd /workspace/copy")
    assert turn["status"] == "completed"
    steps = small.ok("run", "show", turn["run"], "--as", user, "--json").json()["steps"]
    assert [step["result"]["reason"] for step in steps] == ["disk_full"]
    small.ok("box", "stop", user)
    small.ok("box", "start", user)
    assert small.outcome(user, "touch /workspace/more && head -c 9M /dev/zero > /workspace/m")["reason"] == "disk_full"
    small.ok("files", "ls", user, "/workspace", "--limit", "5")
    small.ok("exec", user, "--", "find", "/workspace", "-type", "f", "-delete")
    assert not small.box(user)["disk_full"]
    assert small.outcome(user, "echo again > /workspace/note")["exit_code"] == 0  # control: only room was missing
    assert small.outcome(user, FILLS[what])["reason"] == "disk_full"
    small.ok("user", "rm", "--purge", user)


def test_a_full_box_is_frozen_thawed_and_removed() -> None:
    """As `box pause` and `resume` will; the tmp of it is emptied at its stop, with no room to write."""
    rig = with_disk("image")
    try:
        rig.provision(BOX, limits=SMALL)
        rig.start_box(BOX, SMALL)
        assert fill_bytes(rig, 96)["rc"] == 9
        assert fill_inodes(rig, 3000)["rc"] != 0
        for _ in range(2):
            rig.ask(protocol.Freeze(BOX))
            assert seen(rig)["frozen"]
            rig.ask(protocol.Thaw(BOX))
            assert rig.shell(BOX, "echo on")["out"] == "on\n"
        assert seen(rig)["disk_free"] == 0
        rig.ask(protocol.Freeze(BOX))
        rig.ask(protocol.Stop(BOX))
        rig.start_box(BOX, SMALL)
        assert rig.shell(BOX, "ls -A /tmp | wc -l; echo on")["out"].split() == ["0", "on"]
        rig.ask(protocol.Remove(BOX))
    finally:
        rig.clean()
    assert nothing_left(rig.home)


def seen(rig: Any) -> dict[str, Any]:
    found: dict[str, Any] = rig.ask(protocol.Observe(BOX))
    return found
