"""The production gate: what a record of `prove` is worth, and what is refused without one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.install import gate, prove_record
from ringfence.host.install.layout import Layout
from ringfence.host.install.prove_record import LEAST_HELD, ProvedRow, Record, Stamp, Verdict
from ringfence.host.kernel.errors import Invalid, Refused, Unavailable
from ringfence.host.kernel.settings import Settings
from ringfence.host.kernel.settings_egress import EgressSettings

NOW = Stamp("boot", "1", "d")
HELD = tuple(ProvedRow(f"A{n:02}", "held") for n in range(LEAST_HELD))
PROVEN, UNPROVEN = Verdict((), ""), Verdict(("unproved",), "no `ringfence prove` has run here")
OTHERS = Settings(listen=("0.0.0.0", 1))


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    yield Layout(tmp_path)


def test_a_record_is_read_as_it_was_written(layout: Layout) -> None:
    assert prove_record.read(layout) is None
    rows = (*HELD, ProvedRow("C06", "open"), ProvedRow("D-5", "not_applicable"))
    path = prove_record.write(layout, NOW, rows, "2030-01-01T00:00:00Z")
    assert (path.stat().st_mode & 0o777, path.stat().st_uid) == (0o600, os.geteuid())
    assert prove_record.read(layout) == Record(NOW, rows, "2030-01-01T00:00:00Z")
    assert set(json.loads(path.read_text())) == {"boot_id", "version", "profile_digest", "rows", "at"}


def test_a_record_that_others_can_write_is_refused(layout: Layout) -> None:
    path = prove_record.write(layout, NOW, HELD, "now")
    path.chmod(0o666)
    with pytest.raises(Refused, match="written by others") as raised:
        prove_record.read(layout)
    assert raised.value.remedy == f"rm -r {path}; ringfence prove"  # chmod would make what others wrote a proof
    path.chmod(0o600)
    assert prove_record.read(layout) is not None  # control
    path.parent.chmod(0o777)
    with pytest.raises(Refused, match="written by others") as raised:
        prove_record.read(layout)
    assert raised.value.remedy == f"rm -r {path.parent}; ringfence prove"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"rows": 1}', '{"rows": [{"id": "A", "status": "fine"}]}', "[" * 9999]
)
def test_what_is_no_record_is_none(layout: Layout, text: str) -> None:
    path = prove_record.write(layout, NOW, HELD, "now")
    path.write_text(text)
    assert prove_record.read(layout) is None


def test_what_a_record_is_worth() -> None:
    good = Record(NOW, HELD, "then")
    assert prove_record.verdict(good, NOW) == PROVEN
    worthless = [
        None,
        replace(good, stamp=replace(NOW, boot_id="another")),
        replace(good, stamp=replace(NOW, version="2")),
        replace(good, stamp=replace(NOW, profile_digest="e")),
        replace(good, rows=HELD[1:]),
    ]
    for record in worthless:
        assert prove_record.verdict(record, NOW).open == ("unproved",)
    found = prove_record.verdict(replace(good, rows=(*HELD, ProvedRow("C06", "open"))), NOW)
    assert found.open == ("C06",) and "C06" in found.why
    assert found.beyond(("C06",)) == () and found.beyond(("unproved",)) == ("C06",)


def test_the_profiles_digest_follows_what_makes_the_walls(tmp_path: Path) -> None:
    package = tmp_path / "package"
    files = [package / "spawner" / "a.py", package / "guest" / "bin" / "no-root", package / "host" / "a.py"]
    files += [tmp_path / "bwrap", tmp_path / "python"]
    compiled = package / "spawner" / "__pycache__" / "a.pyc"
    for path in (*files, compiled):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    settings = Settings(bwrap=str(tmp_path / "bwrap"), python=str(tmp_path / "python"))

    def digest(now: Settings = settings) -> str:
        return prove_record.profile_digest(now, package)

    first = digest()
    for path in files:
        path.write_text("2")
        assert digest() != first, path
        path.write_text("1")
        assert digest() == first
    compiled.write_text("2")
    assert digest() == first == digest(replace(settings, accept=("no-cgroup", "C06"), max_runs=1))
    others: tuple[dict[str, Any], ...] = (
        {"mode": "shared"},
        {"disk": "accounting"},
        {"cgroup_parent": "/sys/fs/cgroup/x"},
        {"python": "/bin/sh"},
    )
    for other in others:
        assert digest(replace(settings, **other)) != first, other


@pytest.mark.parametrize("kind", ["fifo", "folder", "large"])
def test_a_record_that_is_no_file_of_that_kind_is_made_again(layout: Layout, kind: str) -> None:
    path = prove_record.path_of(layout)
    path.parent.mkdir(mode=0o700)
    if kind == "fifo":
        os.mkfifo(path, 0o600)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b" " * (prove_record.MAX_RECORD_BYTES + 1))
    with pytest.raises(Invalid) as raised:
        prove_record.read(layout)
    assert raised.value.remedy == f"rm -r {path}; ringfence prove"


def test_an_id_that_could_trick_a_terminal_makes_no_record(layout: Layout) -> None:
    for bad in ("C06\x1b[2J", "C06\n", "", "c06"):
        prove_record.write(layout, NOW, (*HELD, ProvedRow(bad, "open")), "now")
        assert prove_record.read(layout) is None


def test_a_row_counts_once() -> None:
    again = Record(NOW, (HELD[0],) * LEAST_HELD, "then")
    assert prove_record.verdict(again, NOW).open == ("unproved",)
    twice = Record(NOW, (*HELD, ProvedRow("C06", "open"), ProvedRow("C06", "open")), "then")
    assert prove_record.verdict(twice, NOW).open == ("C06",)


def test_only_a_row_that_is_there_can_be_accepted() -> None:
    asked: list[int] = []

    def rows() -> list[str]:
        asked.append(1)
        return ["C06", "D-1"]

    gate.check_rows(("no-cgroup", "unproved"), rows)
    assert asked == []  # it costs imports
    gate.check_rows(("no-cgroup", "C06", "D-1"), rows)
    with pytest.raises(Invalid, match="ZZZ"):
        gate.check_rows(("C06", "ZZZ"), rows)
    with pytest.raises(Invalid) as raised:
        gate.check_rows(("C07",), rows)
    assert "did you mean C06" in raised.value.remedy


def test_without_a_reason_nothing_is_recorded_as_accepted() -> None:
    found = Verdict(("C06", "D-1"), "open")
    given = Settings(accept=("no-cgroup", "C06"))
    silent = gate.recorded(given, found)
    assert (silent.open, silent.accept) == ((), ("no-cgroup",))
    said = gate.recorded(replace(given, accept_reason="a lab"), found)
    assert (said.open, said.accept) == (("C06",), ("no-cgroup", "C06"))
    assert gate.recorded(given, PROVEN) == given


def test_who_needs_a_proof() -> None:
    """A loopback listener for one tenant needs none, and is told that a second one would."""
    assert gate.check(Settings(), PROVEN, production=True) == ("", "")
    why, remedy = gate.check(Settings(), UNPROVEN, production=False, config=Path("/etc/a b.toml"))
    assert why == UNPROVEN.why and remedy.startswith("ringfence prove --config '/etc/a b.toml'; or accept it")
    for settings, production, named in ((Settings(), True, "profile production"), (OTHERS, False, "beyond loopback")):
        with pytest.raises(Unavailable, match=named) as raised:
            gate.check(settings, UNPROVEN, production=production)
        assert "--accept unproved --reason" in raised.value.remedy and "ringfence prove" in raised.value.remedy


def test_an_open_row_is_accepted_by_its_name_and_with_a_reason() -> None:
    found = Verdict(("C06", "D-1"), "open in the last `ringfence prove`: C06, D-1")
    some = replace(OTHERS, accept=("C06",), accept_reason="a lab")
    with pytest.raises(Unavailable, match="C06, D-1") as raised:
        gate.check(some, found, production=False)
    assert "--accept C06,D-1 " in raised.value.remedy  # all of them: --accept is said anew at each start
    named = replace(OTHERS, accept=("C06", "D-1"))
    with pytest.raises(Unavailable, match="without a reason"):
        gate.check(named, found, production=False)
    assert gate.check(replace(named, accept_reason="a lab"), found, production=False) == ("", "")


def test_somebody_starts_the_server() -> None:
    assert "uid " in gate.who()


def test_prove_tries_what_the_record_stamps() -> None:
    settings = replace(Settings(), disk="accounting", mode="root", accept=("no-disk-quota", "unproved", "C06"))
    given = prove_record.walls(settings)
    assert given.pop("accept") == ["no-disk-quota"]
    for key in given:  # each of them changes the digest
        changed: Any = {key: "/usr/bin/true"}
        other = replace(settings, **changed)
        assert prove_record.profile_digest(other) != prove_record.profile_digest(settings), key
    assert set(given) == {"bwrap", "python", "mode", "cgroup_parent", "disk"}


@pytest.mark.parametrize("pin", ["api.test=127.0.0.1:8443", "api.test=[::1]:8443"])
def test_a_pin_to_this_host_is_for_tests_alone(pin: str) -> None:
    settings = Settings(egress=EgressSettings(pins=("other.test=192.0.2.1", pin)))
    gate.check_pins(settings, production=False)
    with pytest.raises(Invalid, match=r"api\.test") as raised:
        gate.check_pins(settings, production=True)
    assert "other.test" not in raised.value.message
    gate.check_pins(Settings(egress=EgressSettings(pins=("other.test=192.0.2.1",))), production=True)
