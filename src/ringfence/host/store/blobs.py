"""Blobs: large values of a run, in chunks, under the SHA-256 of the whole.

A chunk never changes once it is there, so a blob that was found right stays right for as long as its row has the same
`made`. Hashing is never done in a transaction: 32 MiB take 20 to 100 ms, and everybody's writes wait for the one writer.
It is done in a thread of its own, from chunks that are read one at a time, and once for each blob.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ringfence.host.kernel.errors import Conflict, Invalid, NotFound, TooLarge
from ringfence.host.kernel.ids import RunId
from ringfence.host.store.blob_rows import LEAST_COUNTED, MAX_OF_RUN, drop_blobs, make_room
from ringfence.host.store.database import Database
from ringfence.host.store.owned import owned_row
from ringfence.host.store.run_rows import check_fence, fenced, run_row
from ringfence.host.store.schema import blob_chunks, blobs
from ringfence.host.store.transaction import Tx

CHUNK_BYTES = 512 * 1024  # wire generation 1: BLOB_CHUNK
MAX_BYTES = 32 << 20  # wire generation 1: MAX_BLOB
MAX_BLOBS = MAX_OF_RUN // LEAST_COUNTED
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_THIS = sa.and_(blobs.c.run == sa.bindparam("in_run"), blobs.c.digest == sa.bindparam("which"))
_BLOB = sa.select(blobs).where(_THIS)
_CHANGE = sa.update(blobs).where(_THIS)
_INSERT = sa.insert(blobs)
_THIS_CHUNK = sa.and_(
    blob_chunks.c.run == sa.bindparam("in_run"),
    blob_chunks.c.digest == sa.bindparam("which"),
    blob_chunks.c.n == sa.bindparam("number"),
)
_CHUNK: sa.Select[Any] = sa.select(blob_chunks.c.run, blob_chunks.c.digest, blob_chunks.c.data).where(_THIS_CHUNK)
_HAS_CHUNK = sa.select(blob_chunks.c.n).where(_THIS_CHUNK)
_INSERT_CHUNK = sa.insert(blob_chunks)


@dataclass(frozen=True, slots=True)
class Blob:
    digest: str
    size: int
    held: int
    made: str  # of the row: a blob that was dropped and sent again is another one
    checked: bool


class SqlBlobs:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, run: RunId, epoch: int, digest: str, n: int, size: int, data: bytes) -> None:
        """Also Invalid: the blob is there with another size. What the chunks add up to is not looked at here."""
        if not _DIGEST.fullmatch(digest):
            raise Invalid("a blob is named by the SHA-256 of its bytes, in 64 lower-case hex digits")
        if size > MAX_BYTES:
            raise TooLarge(f"a blob of {size} bytes; the limit is {MAX_BYTES}", size=size, limit=MAX_BYTES)
        start = n * CHUNK_BYTES
        if not (n >= 0 and start < size and len(data) == min(CHUNK_BYTES, size - start)):
            raise Invalid(f"{len(data)} bytes are not chunk {n} of a blob of {size} bytes, in chunks of {CHUNK_BYTES}")
        await self._database.write(lambda tx: _put(tx, run, epoch, digest, n, size, data))

    async def get(self, run: RunId, epoch: int, digest: str, n: int) -> tuple[bytes, int]:
        def question(connection: Connection) -> tuple[bytes, int]:
            size = _find(connection, run, epoch, digest).size
            return _chunk(connection, run, digest, n), size

        return await self._database.read(question)

    async def whole(self, run: RunId, epoch: int, digest: str) -> bytes:
        blob = await self._database.read(lambda connection: _find(connection, run, epoch, digest))
        parts = [part async for part in self._chunks(run, blob)]
        if not await asyncio.to_thread(_is_right, parts, digest):
            raise _wrong(digest)
        return await asyncio.to_thread(b"".join, parts)

    async def check(self, run: RunId, epoch: int, digests: Sequence[str]) -> dict[str, str]:
        """digest -> `made` of blobs that are whole and right. Conflict: one is not, or is not there. NotFound: the run.
        StaleEpoch."""
        if len(digests) > MAX_BLOBS:
            raise Conflict(f"{len(digests)} blobs; a run has {MAX_BLOBS} at most")
        return {digest: await self._check(run, epoch, digest) for digest in digests}

    async def _check(self, run: RunId, epoch: int, digest: str) -> str:
        def question(connection: Connection) -> Blob | None:
            check_fence(run_row(connection, run), epoch)
            return _blob(connection, run, digest)

        blob = await self._database.read(question)
        if blob is None:
            raise Conflict(f"run {run} has no blob {digest!r}", remedy="send it first")
        if not blob.checked:
            hashed = hashlib.sha256()
            async for part in self._chunks(run, blob):
                await asyncio.to_thread(hashed.update, part)
            if hashed.hexdigest() != digest:
                raise _wrong(digest)
        return blob.made

    async def _chunks(self, run: RunId, blob: Blob) -> AsyncIterator[bytes]:
        """Conflict: not all are there."""
        if blob.held != blob.size:
            raise _partial(blob)
        for n in range((blob.size + CHUNK_BYTES - 1) // CHUNK_BYTES):
            yield await self._read_chunk(run, blob, n)

    async def _read_chunk(self, run: RunId, blob: Blob, n: int) -> bytes:
        try:
            return await self._database.read(lambda connection: _chunk(connection, run, blob.digest, n))
        except NotFound as error:
            raise Conflict(f"the blob {blob.digest} was dropped meanwhile") from error


def keep_checked(tx: Tx, run: RunId, made: Mapping[str, str]) -> None:
    """These stay, as `check` has found them; every other blob of the run is dropped. Conflict: one has changed since."""
    for digest, row in made.items():
        blob = _blob(tx.connection, run, digest)
        if blob is None or blob.made != row:
            raise Conflict(f"the blob {digest} was dropped meanwhile")
        if not blob.checked:
            tx.connection.execute(_CHANGE, {"in_run": run, "which": digest, "checked": True})
    drop_blobs(tx, run, list(made))


def _is_right(parts: Sequence[bytes], digest: str) -> bool:
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest() == digest


def _wrong(digest: str) -> Conflict:
    return Conflict(f"the chunks of the blob {digest} have another SHA-256", remedy="drop it and send it again")


def _partial(blob: Blob) -> Conflict:
    return Conflict(
        f"the blob {blob.digest} has {blob.held} of {blob.size} bytes", remedy="send the chunks that are missing"
    )


def _blob(connection: Connection, run: RunId, digest: str) -> Blob | None:
    named = _DIGEST.fullmatch(digest) is not None
    row = connection.execute(_BLOB, {"in_run": run, "which": digest}).one_or_none() if named else None
    row = owned_row(row, run=run, digest=digest)
    return None if row is None else Blob(row.digest, row.size, row.held, row.made, row.checked)


def _find(connection: Connection, run: RunId, epoch: int, digest: str) -> Blob:
    """NotFound: run or blob. StaleEpoch."""
    check_fence(run_row(connection, run), epoch)
    blob = _blob(connection, run, digest)
    if blob is None:
        raise NotFound(f"no such blob of run {run}: {digest!r}")
    return blob


def _chunk(connection: Connection, run: RunId, digest: str, n: int) -> bytes:
    """NotFound."""
    which: dict[str, Any] = {"in_run": run, "which": digest, "number": n}
    there = 0 <= n < MAX_BYTES // CHUNK_BYTES
    row = connection.execute(_CHUNK, which).one_or_none() if there else None
    row = owned_row(row, run=run, digest=digest)
    if row is None:
        raise NotFound(f"no such chunk of the blob {digest}: {n}")
    return bytes(row.data)


def _put(tx: Tx, run: RunId, epoch: int, digest: str, n: int, size: int, data: bytes) -> None:
    row = fenced(tx, run, epoch)
    blob = _blob(tx.connection, run, digest)
    if blob is None:
        make_room(tx, row, size)
        blob = Blob(digest, size, 0, tx.new_id("blb"), checked=False)
        values = {"size": size, "held": 0, "made": blob.made, "checked": False}
        tx.connection.execute(_INSERT, {"run": run, "digest": digest, "actor": row.actor, **values})
    if blob.size != size:
        raise Invalid(f"the blob {digest} has {blob.size} bytes, not {size}")
    which: dict[str, Any] = {"in_run": run, "which": digest}
    if tx.connection.execute(_HAS_CHUNK, {**which, "number": n}).first() is None:
        tx.connection.execute(_INSERT_CHUNK, {"run": run, "digest": digest, "n": n, "data": data})
        tx.connection.execute(_CHANGE, {**which, "held": blob.held + len(data)})
