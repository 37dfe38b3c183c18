"""What a run has recorded, as the store keeps it: steps, the checkpoint, and the large values that it refers to.

Part of `kernel.ports`, in a file of its own. Every write names the epoch that it acts under; one of an older epoch is
refused. Every method raises only errors of `kernel.errors`; each protocol lists the particular ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.runs import Checkpoint, Effect, Step


class Steps(Protocol):
    """StaleEpoch, NotFound."""

    async def begin(
        self, run: RunId, epoch: int, n: int, tool: str, arguments: Mapping[str, Any], digest: str, effect: Effect
    ) -> tuple[Step, bool]:
        """(step, new). A step that exists with this digest is returned as it is. Conflict `diverged`: another digest;
        Conflict `step_gap`: n is not the next number."""

    async def end(self, run: RunId, epoch: int, n: int, result: Mapping[str, Any], interrupted: bool) -> Step:
        """A step that has ended keeps its first result."""

    async def get(self, run: RunId, n: int) -> Step | None: ...
    async def all(self, run: RunId) -> list[Step]:
        """With their results, which may be 256 MiB: for somebody who asked to see them, never for what a loop asks."""

    async def save_checkpoint(
        self, run: RunId, epoch: int, boundary: str, step: int, state: str, blobs: Sequence[str] = ()
    ) -> Checkpoint:
        """Conflict: a blob that it refers to is not whole, or is not what its digest says. Every other blob of the run
        is dropped."""

    async def checkpoint(self, run: RunId) -> Checkpoint | None: ...


class Blobs(Protocol):
    """Large values of a run: for its checkpoint and its asks of the model. StaleEpoch, NotFound."""

    async def put(self, run: RunId, epoch: int, digest: str, n: int, size: int, data: bytes) -> None:
        """A chunk that is there already stays. Invalid: no digest, a chunk that is not exactly the n-th of `size` bytes.
        TooLarge: a blob above 32 MiB, a run above 256 MiB, or a user above 1 GiB over all runs once the blobs of that
        user's final runs have been dropped, oldest first."""

    async def get(self, run: RunId, epoch: int, digest: str, n: int) -> tuple[bytes, int]:
        """(chunk, bytes of the whole)."""

    async def whole(self, run: RunId, epoch: int, digest: str) -> bytes:
        """All chunks, checked against the digest. Conflict: not whole, or not what the digest says."""
