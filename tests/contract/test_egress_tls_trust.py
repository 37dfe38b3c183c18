"""Programs of a box that do not trust its CA: what the log says of them, by real clients."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ringfence.host.egress import distrust
from ringfence.host.egress.trust import Trust
from tests.support.egress_outside import Ca
from tests.support.egress_rig import Rig, request, rig


@pytest.fixture
async def way(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


def found(way: Rig) -> list[tuple[str, str, str]]:
    return [
        (kind, details["host"], details["how"]) for kind, _, details in way.kernel.findings if kind == "ca_distrusted"
    ]


async def run(*argv: str) -> int | None:
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(20):
            return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_an_alert_says_so(way: Rig, version: ssl.TLSVersion) -> None:
    context = ssl.create_default_context(cadata=Ca("another").pem)
    context.minimum_version = context.maximum_version = version
    with pytest.raises(ssl.SSLError):
        await asyncio.to_thread(greeted, way.port, context)
    await asyncio.sleep(0.1)
    assert found(way) == [("ca_distrusted", "api.test", "unknown_ca")]
    assert way.upstream.connections == 0


def greeted(port: int, context: ssl.SSLContext) -> None:
    """By a blocking client: it sends its alert."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n\r\n")
        while b"\r\n\r\n" not in sock.recv(4096):
            pass
        context.wrap_socket(sock, server_hostname="api.test").close()


async def test_asyncio_leaves_without_a_word(way: Rig) -> None:
    _, writer = await way.tunnel(tls=False)
    with pytest.raises(ssl.SSLError):
        await writer.start_tls(ssl.create_default_context(cadata=Ca("another").pem), server_hostname="api.test")
    await asyncio.sleep(0.1)
    assert found(way) == [("ca_distrusted", "api.test", "closed")]


async def test_curl_without_the_ca(way: Rig) -> None:
    proxy = f"http://127.0.0.1:{way.port}"
    assert await run("curl", "-sS", "-x", proxy, "https://api.test/") == 60
    assert found(way) == [("ca_distrusted", "api.test", "unknown_ca")]


async def test_curl_with_the_ca_and_with_verification_off(way: Rig) -> None:
    """The control: nothing is said of who trusts, nor of who does not look."""
    proxy = f"http://127.0.0.1:{way.port}"
    assert await run("curl", "-sS", "--cacert", str(way.user_ca.path), "-x", proxy, "https://api.test/") == 0
    assert await run("curl", "-sSk", "-x", proxy, "https://api.test/") == 0
    assert found(way) == []


async def test_who_looks_after_the_handshake_and_leaves(way: Rig) -> None:
    """As node does: no alert, no byte."""
    _, writer = await way.tunnel()
    writer.close()
    await asyncio.sleep(0.1)
    assert found(way) == [("ca_distrusted", "api.test", "closed")]


async def test_who_asks_and_leaves_is_not_meant(way: Rig) -> None:
    await way.asked(request("GET", "/"))
    _, writer = await way.tunnel()
    writer.write(b"GET / HT")
    await asyncio.sleep(0.1)
    writer.transport.abort()
    await asyncio.sleep(0.1)
    assert found(way) == []


@pytest.mark.parametrize("error", [None, OSError(), ssl.SSLError(1, "x"), ConnectionResetError()])
def test_other_ends_say_nothing(error: Exception | None) -> None:
    assert distrust.after_it(error, silent=False) is None


@pytest.mark.parametrize("error", [TimeoutError(), ssl.SSLError(1, "no shared cipher")])
def test_other_handshakes_say_nothing(error: Exception) -> None:
    assert distrust.in_handshake(error) is None


# --- roots ------------------------------------------------------------------------------------------------------------


def certificates(context: ssl.SSLContext) -> int:
    return len(context.get_ca_certs())


def test_roots_that_were_read_before_are_taken_and_more_are_added_once() -> None:
    public, corporate = Ca("public").pem, Ca("corporate").pem
    trust = Trust(public)
    first = trust.context(public + corporate)
    assert certificates(first) == 2
    assert trust.context(public + corporate) is first
    second = trust.context(public)
    assert second is not first
    assert certificates(second) == 1
    third = trust.context(public + Ca("other").pem)  # what is in use gets no root
    assert third is not second
    assert (certificates(second), certificates(third)) == (1, 2)


@pytest.mark.parametrize("wrong", ["", "nothing", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_is_no_root_is_refused_and_leaves_nothing(wrong: str) -> None:
    public = Ca("public").pem
    prepared = Trust(public)
    with pytest.raises((ValueError, ssl.SSLError)):
        prepared.context(public + Ca("half").pem + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert certificates(prepared.context(public)) == 1
    with pytest.raises((ValueError, ssl.SSLError)):
        Trust().context(wrong)
