"""scripts/setup on a host that lacks something: what it says, and what it does as root. Parts are hidden in a mount
namespace of the test's own, so the host keeps them."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
HIDE = "for f in /usr/bin/bwrap /usr/bin/newuidmap; do [ ! -e $f ] || mount --bind /dev/null $f; done; "


@pytest.fixture
def checkout() -> Iterator[Path]:
    """Only the script: each of these runs ends before it needs more."""
    with tempfile.TemporaryDirectory(prefix="ringfence-setup-") as name:
        path = Path(name)
        path.chmod(0o755)
        (path / "scripts").mkdir()
        shutil.copy(TOP / "scripts" / "setup", path / "scripts" / "setup")
        yield path


def hidden(script: str, checkout: Path) -> subprocess.CompletedProcess[str]:
    command = ["unshare", "--mount", "sh", "-c", HIDE + script, "sh", str(checkout)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd="/")


@pytest.mark.root
def test_an_ordinary_user_gets_the_command(checkout: Path) -> None:
    done = hidden('exec setpriv --reuid 65534 --regid 65534 --clear-groups sh "$1/scripts/setup"', checkout)
    assert done.returncode == 5
    assert "apt-get update && apt-get install -y bubblewrap uidmap" in done.stderr
    assert not (checkout / ".venv").exists()


@pytest.mark.root
def test_root_installs_what_is_missing_and_no_more(checkout: Path) -> None:
    fake = checkout / "apt-get"
    fake.write_text(f'#!/bin/sh\necho "$DEBIAN_FRONTEND $*" >>{checkout}/calls\n[ "$1" = update ]\n')
    fake.chmod(0o755)
    done = hidden('mount --bind "$1/apt-get" /usr/bin/apt-get; exec sh "$1/scripts/setup"', checkout)
    assert done.returncode != 0
    assert "installing bubblewrap uidmap" in done.stderr
    calls = (checkout / "calls").read_text().splitlines()
    assert calls == [
        "noninteractive update -qq",
        "noninteractive install -y -qq --no-install-recommends bubblewrap uidmap",
    ]
