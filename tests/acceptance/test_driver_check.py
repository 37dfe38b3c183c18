"""F101: `doctor --driver` passes on this host, in one JSON report."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from ringfence.bench.throwaway import COMMAND


def doctor(*words: str) -> subprocess.CompletedProcess[bytes]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RINGFENCE_")}
    return subprocess.run([COMMAND, "doctor", *words], env=environment, capture_output=True, timeout=180, check=False)


@pytest.mark.root
def test_bubblewrap_passes_its_self_check() -> None:
    done = doctor("--driver", "bubblewrap", "--json")
    report = json.loads(done.stdout)
    assert [check for check in report["checks"] if not check["ok"]] == []
    assert (done.returncode, report["driver"], report["ok"]) == (0, "bubblewrap", True)
    assert len(report["checks"]) >= 50


def test_an_unknown_driver_is_wrong_usage() -> None:
    done = doctor("--driver", "docker", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["remedy"] == "--driver bubblewrap"
