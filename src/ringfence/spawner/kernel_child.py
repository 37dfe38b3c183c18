"""The kernel's process: forked, without any right, with its end of the pair as descriptor 3. Must never inherit another."""

from __future__ import annotations

import os
import socket
from typing import NoReturn

from ringfence.spawner import drop
from ringfence.spawner.config import Config

CHANNEL = 3
_CODE = "import sys; sys.path.insert(0, {site!r}); from ringfence.host.app import main; main()"


def command(config: Config) -> list[str]:
    """Isolated from its environment; everything it loads is root-owned."""
    code = _CODE.format(site=f"{config.runtime}/site")
    return [config.python, "-I", "-S", "-B", "-c", code, str(CHANNEL), config.kernel_config]


def environment(config: Config) -> dict[str, str]:
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": config.home,
        "RINGFENCE_HOME": config.home,
    }


def start(config: Config, channel: socket.socket) -> int:
    """Forks it; returns its pid. `channel`: the kernel's end of the pair, which the caller then closes."""
    pid = os.fork()
    if pid == 0:
        _child(config, channel)
    return pid


def _child(config: Config, channel: socket.socket) -> NoReturn:
    try:
        drop.reset_signals()
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        drop.keep_only([channel.fileno()], CHANNEL)
        os.umask(0o077)
        os.chdir("/")
        drop.to_account(config.kernel_uid, config.kernel_gid, groups=config.mode != "shared")
        os.execve(config.python, command(config), environment(config))
    except BaseException as error:
        os.write(2, f"ringfence: the kernel cannot be started: {error!r}\n".encode())
    finally:
        os._exit(126)
