"""Bytes and outcomes to JSON."""

from __future__ import annotations

import json
from base64 import b64decode

from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.kernel.ports import FileInfo, Kept, Outcome
from ringfence.host.web import shaping


def outcome(kept: Kept) -> dict[str, object]:
    return shaping.outcome(Outcome(0, None, "exit", "", [], 1, kept, Kept(b"", b"", 0, 0)))


@given(st.binary(max_size=40))
def test_what_is_kept_whole_comes_back_byte_exact(data: bytes) -> None:
    shaped = outcome(Kept(data[:20], data[20:], len(data), 0))
    text = shaped.get("stdout")
    got = text.encode() if isinstance(text, str) else b64decode(str(shaped["stdout_b64"]))
    assert got == data
    assert shaped["stdout_dropped"] == 0
    json.dumps(shaped)


@given(st.text(alphabet="aé€😀", min_size=4, max_size=30), st.data())
def test_a_cut_through_a_character_leaves_text(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    first = data.draw(st.integers(0, len(raw)))
    second = data.draw(st.integers(first, len(raw)))
    dropped = second - first
    shaped = outcome(Kept(raw[:first], raw[second:], len(raw), dropped))
    if dropped:
        kept = str(shaped["stdout"])
        head, _, tail = kept.partition(f"\n[... {shaped['stdout_dropped']} bytes are missing here ...]\n")
        assert text.startswith(head) and text.endswith(tail)
        assert len(head.encode()) + len(tail.encode()) + int(str(shaped["stdout_dropped"])) == len(raw)


def test_a_cut_in_bytes_that_are_no_text() -> None:
    shaped = outcome(Kept(b"\xff\xfea", b"b\xff", 10, 5))
    assert b64decode(str(shaped["stdout_b64"])) == b"\xff\xfeab\xff"
    assert shaped["stdout_dropped"] == 5


def test_memory_figures_come_with_oom_only() -> None:
    oom = shaping.outcome(Outcome(None, 9, "oom", "", [], 1, memory_limit_bytes=5, memory_peak_bytes=4))
    assert (oom["memory_limit_bytes"], oom["memory_peak_bytes"]) == (5, 4)
    assert "memory_limit_bytes" not in outcome(Kept(b"", b"", 0, 0))


def test_names_that_are_no_text() -> None:
    plain = shaping.file(FileInfo(b"a", "symlink", 1, 0o4, 2, b"\xff"))
    assert plain == {
        "name": "a",
        "kind": "symlink",
        "size": 1,
        "mode": "004",
        "mtime_ns": 2,
        "target_b64": "/w==",
    }
