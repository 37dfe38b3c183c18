"""uvicorn's WebSocket protocol, for which an answer instead of a handshake is no fault."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class DenyingProtocol(WebSocketsSansIOProtocol):
    """Without this each refused credential would be logged as an error of ours: uvicorn counts a whole denial response
    (ASGI extension websocket.http.response) as a handshake that the application forgot."""

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True
