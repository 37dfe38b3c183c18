"""The spawner's configuration: complete, typed, of its owner alone; nothing else starts it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ringfence.spawner import bubblewrap, cgroup_host, config, weaknesses
from ringfence.spawner.all_boxes import Hierarchy
from ringfence.spawner.cgroups import Cgroups
from ringfence.spawner.errors import StartRefused

GOOD: dict[str, Any] = {
    "version": 1,
    "installation": "abcdefghij234567",
    "home": "/h",
    "mode": "root",
    "python": "/usr/bin/python3",
    "bwrap": "/usr/bin/bwrap",
    "runtime": "/h/runtime/d",
    "guest_digest": "ab",
    "kernel_uid": 1000000,
    "kernel_gid": 1000000,
    "egress_id": 1000001,
    "ids": [1000008, 2000000],
    "subuid": None,
    "subgid": None,
    "accept": [],
    "cgroup_parent": None,
    "kernel_config": "/h/run/kernel.json",
    "disk": "auto",
    "root_ca": "",
    "limits_all": {"memory": 0, "pids": 0, "cpu_milli": 1500},
}
USER = {
    "mode": "subuid",
    "kernel_uid": 0,
    "kernel_gid": 0,
    "egress_id": 1,
    "ids": [8, 65535],
    "subuid": [100000, 65536],
}


def test_good() -> None:
    parsed = config.parse(json.dumps(GOOD))
    assert parsed.ids == (1000008, 2000000) and parsed.accept == frozenset()
    subuid = config.parse(json.dumps(GOOD | USER | {"subgid": [100000, 65536]}))
    assert subuid.subuid == (100000, 65536)


def test_shared_counts_the_user_as_one() -> None:
    raw = GOOD | {"mode": "shared", "kernel_uid": 0, "kernel_gid": 0, "egress_id": 0, "ids": [0, 0]}
    parsed = config.parse(json.dumps(raw))
    assert (parsed.ids, parsed.kernel_uid, parsed.kernel_gid, parsed.egress_id) == ((1, 1), 1, 1, 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version 2"),
        ({"extra": 1}, "extra"),
        ({"installation": "../etc"}, "installation"),
        ({"mode": "admin"}, "admin"),
        ({"home": "relative"}, "absolute"),
        ({"kernel_uid": 0}, "not be 0"),
        ({"egress_id": 0}, "egress_id"),
        ({"egress_id": 1000000}, "egress_id"),  # the kernel's
        ({"egress_id": 1000009}, "egress_id"),  # a box's
        ({"egress_id": "1"}, "egress_id must be int"),
        ({"kernel_uid": "0"}, "kernel_uid must be int"),
        ({"kernel_uid": True}, "kernel_uid must be int"),
        ({"ids": [0, 100]}, "neither 0"),
        ({"ids": [999_999, 1000100]}, "kernel's account"),
        ({"ids": [1000008, 1000009]}, "block of 8"),
        ({"ids": [1000008]}, "two whole numbers"),
        ({"accept": "no-cgroup"}, "list"),
        ({"cgroup_parent": "x"}, "absolute"),
        ({"root_ca": "x"}, "root_ca must be empty or an absolute path"),
        ({"root_ca": None}, "root_ca must be str"),
        (USER, "subuid and subgid"),
        (USER | {"subgid": [100000, 1000]}, "1000 subordinate ids"),
        ({"mode": "shared"}, r"\[0, 0\]"),
    ],
)
def test_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(StartRefused, match=said):
        config.parse(json.dumps(GOOD | change))


def test_a_missing_field_and_no_json() -> None:
    with pytest.raises(StartRefused, match="python"):
        config.parse(json.dumps({k: v for k, v in GOOD.items() if k != "python"}))
    for text in ("", "[]", "{", "null"):
        with pytest.raises(StartRefused):
            config.parse(text)


def test_the_file_must_be_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GOOD))
    path.chmod(0o600)
    assert config.load(str(path)).home == "/h"
    path.chmod(0o620)
    with pytest.raises(StartRefused, match="owner alone"):
        config.load(str(path))
    path.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(path)
    os.mkfifo(tmp_path / "pipe")
    for wrong in (link, tmp_path / "none", tmp_path / "pipe"):
        with pytest.raises(StartRefused):
            config.load(str(wrong))


def test_bubblewrap_versions() -> None:
    assert bubblewrap.parse_version("bubblewrap 0.8.0\n") == (0, 8, 0) >= bubblewrap.OLDEST
    assert (
        bubblewrap.parse_version("bubblewrap 0.13.1") > bubblewrap.OLDEST > bubblewrap.parse_version("bubblewrap 0.7")
    )
    assert bubblewrap.parse_version("something else") == ()
    with pytest.raises(StartRefused) as caught:
        bubblewrap.check("/usr/bin/no-such-bwrap")
    assert caught.value.remedy == "apt-get install bubblewrap"


def test_what_must_be_accepted_by_name() -> None:
    weaknesses.refuse_unaccepted(("no-nft", "no-pidfs"), frozenset())
    weaknesses.refuse_unaccepted(("no-cgroup", "shared-uid"), frozenset({"no-cgroup", "shared-uid"}))
    with pytest.raises(StartRefused) as cgroup:
        weaknesses.refuse_unaccepted(("no-cgroup",), frozenset({"shared-uid"}))
    assert "--accept no-cgroup" in cgroup.value.remedy
    with pytest.raises(StartRefused) as shared:
        weaknesses.refuse_unaccepted(("shared-uid",), frozenset())
    assert "apt-get install uidmap" in shared.value.remedy and "usermod --add-subuids" in shared.value.remedy


def test_weaknesses_are_told() -> None:
    assert {"no-cgroup", "no-nft", "shared-uid"} <= set(weaknesses.find("shared", "none", rules=False))
    assert not {"no-cgroup", "no-nft", "shared-uid"} & set(weaknesses.find("root", "v2", rules=True))


def test_a_cgroup_directory_that_was_named_is_used_or_refused(tmp_path: Path) -> None:
    """Never silently another one: its limits would not be those that were delegated."""
    named = config.parse(json.dumps(GOOD | {"cgroup_parent": str(tmp_path)}))
    with pytest.raises(StartRefused, match="cgroup_parent"):
        cgroup_host.find(named)


def test_limits_that_cgroups_cannot_hold_must_be_accepted(tmp_path: Path) -> None:
    """v2 and v1, each as the kernel shows it with and without the controller or the accounting."""
    for version, swap in ((2, "memory.swap.max"), (1, "memory.memsw.limit_in_bytes")):
        parent = tmp_path / str(version)
        parent.mkdir()
        whole = Cgroups("v2", (Hierarchy(version, frozenset({"memory", "pids", "cpu"}), str(parent)),))
        part = Cgroups("v2", (Hierarchy(version, frozenset({"memory", "pids"}), str(parent)),))
        freezer = ["no-freezer"] if version == 1 else []  # neither the unified tree nor the controller
        assert whole.lacks(swap=True) == ["no-swap-limit", *freezer] and whole.lacks(swap=False) == freezer
        (parent / swap).write_text("0")
        assert whole.lacks(swap=True) == freezer and part.lacks(swap=True) == ["no-cpu-limit", *freezer]
    by_controller = Hierarchy(1, frozenset({"memory", "pids", "cpu", "freezer"}), str(tmp_path / "1"))
    assert Cgroups("v1", (by_controller,)).lacks(swap=False) == []
    assert Cgroups("none", ()).lacks(swap=True) == []  # no-cgroup says it all
    for name in ("no-cpu-limit", "no-swap-limit"):
        weaknesses.refuse_unaccepted((name,), frozenset({name}))
        with pytest.raises(StartRefused, match=name):
            weaknesses.refuse_unaccepted((name,), frozenset())


@pytest.mark.parametrize(
    ("text", "swaps"), [("SwapTotal:  1024 kB\n", True), ("SwapTotal:  0 kB\n", False), ("", False)]
)
def test_whether_this_host_swaps(tmp_path: Path, text: str, swaps: bool) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\n{text}")
    assert cgroup_host.host_swaps(str(tmp_path / "meminfo")) is swaps
