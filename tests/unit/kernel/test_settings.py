"""Settings: every key is documented, checked and read back; a wrong one is an error that says what would be right."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.kernel.boxes import Limits, LimitsAll, Rates
from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.life.rests import Rests
from ringfence.host.kernel.models.usage import BudgetLimits
from ringfence.host.kernel.retention import Keep
from ringfence.host.kernel.settings import ACCEPT, Settings
from ringfence.host.kernel.settings_egress import EgressSettings
from ringfence.host.kernel.settings_file import KEYS, LIMIT_BOUNDS, override, parse
from ringfence.host.kernel.settings_life import Boxes
from ringfence.host.kernel.settings_text import as_markdown, as_toml, values
from ringfence.host.kernel.sizes import parse_size, size_text
from ringfence.host.kernel.vault_keys import VaultKeys
from ringfence.spawner.protocol import BOUNDS

TOP = Path(__file__).parents[3]
FULL = """
database = "sqlite:////srv/x.db"
listen = "[::1]:9000"
domain = "agents.example.org"
mode = "subuid"
max_runs = 3
script = "/srv/script.json"
model_window = 8000
model_timeout_seconds = 5
run_soft_seconds = 60
run_hard_seconds = 90
accept = ["no-nft", "no-cgroup"]
bwrap = "/opt/bwrap"
python = "/usr/bin/python3.12"
cgroup_parent = "/sys/fs/cgroup/x"
[limits]
memory = "2GiB"
pids = 100
cpu_milli = 1500
shm = 67108864
"""


def test_an_empty_file_is_a_whole_one() -> None:
    assert parse("") == Settings()
    assert Settings().listen == ("127.0.0.1", 8377)


def test_every_value_arrives() -> None:
    settings = parse(FULL)
    assert settings.listen == ("::1", 9000)
    assert settings.accept == ("no-cgroup", "no-nft")  # in the table's order
    assert settings.limits == Limits(memory=2 << 30, pids=100, cpu_milli=1500, shm=64 << 20)
    assert (settings.mode, settings.max_runs, settings.bwrap) == ("subuid", 3, "/opt/bwrap")
    assert (settings.script, settings.model_window, settings.model_timeout_seconds) == ("/srv/script.json", 8000, 5)
    assert (settings.run_soft_seconds, settings.run_hard_seconds) == (60, 90)


def test_settings_survive_json_and_toml() -> None:
    settings = parse(FULL)
    assert parse(as_toml(settings)) == settings
    placed = settings.at("/srv/state", "a" * 16, "root")
    assert Settings.from_json(json.loads(json.dumps(placed.to_json()))) == placed
    off = parse('listen = "off"')
    assert off.listen is None
    assert Settings.from_json(json.loads(json.dumps(off.to_json()))) == off
    assert parse(as_toml(off)) == off == parse('listen = "none"')


def test_a_place_fills_what_was_left_open() -> None:
    placed = Settings().at("/srv/state", "a" * 16, "root")
    assert placed.database == "sqlite:////srv/state/db/ringfence.db"
    assert placed.socket == "/srv/state/run/api.sock"
    assert parse('database = "postgresql://db/x"').at("/srv", "i", "root").database == "postgresql://db/x"


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("lisen = 1", "lisen", "listen"),
        ("max_run = 1", "max_run", "max_runs"),
        ("[limits]\nmemry = 1", "limits.memry", "limits.memory"),
        ("memory = 1", "memory", "limits.memory"),
        ("[limits_all]\nmemry = 1", "limits_all.memry", "limits_all.memory"),
        ("[limit]\nmemory = 1", "limit", "limits"),
        ("zzzzzzzz = 1", "zzzzzzzz", None),
    ],
)
def test_an_unknown_key_names_the_nearest(text: str, key: str, nearest: str | None) -> None:
    with pytest.raises(Invalid) as raised:
        parse(text)
    assert raised.value.details["key"] == key
    assert raised.value.details["nearest"] == nearest
    assert repr(key) in raised.value.message
    assert (nearest or "config show") in raised.value.remedy


@pytest.mark.parametrize(
    ("text", "key", "allowed"),
    [
        ("max_runs = 0", "max_runs", "1 to 512"),
        ("[limits_all]\ncpu_milli = 9", "limits_all.cpu_milli", "0 or a whole number from 10 to"),
        ("[limits_all]\npids = 31", "limits_all.pids", "0 or a whole number from 32 to"),
        ("[limits_all]\npids = false", "limits_all.pids", "0 or a whole number from 32 to"),
        ('[limits_all]\nmemory = "95MiB"', "limits_all.memory", "0 or a size from 96MiB to"),
        ("max_runs = true", "max_runs", "1 to 512"),
        ('max_runs = "8"', "max_runs", "1 to 512"),
        ("listen = 8377", "listen", "127.0.0.1:8377"),
        ('listen = "localhost:8377"', "listen", "address:port"),
        ('listen = "127.0.0.1:0"', "listen", "address:port"),
        ('listen = "127.0.0.1:65536"', "listen", "address:port"),
        ('listen = "127.0.0.1:\\u0663"', "listen", "address:port"),
        ('model = "gpt"', "model", "scripted"),
        ('mode = "docker"', "mode", "shared"),
        ('script = "script.json"', "script", "absolute path"),
        ("model_window = 999", "model_window", "1000 to 10000000"),
        ("model_timeout_seconds = 0", "model_timeout_seconds", "1 to 86400"),
        ("run_soft_seconds = 1.5", "run_soft_seconds", "0 to 2592000"),
        ("run_hard_seconds = -1", "run_hard_seconds", "0 to 2592000"),
        ("run_soft_seconds = 60\nrun_hard_seconds = 59", "run_soft_seconds", "0 to 59"),
        ("run_hard_seconds = 60", "run_soft_seconds", "at least 10800"),
        ('bwrap = "bwrap"', "bwrap", "absolute path"),
        ('bwrap = ""', "bwrap", "absolute path"),
        ('bwrap = "/usr/../tmp/bwrap"', "bwrap", "absolute path"),
        ('database = "mysql://x"', "database", "sqlite"),
        ('accept = ["no-cgroups"]', "accept", "did you mean no-cgroup"),
        ("accept = 1", "accept", "shared-uid"),
        ('domain = "https://x"', "domain", "host name"),
        ('[limits]\nmemory = "64MiB"', "limits.memory", "96MiB to 1024TiB"),
        ('[limits]\nmemory = "2GB"', "limits.memory", "2GiB"),
        ("[limits]\nmemory = -1", "limits.memory", "size"),
        ("[limits]\nmemory = 1.5", "limits.memory", "size"),
        ("[limits]\npids = 8", "limits.pids", "32 to 65536"),
        ("limits = 3", "limits", "limits.memory"),
    ],
)
def test_a_wrong_value_says_what_is_allowed(text: str, key: str, allowed: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse(text, source="here.toml")
    error = raised.value
    assert error.exit_code == 2
    assert key in error.message
    assert "here.toml" in error.message
    assert allowed in error.remedy or key == "limits"


@pytest.mark.parametrize(("soft", "hard"), [(0, 0), (0, 5), (5, 5), (5, 0)])
def test_a_deadline_can_be_left_out(soft: int, hard: int) -> None:
    settings = parse(f"run_soft_seconds = {soft}\nrun_hard_seconds = {hard}")
    assert (settings.run_soft_seconds, settings.run_hard_seconds) == (soft, hard)


@pytest.mark.parametrize("text", ["a = ", "= 1", "[[[", "a = 1\na = 2", "\0", "x = [" * 5000])
def test_what_is_no_toml(text: str) -> None:
    with pytest.raises(Invalid):
        parse(text)


@given(st.text(max_size=300))
def test_no_text_does_more_than_be_invalid(text: str) -> None:
    try:
        parse(text)
    except Invalid as error:
        assert error.remedy


@given(st.integers(0, 1 << 45))
def test_a_size_survives_its_text(number: int) -> None:
    assert parse_size(size_text(number)) == number == parse_size(number) == parse_size(str(number))


def test_the_command_line_is_checked_as_the_file_is() -> None:
    assert override(Settings(), {"listen": "127.0.0.1:1"}).listen == ("127.0.0.1", 1)
    for wrong in ({"listen": "x"}, {"run_hard_seconds": 1}):
        with pytest.raises(Invalid):
            override(Settings(), wrong)


@pytest.mark.parametrize(
    "raw", [{"hom": ""}, {"listen": [1]}, {"listen": "x"}, {"limits": {"mem": 1}}, {"limits": 3}, 5, None, [], "home"]
)
def test_foreign_json_is_refused(raw: Any) -> None:
    with pytest.raises(Invalid):
        Settings.from_json(raw)


def test_one_table_knows_every_setting() -> None:
    """A field that no key sets, or a key without a field, would be a setting that nobody can make."""
    placed = {
        "home",
        "installation",
        "socket",
        "egress",
        "limits",
        "limits_all",
        "model_budget",
        "rates",
        "rest",
        "boxes",
        "retention",
        "vault",
        "handed",
        "accepted_by",
        "open",
        "gate",
        "gate_remedy",
    }
    named = {key.name for key in KEYS}
    assert {n for n in named if "." not in n} == {f.name for f in fields(Settings)} - placed
    tables = {
        "egress.": EgressSettings,
        "limits.": Limits,
        "limits_all.": LimitsAll,
        "model_budget.": BudgetLimits,
        "boxes.": Boxes,
        "rates.": Rates,
        "rest.": Rests,
        "retention.": Keep,
        "vault.": VaultKeys,
    }
    for table, kind in tables.items():
        assert {n.removeprefix(table) for n in named if n.startswith(table)} == {f.name for f in fields(kind)}
    assert set(values(Settings())) == named


def test_the_bounds_are_the_spawners() -> None:
    assert LIMIT_BOUNDS == BOUNDS


def test_the_page_is_current() -> None:
    """`make docs` writes it."""
    assert (TOP / "docs" / "configuration.md").read_text() == as_markdown()
    assert all(f"`{name}`" in as_markdown() for name in ACCEPT)


@pytest.mark.parametrize(
    ("listen", "loopback"),
    [("127.0.0.1:1", True), ("[::1]:1", True), ("off", True), ("0.0.0.0:1", False), ("[::]:1", False)],
)
def test_who_can_reach_it(listen: str, loopback: bool) -> None:
    assert parse(f'listen = "{listen}"').loopback_only is loopback


def test_what_all_boxes_may_have_together_begins_with_what_one_needs() -> None:
    least = parse('[limits_all]\ncpu_milli = 10\npids = 32\nmemory = "96MiB"').limits_all
    assert least == LimitsAll(96 << 20, 32, 10)
    assert parse('[limits_all]\ncpu_milli = 0\npids = 0\nmemory = "0"').limits_all == LimitsAll()


@pytest.mark.parametrize("text", ["limits = 3", 'rates = "x"', "[[limits_all]]\npids = 64"])
def test_a_table_is_no_value(text: str) -> None:
    with pytest.raises(Invalid, match="is a table") as raised:
        parse(text)
    assert "write [" in raised.value.remedy


@pytest.mark.parametrize(("text", "most"), [("", 6), ("max_runs = 3", 2), ("max_runs = 6", 5), ("max_runs = 1", 1)])
def test_one_user_leaves_room_for_others(text: str, most: int) -> None:
    assert parse(text).max_user_runs == most


def test_how_much_one_user_may_have_is_as_it_was_set() -> None:
    assert parse("max_runs = 3\nmax_user_runs = 0").max_user_runs == 0
    assert parse("max_runs = 3\nmax_user_runs = 3").max_user_runs == 3
