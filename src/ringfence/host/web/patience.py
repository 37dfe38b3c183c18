"""How long a connection may take to say what it wants. uvicorn itself waits for the end of the headers for ever.

Bounds the whole time, not the time between two bytes: a peer that sends one byte now and then gains nothing. Touches
nothing that is under way: answers, streams and WebSockets last as long as they last.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 20.0  # 64 KiB of headers at 3.3 KiB/s: slower than any line that is of use


class PatientProtocol(H11Protocol):
    header_seconds = HEADER_SECONDS
    _headers_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._idle = self.conn.their_state  # of h11, which says so by name only to those who import it
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait_for_headers(self) -> None:
        """Idle on their side: no request, or not the whole head of the next one. A WebSocket has taken over the
        transport by then and leaves h11 where its request was."""
        if self.conn.their_state is not self._idle:
            self._wait_no_more()
        elif self._headers_due is None:
            self._headers_due = self.loop.call_later(self.header_seconds, self._give_up)

    def _wait_no_more(self) -> None:
        if self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None

    def _give_up(self) -> None:
        """Without an answer: nothing was asked. An answer that is still on its way out is not cut off."""
        self._headers_due = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
