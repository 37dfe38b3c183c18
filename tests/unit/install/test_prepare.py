"""Modes, and the spawner's configuration in each: what install writes is what the spawner takes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.host.install import prepare, subids
from ringfence.host.install.layout import Layout
from ringfence.host.install.prepare import Ready, Wish
from ringfence.host.install.runtime import Runtime
from ringfence.host.install.state import Account, Installation
from ringfence.host.install.subids import Choice, Range
from ringfence.host.kernel.errors import Invalid, Unavailable
from ringfence.host.kernel.settings import Settings
from ringfence.host.kernel.settings_egress import EgressSettings
from ringfence.spawner import config

OWN = Choice("subuid", Range(100000, 65536), Range(200000, 4096), "", "")
NONE = Choice("shared", None, None, "ann has no subordinate ids", "as root: usermod ...")


def as_user(monkeypatch: pytest.MonkeyPatch, choice: Choice) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(subids, "choose", lambda *_: choice)


def test_modes_of_an_ordinary_user(monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, OWN)
    assert prepare.mode_of(Settings()) == "subuid"
    assert prepare.mode_of(Settings(mode="shared", accept=("shared-uid",))) == "shared"
    with pytest.raises(Unavailable, match="needs root"):
        prepare.mode_of(Settings(mode="root"))
    with pytest.raises(Unavailable, match="same host id"):
        prepare.mode_of(Settings(mode="shared"))


def test_a_shared_id_must_be_accepted_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, NONE)
    with pytest.raises(Unavailable, match="no subordinate ids") as raised:
        prepare.mode_of(Settings())
    assert raised.value.exit_code == 5
    assert "usermod" in raised.value.remedy
    assert "--accept shared-uid" in raised.value.remedy
    assert prepare.mode_of(Settings(accept=("shared-uid",))) == "shared"
    with pytest.raises(Unavailable, match="no subordinate ids"):
        prepare.mode_of(Settings(mode="subuid", accept=("shared-uid",)))


def test_modes_of_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert prepare.mode_of(Settings()) == "root"
    with pytest.raises(Unavailable, match="this is root"):
        prepare.mode_of(Settings(mode="subuid"))


@pytest.mark.parametrize(
    ("mode", "ids", "kernel", "boxes"),
    [
        ("root", (1879048192, 1880096767), 1879048192, (1879048200, 1880096767)),
        ("subuid", (0, 0), 1000, (8, 4096)),
        ("shared", (0, 0), 1000, (0, 0)),
    ],
)
def test_the_spawner_takes_what_is_written(
    monkeypatch: pytest.MonkeyPatch, mode: str, ids: tuple[int, int], kernel: int, boxes: tuple[int, int]
) -> None:
    as_user(monkeypatch, OWN)
    layout = Layout(Path("/srv/state"))
    egress = EgressSettings(root_ca="/etc/company.pem")
    settings = Settings(accept=("no-cgroup", "unproved"), egress=egress).at("/srv/state", "a" * 16, mode)
    ready = Ready(layout, Installation("a" * 16, ids, "2030-01-01T00:00:00Z"), settings, Account(kernel, kernel), ())
    written = prepare.spawner_config(ready, Runtime(Path("/srv/state/runtime/x"), "d" * 64))
    taken = config.parse(json.dumps(written))
    assert (taken.mode, taken.accept) == (mode, frozenset({"no-cgroup"}))
    assert tuple(written["ids"]) == boxes  # the spawner renumbers those of mode shared
    assert written["kernel_uid"] == written["kernel_gid"] == (kernel if mode == "root" else 0)
    assert written["egress_id"] == {"root": kernel + 1, "subuid": 1, "shared": 0}[mode]
    assert taken.subuid == ((100000, 65536) if mode == "subuid" else None)
    assert taken.kernel_config == "/srv/state/run/kernel.json"
    assert taken.root_ca == "/etc/company.pem"


def test_the_command_line_adds_to_the_file() -> None:
    file = Settings(accept=("no-nft",), listen=("127.0.0.1", 1))
    merged = prepare.merged(file, Wish(accept="no-cgroup", listen="none", database="sqlite:////srv/x.db"))
    assert merged == replace(file, accept=("no-cgroup", "no-nft"), listen=None, database="sqlite:////srv/x.db")
    assert prepare.merged(file, Wish()) == file
    rows = prepare.merged(file, Wish(accept="C06,no-cgroup,D-1", reason="a lab"))
    assert (rows.accept, rows.accept_reason) == (("no-cgroup", "no-nft", "C06", "D-1"), "a lab")
    with pytest.raises(Invalid, match="--accept"):
        prepare.merged(file, Wish(accept="x"))
    with pytest.raises(Invalid, match="accept_reason"):
        prepare.merged(file, Wish(reason="a" * 501))
