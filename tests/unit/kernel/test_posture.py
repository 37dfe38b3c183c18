"""What the agent is told of its walls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringfence.host.kernel.posture import Posture, paragraph, weaknesses
from ringfence.host.kernel.settings import ACCEPT

FULL = Posture("bubblewrap", "root", (), network=False, memory_bytes=1 << 30, pids=512, disk_bytes=8 << 30)


def test_a_full_host() -> None:
    text = paragraph(FULL)
    for fact in (
        "bubblewrap",
        "root mode",
        "no network",
        "1024 MiB",
        "512 processes",
        "/home/user",
        "/workspace",
        "/tmp",
    ):
        assert fact in text
    assert "does not enforce" not in text
    assert "\n" not in text


@pytest.mark.parametrize("weak", list(ACCEPT))
def test_each_missing_wall_is_said(weak: str) -> None:
    text = paragraph(replace(FULL, weak=(weak,)))
    assert "does not enforce" in text
    [clause] = weaknesses([weak])
    assert clause in text
    assert "lacks" not in clause  # every known id has words of its own


def test_no_limit_is_claimed_without_cgroups() -> None:
    text = paragraph(replace(FULL, weak=("no-cgroup",)))
    assert "of memory" not in text and "8192 MiB together" in text


def test_no_size_is_claimed_where_files_are_only_counted() -> None:
    assert "together" not in paragraph(replace(FULL, weak=("no-disk-quota",)))


def test_an_open_row_of_prove_is_named() -> None:
    assert "attack C06 " in paragraph(replace(FULL, weak=("C06",)))


def test_an_unknown_weakness_is_named_as_it_is() -> None:
    assert "this host lacks no-future" in paragraph(replace(FULL, weak=("no-future",)))


def test_an_open_network_is_not_called_none() -> None:
    assert "no network" not in paragraph(replace(FULL, network=True))
