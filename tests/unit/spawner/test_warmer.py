"""The warmer's rounds: what it writes once it is asked, and that it ends with its pipe."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from ringfence.spawner import warmer
from ringfence.spawner.cgroups import Cgroups


def test_one_word_is_one_round_of_writes_and_the_end_of_the_pipe_ends_it(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    procs = os.open(tmp_path / "procs", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    thread = threading.Thread(target=warmer._serve, args=(reader, procs))
    thread.start()
    try:
        time.sleep(0.1)
        assert (tmp_path / "procs").read_bytes() == b""  # nothing unasked: each write costs the host something
        os.write(writer, b"w")
        time.sleep(warmer.WARM_SECONDS * 3)
        first = (tmp_path / "procs").read_bytes()
        assert set(first) == set(b"0") and 2 <= len(first) <= warmer.WARM_SECONDS / warmer.STEP_SECONDS + 1
        time.sleep(0.1)
        assert (tmp_path / "procs").read_bytes() == first
        os.write(writer, b"w")
    finally:
        os.close(writer)
        thread.join(5)
    assert not thread.is_alive() and len((tmp_path / "procs").read_bytes()) > len(first)
    os.close(reader)
    os.close(procs)


def test_without_cgroups_there_is_no_warmer() -> None:
    before = os.listdir("/proc/self/fd")
    none = warmer.Warmer(Cgroups("none", ()), groups=True)
    none.warm()
    none.end()
    none.end()
    assert os.listdir("/proc/self/fd") == before
