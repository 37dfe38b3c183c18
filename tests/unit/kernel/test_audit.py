"""Hashes and MACs of the audit, and the walk along a chain: plain functions of their input."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.kernel import audit
from ringfence.host.kernel.audit import GENESIS, OPEN, AuditRow, Head, Keys, Lane, head_mac, key_id, row_mac
from ringfence.host.kernel.audit_check import ChainCheck, Named, Report, Wrong, judged, names_in
from ringfence.host.kernel.errors import Invalid

KEY = b"k" * 32
MINE = Keys(KEY)
AT = datetime(2026, 1, 1, tzinfo=UTC)


def chain(number: int, key: bytes = KEY, name: str = "c") -> tuple[list[AuditRow], Head]:
    rows: list[AuditRow] = []
    previous = GENESIS
    for seq in range(1, number + 1):
        lane, action = (Lane.CHAIN, OPEN) if seq == 1 else (Lane.ACT, "x")
        row = AuditRow(name, seq, AT, lane, None, action, "s", None, {"n": seq}, previous, "", "")
        fresh = audit.hash_of(row)
        rows.append(replace(row, hash=fresh, mac=row_mac(key, name, seq, fresh)))
        previous = fresh
    return rows, headed(Head(name, 1, key_id(key), number, previous, False, None, 0, "", ""), key)


def headed(head: Head, key: bytes = KEY) -> Head:
    return replace(head, mac=head_mac(key, head))


def walk(rows: list[AuditRow], head: Head, keys: Keys = MINE) -> tuple[int, str] | None:
    check = ChainCheck(head, keys)
    for row in rows:
        check.feed(row)
    found = check.end()
    return None if found is None else (found.seq, found.wrong.value)


@pytest.mark.parametrize("number", [1, 2, 50])
def test_a_whole_chain(number: int) -> None:
    assert walk(*chain(number)) is None


FIELDS: dict[str, Any] = {
    "at": AT.replace(year=2025),
    "lane": "intent",
    "actor": {},
    "action": "y",
    "subject": "t",
    "ref": "c:1",
    "details": {"n": 3.0},
    "previous": GENESIS,
    "hash": GENESIS,
    "mac": GENESIS,
}


@given(st.integers(1, 8), st.sampled_from(sorted(FIELDS)))
def test_any_field_of_any_row(seq: int, name: str) -> None:
    rows, head = chain(8)
    if getattr(rows[seq - 1], name) == FIELDS[name]:
        return
    rows[seq - 1] = replace(rows[seq - 1], **{name: FIELDS[name]})
    found = walk(rows, head)
    assert found is not None and found[0] == seq


@given(st.permutations(range(1, 7)), st.integers(0, 6))
def test_any_order_and_any_part_but_the_whole(order: list[int], kept: int) -> None:
    rows, head = chain(6)
    chosen = [replace(rows[number - 1], seq=at + 1) for at, number in enumerate(order[:kept])]
    first_wrong = next((at + 1 for at, number in enumerate(order[:kept]) if number != at + 1), kept + 1)
    found = walk(chosen, head)
    if found is None:
        assert [row.seq for row in chosen] == [1, 2, 3, 4, 5, 6] and order == [1, 2, 3, 4, 5, 6]
    else:
        assert found[0] == first_wrong


@given(st.integers(1, 6))
def test_without_the_key_a_chain_that_follows_is_forged_from_the_first_row_that_is_new(seq: int) -> None:
    """All hashes are made right again from row `seq` on, with macs of another key."""
    rows, head = chain(6)
    previous = rows[seq - 2].hash if seq > 1 else GENESIS
    for at in range(seq - 1, 6):
        row = replace(rows[at], previous=previous, subject="forged" if at == seq - 1 else rows[at].subject)
        fresh = audit.hash_of(row)
        rows[at] = replace(row, hash=fresh, mac=row_mac(b"other", "c", at + 1, fresh))
        previous = fresh
    assert walk(rows, headed(replace(head, hash=previous), b"other")) == (seq, "forged")


def test_heads() -> None:
    rows, head = chain(4)
    for changed in (
        replace(head, generation=2),
        replace(head, ended=True),
        replace(head, closed_by="d"),
        replace(head, mac=rows[3].mac),
        replace(head, mac=""),
    ):
        assert walk(rows, changed) == (0, "head")
    assert walk(rows[:2], headed(replace(head, seq=2, hash=rows[1].hash))) is None, "control: with the key it is a head"
    assert walk(rows[:2], replace(head, seq=2, hash=rows[1].hash, mac=rows[1].mac)) == (0, "head")
    assert walk(rows, headed(replace(head, seq=3, hash=rows[2].hash))) == (4, "surplus")
    assert walk(rows, headed(replace(head, hash=GENESIS))) == (4, "head")
    assert walk(rows, headed(replace(head, key=""), b"")) == (0, "key")
    assert walk(rows, head, Keys(b"x" * 32)) == (0, "key")
    assert walk(rows, head, Keys(b"x" * 32, (KEY,))) is None
    assert walk(*chain(4, b""), Keys()) is None


def test_a_cut_that_is_signed() -> None:
    rows, head = chain(5)
    cut = headed(replace(head, cut_seq=2, cut_hash=rows[1].hash))
    assert walk(rows[2:], cut) is None
    assert walk(rows[3:], cut) == (3, "missing")
    assert walk(rows[2:], headed(replace(cut, cut_hash=GENESIS))) == (3, "unlinked")
    assert walk([], headed(replace(head, cut_seq=5, cut_hash=head.hash))) is None


def test_a_chain_begins_with_its_opening() -> None:
    rows, head = chain(1)
    row = replace(rows[0], action="x")
    fresh = audit.hash_of(row)
    row = replace(row, hash=fresh, mac=row_mac(KEY, "c", 1, fresh))
    assert walk([row], headed(replace(head, hash=fresh))) == (1, "unlinked")


def test_names() -> None:
    rows, head = chain(3)
    row = replace(rows[0], details={"heads": {"a": [3, "h"], "b": ["x", "h"], "c": 1, "d": [1, 2, 3]}})
    assert [(named.chain, named.seq, named.hash, named.by) for named in names_in(row)] == [("a", 3, "h", "c:1")]
    assert list(names_in(replace(row, lane=Lane.ACT))) == []
    assert list(names_in(replace(row, details={"heads": [1]}))) == []
    named = Named("c", 2, rows[1].hash, "d:1")
    assert judged(named, head, rows[1].hash) is None
    for seen, at, found, wrong in (
        (named, None, None, Wrong.GONE),
        (named, head, None, Wrong.CUT),
        (named, head, "other", Wrong.FORGED),
        (named, replace(head, cut_seq=2, cut_hash="other"), None, Wrong.FORGED),
    ):
        told = judged(seen, at, found)
        assert told is not None and told.wrong is wrong
    assert judged(named, replace(head, cut_seq=2, cut_hash=rows[1].hash), None) is None
    assert judged(named, replace(head, cut_seq=3, cut_hash="x"), None) is None
    assert judged(replace(named, seq=0), None, None) is None


def test_the_first_bad_row_is_told() -> None:
    report = Report()
    rows, head = chain(3)
    for found in (replace(head, ended=True), replace(head, seq=2)):
        check = ChainCheck(found, Keys(KEY))
        report.add(check.end())
    assert report.first["c"].seq == 1
    report.add(None)
    assert not report.ok and len(report.as_json()["findings"]) == 1
    assert rows


def test_ids_of_rows() -> None:
    assert audit.parse_row_id(audit.row_id("krn_a", 12)) == ("krn_a", 12)
    for odd in ("", "krn_a", ":1", "krn_a:", "krn_a:-1", "krn_a:1x", "krn_a:" + "9" * 19, "krn_a:²"):
        with pytest.raises(Invalid):
            audit.parse_row_id(odd)


def test_a_key_is_not_said() -> None:
    assert "k" * 4 not in repr(Keys(KEY, (KEY,))) and KEY.hex() not in repr(Keys(KEY))
    assert (key_id(b""), len(key_id(KEY))) == ("", 16)
    rows, _ = chain(1)
    macs = {row_mac(KEY, "c", 1, "h"), head_mac(KEY, Head("c", 1, "", 1, "h", False, None, 0, "", "")), rows[0].mac}
    assert len(macs) == 3
