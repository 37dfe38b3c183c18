"""The bounds of asks beyond their types: exactly what wire.messages says, at the edge and one beyond it."""

from __future__ import annotations

from typing import Any

import pytest

from ringfence.host.broker.limits import BLOBS, check, chunk_bytes
from ringfence.host.kernel.errors import Invalid, RingfenceError, TooLarge
from ringfence.wire.messages import (
    BLOB_CHUNK,
    MAX_BLOB,
    BlobGet,
    BlobPut,
    ChatMessage,
    CheckpointSave,
    ModelGenerate,
    RunEvent,
    RunFail,
    RunFinish,
    ThreadRead,
    ThreadSummarise,
)

NAME = "0123456789abcdef" * 4
CHAT = [ChatMessage("user", "hi")]


def put(n: int, size: int, data: int, blob: str = NAME) -> BlobPut:
    return BlobPut("t", blob, n, size, "A" * data)


def b64(size: int) -> int:
    """Characters of the base64 of so many bytes."""
    return -(-size // 3) * 4


def save(state: str = "", blobs: list[str] | None = None, step: int = 0) -> CheckpointSave:
    return CheckpointSave("t", "final", step, state, blobs or [])


TAKEN: list[Any] = [
    RunEvent("t", ""),
    RunEvent("t", "x" * 4096),
    RunEvent("t", "\u00e9" * 2048),
    ThreadRead("t", 1, 1),
    ThreadRead("t", 2**63 - 1, 200),
    ThreadSummarise("t", 1, "x" * 65536),
    put(0, 1, 4),
    put(0, 3, 4),
    put(0, BLOB_CHUNK, b64(BLOB_CHUNK)),
    put(1, BLOB_CHUNK + 4, 8),
    put(63, MAX_BLOB, b64(BLOB_CHUNK)),
    BlobGet("t", NAME, 0),
    BlobGet("t", NAME, 63),
    save("x" * 512 * 1024, [NAME] * BLOBS),
    ModelGenerate("t", "m", 1, CHAT, None, []),
    ModelGenerate("t", "m", 1000, [], NAME, []),
    RunFinish("t", "", 0),
    RunFail("t", "x" * 1000, ""),
]
REFUSED: list[tuple[Any, type[RingfenceError]]] = [
    (RunEvent("t", "x" * 4097), TooLarge),
    (RunEvent("t", "\u00e9" * 2049), TooLarge),
    (RunEvent("t", "\U0001f600" * 1025), TooLarge),
    (ThreadRead("t", 1, 0), Invalid),
    (ThreadRead("t", 1, 201), Invalid),
    (ThreadRead("t", 1, -1), Invalid),
    (ThreadRead("t", 0, 1), Invalid),
    (ThreadSummarise("t", 1, "x" * 65537), TooLarge),
    (ThreadSummarise("t", 0, "x"), Invalid),
    (put(0, 0, 0), Invalid),
    (put(0, -1, 0), Invalid),
    (put(0, MAX_BLOB + 1, b64(BLOB_CHUNK)), TooLarge),
    (put(-1, 10, 16), Invalid),
    (put(1, BLOB_CHUNK, 0), Invalid),
    (put(1, BLOB_CHUNK, 4), Invalid),
    (put(0, 3, 8), Invalid),
    (put(0, 4, 4), Invalid),
    (put(0, 1, 0), Invalid),
    (put(2**63 - 1, 3, 4), Invalid),
    (put(0, 3, 4, NAME.upper()), Invalid),
    (put(0, 3, 4, NAME[:-1]), Invalid),
    (put(0, 3, 4, NAME + "0"), Invalid),
    (put(0, 3, 4, NAME[:-1] + "\n"), Invalid),
    (put(0, 3, 4, "../" + NAME[3:]), Invalid),
    (put(0, 3, 4, "\u0660" * 64), Invalid),
    (BlobGet("t", NAME, 64), Invalid),
    (BlobGet("t", NAME, -1), Invalid),
    (BlobGet("t", "", 0), Invalid),
    (save("x" * (512 * 1024 + 1)), TooLarge),
    (save(blobs=[NAME] * (BLOBS + 1)), TooLarge),
    (save(blobs=[NAME, "x"]), Invalid),
    (save(step=-1), Invalid),
    (ModelGenerate("t", "m", 0, CHAT, None, []), Invalid),
    (ModelGenerate("t", "m", 1, [], None, []), Invalid),
    (ModelGenerate("t", "m", 1, CHAT, NAME, []), Invalid),
    (ModelGenerate("t", "m", 1, [], "x", []), Invalid),
    (RunFinish("t", "", -1), Invalid),
]


@pytest.mark.parametrize("ask", TAKEN, ids=lambda ask: type(ask).__name__)
def test_what_is_within_its_bounds_is_taken(ask: Any) -> None:
    check(ask)


@pytest.mark.parametrize(("ask", "error"), REFUSED, ids=lambda part: type(part).__name__)
def test_what_is_beyond_them_is_refused(ask: Any, error: type[RingfenceError]) -> None:
    with pytest.raises(error):
        check(ask)


def test_the_chunks_of_a_blob_add_up() -> None:
    for size in (1, BLOB_CHUNK - 1, BLOB_CHUNK, BLOB_CHUNK + 1, MAX_BLOB):
        chunks = [chunk_bytes(n, size) for n in range(-(-size // BLOB_CHUNK))]
        assert sum(chunks) == size and min(chunks) > 0
        assert chunk_bytes(len(chunks), size) <= 0
