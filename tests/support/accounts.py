"""A throw-away account with subordinate ids, for servers of ordinary users."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

COUNT = 65536


@dataclass(frozen=True)
class Account:
    name: str
    uid: int
    gid: int
    first: int  # of COUNT subordinate ids


@pytest.fixture(scope="session")
def account() -> Iterator[Account]:
    name, first = f"rfo{os.getpid()}", 70_000_000 + os.getpid() % 1000 * COUNT
    subprocess.run(["useradd", "-m", "-s", "/bin/bash", name], check=True)
    entry = pwd.getpwnam(name)
    span = f"{first}-{first + COUNT - 1}"
    subprocess.run(["usermod", "--add-subuids", span, "--add-subgids", span, name], check=True)
    try:
        yield Account(name, entry.pw_uid, entry.pw_gid, first)
    finally:
        subprocess.run(["userdel", "-r", name], check=True, stderr=subprocess.DEVNULL)
