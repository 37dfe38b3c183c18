"""What an ask may say beyond its type: sizes, counts and ranges that the docstrings of wire.messages give. Pure.

The shape has been validated. An ask that is out of bounds is an honest loop's mistake as well as a hostile one's try, so
it is answered with an error and ends nothing. It must never decode or copy what it measures.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

from ringfence.host.kernel.errors import Invalid, TooLarge
from ringfence.wire.messages import (
    BLOB_CHUNK,
    KIB,
    MAX_BLOB,
    MAX_RUN_BLOBS,
    BlobGet,
    BlobPut,
    CheckpointSave,
    ModelGenerate,
    RunEvent,
    RunFinish,
    ThreadRead,
    ThreadSummarise,
)

EVENT_BYTES = 4 * KIB
SUMMARY_BYTES = 64 * KIB
STATE_BYTES = 512 * KIB
PAGE = 200
BLOBS = MAX_RUN_BLOBS // BLOB_CHUNK  # 512: more of them would each be smaller than what a frame holds
_HEX = frozenset(string.hexdigits.lower())


def check(params: Any) -> None:
    """Invalid, TooLarge. `params`: the validated parameters of any ask."""
    look = _CHECKS.get(type(params))
    if look is not None:
        look(params)


def chunk_bytes(n: int, size: int) -> int:
    """Bytes of the n-th chunk of a blob of `size` bytes; 0 or less when it has no such chunk."""
    return min(BLOB_CHUNK, size - n * BLOB_CHUNK)


def _event(params: RunEvent) -> None:
    _text("a run.event", params.text, EVENT_BYTES)


def _page(params: ThreadRead) -> None:
    if not 1 <= params.limit <= PAGE:
        raise Invalid(f"a page of {params.limit} messages; it has 1 to {PAGE}")
    _positive("the cursor `before`", params.before)


def _summary(params: ThreadSummarise) -> None:
    _positive("the cursor of a summary", params.cursor)
    _text("a summary", params.text, SUMMARY_BYTES)


def _put(params: BlobPut) -> None:
    _digest(params.blob)
    _positive("the size of a blob", params.size)
    if params.size > MAX_BLOB:
        raise TooLarge(f"a blob of {params.size} bytes; the limit is {MAX_BLOB}")
    length = chunk_bytes(params.n, params.size)
    if params.n < 0 or length <= 0:
        raise Invalid(f"a blob of {params.size} bytes has no chunk {params.n}")
    if len(params.data_b64) != -(-length // 3) * 4:
        raise Invalid(f"chunk {params.n} of a blob of {params.size} bytes has {length} bytes")


def _get(params: BlobGet) -> None:
    _digest(params.blob)
    if not 0 <= params.n < MAX_BLOB // BLOB_CHUNK:
        raise Invalid(f"no blob has a chunk {params.n}")


def _checkpoint(params: CheckpointSave) -> None:
    if params.step < 0:
        raise Invalid(f"no step has the number {params.step}")
    _text("a checkpoint", params.state, STATE_BYTES)
    if len(params.blobs) > BLOBS:
        raise TooLarge(f"a checkpoint with {len(params.blobs)} blobs; the limit is {BLOBS}")
    for blob in params.blobs:
        _digest(blob)


def _generate(params: ModelGenerate) -> None:
    _positive("the number of a call of the model", params.call)
    if bool(params.messages) is (params.blob is not None):
        raise Invalid("a conversation is either in `messages` or in `blob`")
    if params.blob is not None:
        _digest(params.blob)


def _finish(params: RunFinish) -> None:
    if params.seen < 0:
        raise Invalid(f"no message has the cursor {params.seen}")


def _positive(what: str, number: int) -> None:
    if number < 1:
        raise Invalid(f"{what} is {number}; it is 1 or more")


def _text(what: str, text: str, most: int) -> None:
    if 4 * len(text) > most and (size := len(text.encode("utf-8"))) > most:
        raise TooLarge(f"{what} of {size} bytes; the limit is {most}")


def _digest(text: str) -> None:
    if len(text) != 64 or not _HEX.issuperset(text):
        raise Invalid("a blob is named by its SHA-256: 64 digits 0-9a-f")


_CHECKS: dict[type, Callable[[Any], None]] = {
    RunEvent: _event,
    ThreadRead: _page,
    ThreadSummarise: _summary,
    BlobPut: _put,
    BlobGet: _get,
    CheckpointSave: _checkpoint,
    ModelGenerate: _generate,
    RunFinish: _finish,
}
