"""Files over HTTP: bytes in names and contents, streamed both ways, never a page of ours. Numbers: cases.md."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest

from ringfence.client import Conflict, Invalid, NotFound, Refused, Unavailable
from ringfence.client.files import name_of
from tests.support.web_rig import Web, web

NAMES = [
    "été 🎉".encode(),
    b"with spaces",
    b"-rf",
    b"new\nline",
    b"%2e%2e",
    b"a+b&c=d#e?f",
    b"x" * 255,
    b"bad \xff\xfe",
]


@pytest.fixture(scope="module")
def served() -> Iterator[Web]:
    with web() as made:
        made.user("alice")
        yield made


@pytest.mark.parametrize("name", NAMES, ids=[ascii(name)[:20] for name in NAMES])
async def test_any_name_works_byte_exact(served: Web, name: bytes) -> None:
    """C38."""
    data = os.urandom(1000)
    async with served.client() as client:
        put = await client.put_file("alice", b"names/" + name, data, mode=0o750)
        assert (put["size"], put["mode"], name_of(put)) == (1000, "750", name)
        assert await client.get_file("alice", b"names/" + name) == data
        assert name in [name_of(entry) for entry in await client.list_files("alice", "names")]
        assert (await client.stat_file("alice", b"names/" + name))["kind"] == "file"
        await client.remove_file("alice", b"names/" + name)
        with pytest.raises(NotFound):
            await client.stat_file("alice", b"names/" + name)
    assert (served.engine.world.home("default", "alice") / "names").is_dir()


async def test_a_large_file_both_ways(served: Web) -> None:
    block = os.urandom(1 << 20)

    async def blocks() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield block

    async with served.client() as client:
        assert (await client.put_file("alice", "large", blocks()))["size"] == 64 << 20
        digest = hashlib.sha256()
        async with client.open_file("alice", "large") as chunks:
            async for chunk in chunks:
                digest.update(chunk)
    assert digest.digest() == hashlib.sha256(block * 64).digest()


async def test_an_upload_that_breaks_changes_nothing(served: Web) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        await asyncio.sleep(0.1)
        raise KeyError("the source failed")

    async with served.client() as client:
        await client.put_file("alice", "whole", b"before")
        with pytest.raises(KeyError):
            await client.put_file("alice", "whole", broken())
        await asyncio.sleep(0.2)
        assert await client.get_file("alice", "whole") == b"before"
        assert not [entry for entry in await client.list_files("alice") if name_of(entry).startswith(b".part")]


async def test_pages(served: Web) -> None:
    async with served.client() as client:
        for number in range(25):
            await client.put_file("alice", f"many/{number:02}", b"")
        names = [f"{number:02}" for number in range(25)]
        assert [entry["name"] for entry in await client.list_files("alice", "many")] == names
    async with httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=served.socket), trust_env=False) as raw:
        seen: list[str] = []
        after: str | None = ""
        while after is not None:
            url = f"http://localhost/v1/tenants/default/users/alice/files/list?path=many&limit=10{after}"
            page = (await raw.get(url)).json()
            seen += [entry["name"] for entry in page["entries"]]
            after = f"&after={page['next']}" if page["next"] else None
        assert seen == names


async def test_what_a_box_holds_never_becomes_a_page(served: Web) -> None:
    async with served.client() as client:
        await client.put_file("alice", "x.html", b"<script>alert(1)</script>")
    async with httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=served.socket), trust_env=False) as raw:
        answer = await raw.get("http://localhost/v1/tenants/default/users/alice/files?path=x.html")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == "attachment"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert answer.headers["content-length"] == "25"


async def test_refusals(served: Web) -> None:
    async with served.client() as client:
        with pytest.raises(Refused):
            await client.get_file("alice", "../x")
        with pytest.raises(Refused):
            await client.put_file("alice", b"nul\0", b"")
        with pytest.raises(Invalid):
            await client.put_file("alice", "x", b"", mode=0o4755)
        await client.put_file("alice", "full/x", b"")
        with pytest.raises(Conflict):
            await client.remove_file("alice", "full")
        await client.remove_file("alice", "full", recursive=True)
        with pytest.raises(Refused):
            await client.get_file("alice", ".")
    async with httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=served.socket), trust_env=False) as raw:
        base = "http://localhost/v1/tenants/default/users/alice/files"
        assert (await raw.get(base)).json()["error"]["message"] == "no path"
        assert (await raw.put(f"{base}?path=x&mode=9", content=b"")).status_code == 422
        assert (await raw.get(f"{base}/list?path=.&after=%21")).status_code == 422
        assert (await raw.get(f"{base}/list?path=.&limit=0")).status_code == 422


async def test_a_file_that_shrinks_is_not_taken_for_whole(served: Web) -> None:
    """What was promised by its length and did not come is an error at the client, not a short file."""
    path = served.engine.world.home("default", "alice") / "shrinks"
    path.write_bytes(b"x" * (32 << 20))
    async with served.client() as client:
        with pytest.raises(Unavailable):
            async with client.open_file("alice", "shrinks") as chunks:
                await anext(chunks)
                os.truncate(path, 1 << 20)
                async for _ in chunks:
                    pass
