"""The SDK: async first (`Client`), and the same without async (`SyncClient`). Imports nothing of ours but itself."""

from ringfence.client.client import Client
from ringfence.client.errors import (
    ApiError,
    Conflict,
    Failed,
    Invalid,
    NotFound,
    Refused,
    Unauthenticated,
    Unavailable,
)
from ringfence.client.sync import SyncClient

__all__ = [
    "ApiError",
    "Client",
    "Conflict",
    "Failed",
    "Invalid",
    "NotFound",
    "Refused",
    "SyncClient",
    "Unauthenticated",
    "Unavailable",
]
