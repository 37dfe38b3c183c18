"""The environment of a command: exactly this table and what the request adds. Pure; nothing of the server's own.

Paths are those in the box (architecture.md section 4). Package managers install into HOME, where it survives a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

HOME = "/home/user"
LOCAL = f"{HOME}/.local"

BASE: dict[str, str] = {
    "PATH": f"{LOCAL}/bin:/opt/ringfence/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": HOME,
    "USER": "user",
    "LOGNAME": "user",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TERM": "dumb",  # no terminal is behind a plain command: no colours, no cursor movement in what is kept
    "TMPDIR": "/tmp",
    "XDG_CONFIG_HOME": f"{HOME}/.config",
    "XDG_CACHE_HOME": f"{HOME}/.cache",
    "XDG_DATA_HOME": f"{LOCAL}/share",
    "XDG_STATE_HOME": f"{LOCAL}/state",
    # pip sees that the system's python is read-only and takes HOME by itself (decision 0010); PIP_USER would be in the way
    # in a virtual environment.
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "npm_config_prefix": LOCAL,
    "npm_config_update_notifier": "false",
    "UV_TOOL_BIN_DIR": f"{LOCAL}/bin",
    "UV_TOOL_DIR": f"{LOCAL}/share/uv/tools",
    "UV_PYTHON_INSTALL_DIR": f"{LOCAL}/share/uv/python",
    "UV_PYTHON_BIN_DIR": f"{LOCAL}/bin",
    "CARGO_HOME": f"{HOME}/.cargo",
    "CARGO_INSTALL_ROOT": LOCAL,
    "GOPATH": f"{HOME}/go",
    "GOBIN": f"{LOCAL}/bin",
}

_ENCODED: Mapping[str, bytes] = MappingProxyType({name: value.encode() for name, value in BASE.items()})


def command_environment(extra: Mapping[str, bytes]) -> dict[str, bytes]:
    """BASE with `extra` over it, as bytes. `extra` is checked by its caller (no `=`, no NUL)."""
    return {**_ENCODED, **extra}
