"""checkpoint.save, blob.put and blob.get: what a loop keeps of itself, opaque to the host and fenced by the run's epoch."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from ringfence.host.engine.history import ascii_bytes
from ringfence.host.engine.live import Held
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.errors import Invalid, TooLarge

# As ASCII JSON. A state has at most 480 KiB and is JSON itself: escaping its quotes at most doubles it. It must fit into
# a run.start of 1 MiB beside names and posture (run_start.py).
CHECKPOINT_BYTES = 961 * 1024
MAX_NAMED = 64  # blobs of one state: 64 * 4 MiB are the 256 MiB of a run


class StateAsks:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def save(self, held: Held, params: Any) -> dict[str, Any]:
        """TooLarge; Conflict: a step that has not ended, or a blob that is not whole."""
        size = ascii_bytes(params.state)
        if size > CHECKPOINT_BYTES:
            raise TooLarge(f"the checkpoint has {size} bytes as JSON; the limit is {CHECKPOINT_BYTES}")
        if len(params.blobs) > MAX_NAMED:
            raise TooLarge(f"the checkpoint names {len(params.blobs)} blobs; the limit is {MAX_NAMED}")
        await self._parts.store.steps.save_checkpoint(
            held.id, held.epoch, params.boundary, params.step, params.state, params.blobs
        )
        return {}

    async def put(self, held: Held, params: Any) -> dict[str, Any]:
        try:
            data = base64.b64decode(params.data_b64.encode("ascii"), validate=True)
        except (binascii.Error, UnicodeEncodeError):
            raise Invalid("the chunk is no base64 (RFC 4648, section 4)") from None
        await self._parts.store.blobs.put(held.id, held.epoch, params.blob, params.n, params.size, data)
        return {}

    async def get(self, held: Held, params: Any) -> dict[str, Any]:
        data, size = await self._parts.store.blobs.get(held.id, held.epoch, params.blob, params.n)
        return {"data_b64": base64.b64encode(data).decode("ascii"), "size": size}
