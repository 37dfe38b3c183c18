"""`ringfence audit` where no server runs: reads the store as the kernel's account, from the runtime copy, and changes nothing.

The key of the vault and the database are the kernel's; root reads neither itself.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ringfence.host.install import prepare, state
from ringfence.host.install.layout import Layout, home_of
from ringfence.host.install.prepare import Ready
from ringfence.host.kernel.errors import Failed, RingfenceError, Unavailable
from ringfence.host.kernel.settings import ACCEPT, Settings

# Prints one JSON object: the answer, or {"error": ...} of kernel.errors.
_READ = (
    "import asyncio, json; from ringfence.host.app import own_audit; "
    "print(json.dumps(asyncio.run(own_audit(sys.argv[1], json.loads(sys.argv[2])))))"
)
_SECONDS = 3600  # 20,000 rows a second: 72 million


def read(environment: Mapping[str, str], wish: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of `app.read_audit`, or `{"error": {"code", "message", "remedy", "details"}, "exit": code}`."""
    try:
        layout = Layout(home_of(environment, os.geteuid()))
        if state.load(layout) is None:
            raise Unavailable(f"there is no state at {layout.home}", remedy="ringfence init, or export RINGFENCE_HOME")
        with prepare.no_server(layout):
            return _asked(_ready(layout), wish)
    except RingfenceError as error:
        return {"error": error.as_json(), "exit": error.exit_code}
    except OSError as error:  # of another account
        refused = Unavailable(f"the state cannot be read: {error}", remedy="run it as the server's owner")
        return {"error": refused.as_json(), "exit": refused.exit_code}


def _ready(layout: Layout) -> Ready:
    settings = prepare.read_settings(layout.settings, missing_ok=True)
    mode = prepare.mode_of(replace(settings, accept=tuple(ACCEPT)))
    ready = prepare.make_state(layout, replace(settings, mode=mode))
    try:  # what the last server ran with: its database may have been named on its command line
        last = Settings.from_json(json.loads(layout.kernel_json.read_text()))
    except (OSError, ValueError):
        return ready
    return replace(ready, settings=replace(ready.settings, database=last.database))


def _asked(ready: Ready, wish: Mapping[str, Any]) -> dict[str, Any]:
    copied = prepare.copy_runtime(ready)
    prepare.write_kernel_json(ready)
    arguments = (str(ready.layout.kernel_json), json.dumps(dict(wish)))
    command = prepare.launch(copied.site, ready.settings.python, _READ, *arguments)
    root = os.geteuid() == 0
    done = subprocess.run(
        command, env=prepare.minimal_environment(), cwd="/", capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, timeout=_SECONDS, umask=0o077,
        user=ready.kernel.uid if root else None, group=ready.kernel.gid if root else None,
        extra_groups=[] if root else None,
    )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        raise Failed(f"the audit cannot be read: {last[:500]}", remedy="ringfence doctor; ringfence config show")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
