"""Where a redirected connection was meant for, as the kernel says it: in a network namespace with the redirect of a box."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PLAY = r"""
import json, socket, subprocess
from ringfence.host.egress.arrivals import original_destination
run = lambda *words, text=None: subprocess.run(words, input=text, text=True, check=True)
run("ip", "link", "set", "lo", "up")
for family, everywhere in (("-4", "0.0.0.0/0"), ("-6", "::/0")):
    run("ip", family, "route", "add", "local", everywhere, "dev", "lo")
run("nft", "-f", "-", text='''table inet t {
    chain c {
        type nat hook output priority -100
        ip daddr 127.0.0.0/8 return
        ip6 daddr ::1 return
        meta l4proto tcp redirect to :1022
    }
}
''')
found = []
for listen, family, meant in (
    ("127.0.0.1", socket.AF_INET, ("198.18.0.7", 443)),
    ("::1", socket.AF_INET6, ("2001:db8::7", 8443)),
    ("::", socket.AF_INET6, ("198.18.0.9", 80)),  # both families on one socket
):
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(listen == "::1"))
        listener.bind((listen, 1022)); listener.listen()
        with socket.create_connection(meant, 5):
            accepted, _ = listener.accept()
            with accepted:
                found.append(original_destination(accepted))
print(json.dumps(found))
"""


@pytest.mark.root
def test_the_destination_of_both_families_and_of_a_dual_listener() -> None:
    done = subprocess.run(
        ["unshare", "-n", sys.executable, "-c", PLAY], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["198.18.0.7", 443], ["2001:db8::7", 8443], ["198.18.0.9", 80]]
