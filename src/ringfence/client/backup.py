"""A backup of the whole installation, for root and who runs the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from ringfence.client.connection import Connection


class Backup(Connection):
    def open_backup(
        self, *, with_key: bool = False, snapshots: bool = False, force: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The file's bytes in chunks, as they are made. It is whole only with its index at the end: see `ringfence backup
        verify`. `with_key`: also the key of the vault, with which every secret in it can be read."""
        wish = {"with_key": with_key, "snapshots": snapshots, "force": force}
        return self._http.stream("POST", "/v1/backup", body=wish)
