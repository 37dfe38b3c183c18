"""Another proxy as it comes, of an environment of its own (scripts/oracle): it intercepts, and leads to the servers it is told."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).parents[2]
PROGRAM = Path(os.environ.get("RINGFENCE_TESTS_MITMDUMP", TOP / ".venv-oracle" / "bin" / "mitmdump"))
_PATIENCE = 120.0
# Its own hook: where a connection goes, by whether it is to speak TLS.
_ADDON = """
def server_connect(data):
    data.server.address = ("127.0.0.1", {tls} if data.server.address[1] == 443 else {plain})
"""


@dataclass(frozen=True)
class Mitmdump:
    """`explicit`: asked by CONNECT and absolute targets; `transparent`: as if it were the server of HOST."""

    explicit: int
    transparent: int
    ca: Path


@asynccontextmanager
async def mitmdump(folder: Path, *, tls: int, plain: int) -> AsyncIterator[Mitmdump]:
    """`tls`, `plain`: ports of the servers."""
    explicit, transparent = _free(), _free()
    addon = folder / "leads.py"
    addon.write_text(_ADDON.format(tls=tls, plain=plain))
    words = [
        "--mode",
        f"regular@127.0.0.1:{explicit}",
        "--mode",
        f"reverse:https://api.test:443@127.0.0.1:{transparent}",
    ]
    options = [
        f"confdir={folder}",
        "http2=false",
        "connection_strategy=lazy",
        "upstream_cert=false",
        "keep_host_header=true",
    ]
    for option in (*options, "ssl_insecure=true", "flow_detail=0", "websocket=true"):
        words += ["--set", option]
    with (folder / "mitmdump.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            str(PROGRAM), "-q", *words, "-s", str(addon), stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        async with asyncio.timeout(_PATIENCE):
            for port in (explicit, transparent):
                await _listens(port, process, folder)
        yield Mitmdump(explicit, transparent, folder / "mitmproxy-ca-cert.pem")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _listens(port: int, process: asyncio.subprocess.Process, folder: Path) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            assert process.returncode is None, (folder / "mitmdump.log").read_text()
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return


def _free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
