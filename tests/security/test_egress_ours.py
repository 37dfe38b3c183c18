"""Addresses that the host came by after its server was started (J: DNS rebinding to the host itself)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ringfence.host.egress.ours import ours

PROGRAM = """
import subprocess, socket
from ringfence.host.egress.configuration import Configuration
from ringfence.host.egress.ours import ours
from ringfence.host.egress.reach import Reach
from ringfence.host.kernel.outward.secret import Secret
run = lambda text: subprocess.run(text.split(), check=True)
run("ip link set lo up")
run("ip addr add 9.9.9.1/32 dev lo")
reach = Reach(Configuration("u", (), (), "", Secret(b""), "", (), own_addresses=("9.9.9.1",)))
run("ip addr add 9.9.9.9/32 dev lo")
run("ip -6 addr add 2600::9/128 dev lo nodad")
server = socket.create_server(("::", 8080), family=socket.AF_INET6, dualstack_ipv6=True)
for address in ("9.9.9.9", "2600::9"):
    assert reach.refused("evil.test", [address]) is None  # the control: the list does not know it
    socket.create_connection((address, 8080), 20).close()  # and it is there
    assert ours(address), address
run("ip link add veth0 type veth peer name veth1")
run("ip addr add 10.77.0.1/24 dev veth0")
run("ip link set veth0 up")
assert ours("10.77.0.1") and not ours("10.77.0.2")
assert not ours("203.0.113.7")  # no way there
"""


@pytest.mark.root
def test_an_address_that_came_later_is_ours(tmp_path: Path) -> None:
    source = Path(ours.__code__.co_filename).parents[3]
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"PYTHONPATH": str(source), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    assert done.returncode == 0, done.stderr


def test_loopback_is_judged_by_its_kind_alone() -> None:
    assert not ours("127.0.0.1") and not ours("::1")
