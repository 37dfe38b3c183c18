"""A canary in the place of the database's password and of a webhook's token: in nothing that a person or a log is shown."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ringfence.host.install import commands
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.store.store import open_store
from tests.support.clocks import CountingIds
from tests.support.databases import Databases, address
from tests.support.engine_rig import RealClock
from tests.support.installation import Installation, installation

CANARY = "canary-of-a-password"
HOOK = f"""
[[webhook]]
name = "pay"
url = "http://127.0.0.1:9/hook?token={CANARY}"
lookup_url = "http://127.0.0.1:9/look?token={CANARY}"
secret_file = "/nowhere"
"""
_REFUSES = b"SFATAL\0C28P01\0Mpassword authentication failed\0\0"


@asynccontextmanager
async def server(answer: bytes) -> AsyncIterator[int]:
    """No PostgreSQL: it answers the first words with these bytes and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        await listening.wait_closed()


ADDRESSES: dict[str, Callable[[int], str]] = {
    "it hangs up": lambda port: f"postgresql://u:{CANARY}@127.0.0.1:{port}/db?ssl=disable",
    "nobody is there": lambda _: f"postgresql://u:{CANARY}@127.0.0.1:1/db",
    "no such host": lambda _: f"postgresql://u:x@{CANARY}@127.0.0.1:1/db",
    "no number": lambda _: f"postgresql://u:x@h:{CANARY}@127.0.0.1:1/db",
    "an unknown option": lambda port: f"postgresql://u@127.0.0.1:{port}/db?password={CANARY}&nonsense=1",
    "a wrong option": lambda port: f"postgresql://u:{CANARY}@127.0.0.1:{port}/db?ssl=nonsense",
    "another kind": lambda _: f"mysql://u:{CANARY}@127.0.0.1:1/db",
}


@pytest.mark.parametrize("refuses", [b"", b"E%b%b" % ((len(_REFUSES) + 4).to_bytes(4), _REFUSES)], ids=["", "refuses"])
@pytest.mark.parametrize("what", ADDRESSES)
async def test_errors_of_a_database(caplog: pytest.LogCaptureFixture, what: str, refuses: bytes) -> None:
    """Message, remedy, details; the traceback with all that it stands on; what was logged."""
    caplog.set_level(logging.DEBUG)
    async with server(refuses) as port:
        with pytest.raises(RingfenceError) as refused:
            await open_store(ADDRESSES[what](port), RealClock(), CountingIds())
    whole = "".join(traceback.format_exception(refused.value))
    assert CANARY not in json.dumps(refused.value.as_json()) + whole + caplog.text


ELSEWHERE = (f"postgresql://u:{CANARY}@127.0.0.1:1/db", f"postgresql://u:x@h:{CANARY}@127.0.0.1:1/db")


@pytest.mark.root
def test_what_a_server_and_its_commands_say(databases: Databases, tmp_path: Path) -> None:
    """On PostgreSQL, with the password in ringfence.toml. Its end is told into the log as well."""
    with databases.within(tmp_path, alone=True):
        databases.cluster.folder.chmod(0o711)  # for the server's account, which is another one
        url = address(tmp_path).replace("postgresql://ringfence@", f"postgresql://ringfence:{CANARY}@")
        with installation(settings=f'database = "{url}"\n', started=False) as made:
            made.start()
            said = [_said(made, "status", "--json"), _said(made, "doctor", "--json"), _said(made, "db", "check")]
            said += [_said(made, "db", "check", "--db", url) for url in ELSEWHERE]
            databases.cluster.sql("postgres", _CUT)
            said += [_said(made, "status"), *_shown(made)]
            assert "postgresql://ringfence:…@" in said[-1], "the address is there, without the password"
            made.stop()
            (made.home / "ringfence.toml").write_text(f'database = "{ELSEWHERE[0]}"\n{HOOK}')
            said += _shown(made)
            assert "https" not in said[-1] and "/hook?(hidden)" in said[-1]
            (made.home / "ringfence.toml").write_text(f'database = "mysql://u:{CANARY}@h/db"\n')
            said += _shown(made)
            told = "\n".join([*said, made.log.read_text()])
            assert CANARY in (made.home / "ringfence.toml").read_text(), "control"
            assert CANARY not in told, told[max(0, told.index(CANARY) - 300) :][:600]


_CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'ringfence%'"


def _said(made: Installation, *words: str) -> str:
    result = made.run(*words)
    return f"{' '.join(words[:2])}: {result.text} {result.errors}"


def _shown(made: Installation) -> list[str]:
    """What the commands about settings print; in this process, as they need no other."""
    where = {"RINGFENCE_HOME": str(made.home)}
    shown = [
        commands.config_check(where, None, as_json=True, rows=tuple),
        commands.config_show(where, None, as_json=True),
        commands.config_show(where, None, as_json=False),
    ]
    return [f"{one.code} {one.out} {one.err}" for one in shown]
