"""Whether the installed bubblewrap is fit to start boxes. Must be asked before the user namespace is entered, where the
host's owners are no longer visible."""

from __future__ import annotations

import os
import re
import stat
import subprocess

from ringfence.spawner.errors import StartRefused

OLDEST = (0, 8, 0)  # --as-pid-1, --perms, --size, --args, --block-fd all there
INSTALL = "apt-get install bubblewrap"


def parse_version(text: str) -> tuple[int, ...]:
    """`bubblewrap 0.8.0` -> (0, 8, 0); () when it is no such line."""
    match = re.match(r"bubblewrap (\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part or 0) for part in match.groups()) if match else ()


def check(path: str) -> str:
    """Its version. StartRefused: missing, outside /usr, setuid, writable by others, older than the layout allows."""
    real = os.path.realpath(path)
    try:
        status = os.stat(real)
    except OSError as error:
        raise StartRefused(f"bubblewrap is not installed ({path})", INSTALL) from error
    if not real.startswith("/usr/"):
        raise StartRefused(f"bubblewrap must lie below /usr, not at {real}", INSTALL)
    if status.st_mode & (stat.S_ISUID | stat.S_ISGID) or "security.capability" in os.listxattr(real):
        raise StartRefused("bubblewrap is setuid: ringfence drops to the box's own id itself", f"chmod u-s,g-s {real}")
    for place in (real, os.path.dirname(real)):
        status = os.stat(place)
        if status.st_uid != 0 or status.st_mode & 0o022:
            raise StartRefused(f"{place} can be written by others than root", f"chown root {place}; chmod go-w {place}")
    done = subprocess.run([real, "--version"], capture_output=True, text=True, env={}, check=False, timeout=10)
    version = parse_version(done.stdout)
    if version < OLDEST:
        raise StartRefused(f"bubblewrap 0.8.0 or later is needed, {done.stdout.strip() or 'none'} found", INSTALL)
    return ".".join(str(part) for part in version)
