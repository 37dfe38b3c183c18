"""`ringfence audit` against the real web servers: what is shown, exit codes, and who may."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.web_rig import Web, web


@pytest.fixture(scope="module")
def served() -> Iterator[Web]:
    with web() as made:
        made.user("alice")
        yield made


def test_verify(served: Web) -> None:
    done = served.cli("audit", "verify")
    assert (done.returncode, done.stdout) == (0, b"1 rows in 1 chains: whole\n")
    served.engine.audits.broken = True
    try:
        done = served.cli("audit", "verify")
        assert done.returncode == 1
        assert done.stdout.splitlines()[0] == b"BAD row krn_1:1: changed: is not what its hash says"
        as_json = served.cli("audit", "verify", "--json")
        assert as_json.returncode == 1
        finding = {"chain": "krn_1", "seq": 1, "wrong": "changed", "what": "is not what its hash says"}
        assert json.loads(as_json.stdout)["findings"] == [finding]
    finally:
        served.engine.audits.broken = False


def test_ls(served: Web) -> None:
    done = served.cli("audit", "ls")
    assert done.returncode == 0
    title, row = done.stdout.decode().splitlines()
    assert title.split() == ["AT", "ID", "LANE", "WHO", "ACTION", "SUBJECT"]
    assert "krn_1:1" in row and "the server" in row
    assert "\x1b" not in row and "\\x1b[31m" in row, "what came from a box is no terminal code"
    rows = json.loads(served.cli("audit", "ls", "--lane", "release", "--limit", "7", "--json").stdout)["rows"]
    assert (rows[0]["lane"], rows[0]["seq"]) == ("release", 1)
    lanes, since, before, limit = served.engine.audits.asked
    assert (lanes, since, before, limit) == ({"release"}, None, None, 7)
    assert served.cli("audit", "ls", "--since", "2026-01-31T12:00", "--before", "krn_1:9").returncode == 0
    assert str(served.engine.audits.asked[1]) == "2026-01-31 12:00:00+00:00"
    assert served.cli("audit", "ls", "--since", "12h").returncode == 0
    assert served.cli("audit", "ls", "--since", "9999999d").returncode == 0, "older than any calendar: all there is"
    assert served.engine.audits.asked[1].utcoffset() is not None


def test_traffic(served: Web) -> None:
    done = served.cli("audit", "ls", "--lane", "traffic")
    assert b"example.org" in done.stdout
    assert done.stderr == b"no evidence: 3 older entries are forgotten\n"
    assert json.loads(served.cli("audit", "ls", "--lane", "traffic", "--json").stdout)["dropped"] == 3


@pytest.mark.parametrize(
    "words", [("--lane", "x"), ("--since", "yesterday"), ("--since", ""), ("--limit", "0"), ("--limit", "x")]
)
def test_wrong_usage(served: Web, words: tuple[str, str]) -> None:
    assert served.cli("audit", "ls", *words).returncode == 2


@pytest.mark.parametrize("words", [("--since", "1h"), ("--before", "krn_1:9"), ("--db", "sqlite:////none")])
def test_what_traffic_cannot_be_asked_is_no_silent_answer(served: Web, words: tuple[str, str]) -> None:
    done = served.cli("audit", "ls", "--lane", "traffic", *words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert words[0].encode() in done.stderr


def test_only_operators(served: Web) -> None:
    token = {"RINGFENCE_URL": served.url, "RINGFENCE_TOKEN": served.token("alice")}
    for words in (("verify",), ("ls",), ("ls", "--lane", "traffic")):
        done = served.cli("audit", *words, env=token)
        assert done.returncode == 3, done.stderr
