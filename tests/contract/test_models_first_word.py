"""What stands between a client and its model's first word: one write for what is there, a connection made meanwhile, no turn too many.

Over real sockets and a real store. What is usual is framed by the gateway itself, all else by h11, on one connection as on several.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.host.kernel.errors import Exhausted
from ringfence.host.kernel.models.ports import Caller
from ringfence.host.kernel.models.usage import BudgetLimits
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.models import upstream_pool
from ringfence.host.models.gateway import _until
from tests.contract.test_models_gateway import ASKED, CHAT, answered, request
from tests.contract.test_models_upstream import KEY, OK, at, client, said, served, until
from tests.support.models_rig import Rig, a_rig
from tests.support.provider_double import Answer, chat

CHUNKS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"


# --- framing ----------------------------------------------------------------------------------------------------------


async def test_what_one_read_brought_goes_on_in_one_piece_and_the_connection_is_used_again() -> None:
    async with served(CHUNKS) as server, client() as made:
        for _ in range(2):
            async with made.post(at(f"http://127.0.0.1:{server.port}"), KEY, "/x", [b"{}"], {}) as answer:
                assert [piece async for piece in answer.pieces()] == [b"abc"]
        assert server.connections == 1


async def test_one_that_says_more_than_its_end_is_not_used_again() -> None:
    async with served(CHUNKS + b"HTTP/1.1 200 OK\r\n", OK) as server, client() as made:
        up = at(f"http://127.0.0.1:{server.port}")
        assert await said(made, up) == b"abc" and await said(made, up) == b"ok"
        assert server.connections == 2


@pytest.mark.parametrize("usual", [True, False])
async def test_what_is_to_go_goes_before_anything_is_waited_for(usual: bool) -> None:
    """The server goes on once it is told that somebody is about to wait: else both wait for ever."""
    go = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        head, _, rest = CHUNKS.partition(b"\r\n\r\n")
        writer.write((head if usual else head + b"\r\nconnection: close") + b"\r\n\r\n")
        await go.wait()
        writer.write(rest)
        writer.close()

    async def waits() -> None:
        go.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with client() as made, asyncio.timeout(30):
        up = at(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with made.post(up, KEY, "/x", [b"{}"], {}) as answer:
            assert b"".join([piece async for piece in answer.pieces(waits)]) == b"abc"
    server.close()


async def test_the_head_of_an_answer_does_not_wait_for_its_first_word(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer([], hang=True)) as rig, rig.connection() as (reader, writer):
        writer.write(request(CHAT, {**ASKED, "stream": True}))
        async with asyncio.timeout(30):
            head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ") and b"text/event-stream" in head


def chunked(raw: bytes) -> bytes:
    head, _, body = raw.partition(b"\r\n\r\n")
    kept = [line for line in head.split(b"\r\n") if not line.startswith(b"content-length")]
    return b"\r\n".join([*kept, b"transfer-encoding: chunked", b"", b"%x" % len(body), body, b"0", b"", b""])


async def test_usual_and_other_requests_take_turns_on_one_connection(tmp_path: Path) -> None:
    usual = request(CHAT, {**ASKED, "stream": True})
    async with a_rig(tmp_path, Answer(chat("a", "b"))) as rig, rig.connection() as (reader, writer):
        for together in (
            (usual,),
            (chunked(usual),),
            (usual, usual),
            (usual, chunked(usual), usual),
            (chunked(usual),) * 2,
        ):
            writer.write(b"".join(together))
            for _ in together:
                status, _, body = await asyncio.wait_for(answered(reader), 30)
                assert status == 200 and body.endswith(b"data: [DONE]\n\n")
        writer.write(usual.replace(b"HTTP/1.1", b"HTTP/1.0"))
        last = await asyncio.wait_for(reader.read(), 30)
        assert last.endswith(b"data: [DONE]\n\n") and b"transfer-encoding" not in last
        assert len({arrived.raw for arrived in rig.provider.arrived}) == 1 and len(rig.provider.arrived) == 10


async def test_a_request_that_comes_byte_by_byte_is_one(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer(chat("a"))) as rig, rig.connection() as (reader, writer):
        for _ in range(2):
            for byte in request(CHAT, {**ASKED, "stream": True}):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            assert (await asyncio.wait_for(answered(reader), 30))[0] == 200


@pytest.mark.parametrize(
    "change", [(b"content-length", b"content-length: 3\r\ncontent-length"), (b"host: ", b"host : ")]
)
async def test_what_has_two_readings_has_none(tmp_path: Path, change: tuple[bytes, bytes]) -> None:
    async with a_rig(tmp_path, Answer(chat("a"))) as rig, rig.connection() as (reader, writer):
        writer.write(request(CHAT, ASKED).replace(*change))
        assert await asyncio.wait_for(reader.read(), 30) == b""
        assert rig.provider.arrived == []


# --- a connection that is made meanwhile -------------------------------------------------------------------------------


@asynccontextmanager
async def counted(folder: Path, limits: BudgetLimits | None = None) -> AsyncIterator[tuple[Rig, list[bytes]]]:
    """A gateway whose provider keeps what it is sent, connection by connection."""
    came: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(b"")
        at = len(came) - 1
        while data := await reader.read(65536):
            came[at] += data
            if came[at].endswith(b"}"):
                writer.write(OK.replace(b"ok", b"{}"))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with a_rig(folder, Answer([]), limits=limits) as rig:
        for alias, each in rig.upstreams.items():
            rig.gateway._upstreams[alias] = replace(each, base_url=url)
        yield rig, came
    server.close()


async def test_a_connection_is_made_while_the_call_is_counted_and_nothing_goes_over_it_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vault answers when the provider has a connection: made afterwards, there would never be one."""
    async with counted(tmp_path) as (rig, came), rig.connection() as (reader, writer):
        seen: list[bytes] = []

        async def key(caller: Caller, name: str) -> Secret:
            await until(lambda: bool(came))
            await asyncio.sleep(0.05)  # for what might be sent over it
            seen.extend(came)
            return KEY

        monkeypatch.setattr(rig, "key", key)
        for _ in range(2):
            writer.write(request(CHAT, ASKED))
            assert (await asyncio.wait_for(answered(reader), 30))[0] == 200
        assert seen[0] == b"" and len(came) == 1, "and the next call finds it"


async def test_one_that_no_call_took_waits_for_the_next(tmp_path: Path) -> None:
    async with counted(tmp_path) as (rig, came), rig.connection() as (reader, writer):
        rig.sealed = True
        writer.write(request(CHAT, ASKED))
        assert (await asyncio.wait_for(answered(reader), 30))[0] == 503
        await until(lambda: bool(rig.client._pool._idle))
        assert came == [b""]
        rig.sealed = False
        writer.write(request(CHAT, ASKED))
        assert (await asyncio.wait_for(answered(reader), 30))[0] == 200
        assert len(came) == 1 and came[0].startswith(b"POST /v1/chat/completions")


@pytest.mark.parametrize("speak", [lambda writer: writer.write(OK), lambda writer: writer.close()])
async def test_one_that_spoke_unasked_or_ended_meanwhile_is_not_taken(
    speak: Callable[[asyncio.StreamWriter], object],
) -> None:
    async with served(OK) as server, client() as made:
        up, idle = at(f"http://127.0.0.1:{server.port}"), made._pool._idle
        made.begin(up)
        await until(lambda: bool(server.writers and idle))
        speak(server.writers[0])
        await until(lambda: not idle[0][2].usable)
        assert await said(made, up) == b"ok" and server.connections == 2


async def test_one_is_begun_where_none_waits_and_none_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(OK) as server, client() as made:
        up = at(f"http://127.0.0.1:{server.port}")
        for _ in range(3):
            made.begin(up)
        assert await said(made, up) == b"ok"
        made.begin(up)
        await asyncio.sleep(0)
        assert server.connections == 1 and not made._pool._begun, "the one that was used waits"
        monkeypatch.setattr(upstream_pool, "IDLE_SECONDS", -1.0)
        made.begin(up)
        assert made._pool._begun, "one that has waited too long is none"
    await until(lambda: not made._pool._there)


async def test_who_leaves_in_the_turn_in_which_it_is_made_leaves_nothing() -> None:
    """It is made, and nobody has it yet."""
    async with served(OK) as server, client() as made:
        up = at(f"http://127.0.0.1:{server.port}")
        made.begin(up)
        [making] = made._pool._begun.values()
        asking = asyncio.ensure_future(said(made, up))
        making.add_done_callback(lambda _: asking.cancel())
        await asyncio.wait([asking])
        assert asking.cancelled() and making.result() is not None
        await until(lambda: not made._pool._there)
        assert made._pool._room._value == upstream_pool.MOST


async def test_who_leaves_while_it_is_made_leaves_nothing() -> None:
    async with served(OK) as server, client() as made:
        up = at(f"http://127.0.0.1:{server.port}")
        made.begin(up)
        asking = asyncio.ensure_future(said(made, up))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        assert not made._pool._begun and made._pool._room._value == upstream_pool.MOST
        await until(lambda: not made._pool._there)
        assert await said(made, up) == b"ok"


# --- who leaves -------------------------------------------------------------------------------------------------------


async def test_work_ends_with_its_client_and_what_cancels_the_caller_cancels_the_caller() -> None:
    gone, begun = asyncio.Event(), asyncio.Event()

    async def end() -> None:
        await gone.wait()

    async def work(error: Exception | None = None) -> None:
        begun.set()
        if error is not None:
            raise error
        await asyncio.Event().wait()

    async def caller() -> tuple[bool, int]:
        came = await _until(end(), work())
        me = asyncio.current_task()
        assert me is not None
        return came, me.cancelling()

    asking = asyncio.ensure_future(caller())
    await begun.wait()
    gone.set()
    assert await asking == (False, 0), "the caller goes on as one whom nobody has cancelled"
    gone.clear()
    begun.clear()
    asking = asyncio.ensure_future(caller())
    await begun.wait()
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()
    with pytest.raises(Exhausted):
        await _until(end(), work(Exhausted("x")))
    assert await _until(end(), asyncio.sleep(0))
    assert len(asyncio.all_tasks()) == 1, "nobody is left who waits for the end"


async def test_work_that_is_over_when_its_client_leaves_is_over() -> None:
    gone = asyncio.Event()

    async def end() -> None:
        await gone.wait()

    async def work() -> None:
        gone.set()
        await asyncio.sleep(0)  # the end has come, and who waits for it is not told yet

    me = asyncio.current_task()
    assert me is not None
    assert await _until(end(), work()) and not me.cancelling()


@pytest.mark.parametrize("first", ["client", "caller"])
async def test_of_two_who_end_it_at_once_the_caller_counts(first: str) -> None:
    gone = asyncio.Event()

    async def end() -> None:
        await gone.wait()
        if first == "caller":
            asking.cancel()

    async def work() -> None:
        gone.set()
        try:
            await asyncio.Event().wait()
        finally:
            if first == "client":
                asking.cancel()

    asking = asyncio.ensure_future(_until(end(), work()))
    await asyncio.wait([asking])
    assert asking.cancelled()


async def test_a_key_that_does_not_open_leaves_nothing_reserved_and_a_budget_is_said_first(tmp_path: Path) -> None:
    async with counted(tmp_path, BudgetLimits(user_tokens=10)) as (rig, came), rig.connection() as (reader, writer):
        rig.sealed = True
        writer.write(request(CHAT, ASKED))
        status, headers, _ = await asyncio.wait_for(answered(reader), 30)
        assert (status, headers["x-egress-reason"]) == (429, "budget_exhausted")
        assert (await rig.used())["reserved"]["tokens"] == 0 and b"".join(came) == b""
