"""What the template does once before it forks: the whole way of a request, in this process, and nothing stays of it."""

from __future__ import annotations

import gc
import os
import socket
from pathlib import Path

import pytest

from ringfence.host.egress import rehearsal, resting


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_it_is_played_to_its_end_and_leaves_no_descriptor() -> None:
    gc.collect()
    before = descriptors()
    assert rehearsal.rehearse()
    gc.collect()
    assert len(descriptors()) <= len(before)


def test_nobody_is_listened_to_or_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a socket of the host was used")

    for name in ("bind", "listen", "connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, never)
    assert rehearsal.rehearse()


def test_one_that_breaks_off_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "SECONDS", 0.0)
    assert not rehearsal.rehearse()


def resident() -> int:
    """KiB."""
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0])


def test_free_memory_goes_back() -> None:
    blocks = [bytes(8 << 10) for _ in range(8 << 10)]  # 64 MiB, in pieces that the C library keeps
    pins = blocks[::64]
    full = resident()
    del blocks
    resting.rest()
    assert full - resident() > 32 << 10
    assert len(pins) == 128
