"""One server for the whole folder; a person for each test that asks for one."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import pytest

from ringfence.client.errors import ApiError
from ringfence.client.sync import SyncClient
from tests.support.installation import Installation, installation

_names = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[Installation]:
    with installation() as made:
        yield made


@pytest.fixture(scope="session")
def alice(server: Installation) -> str:
    """A person whose box the tests that leave nothing behind share."""
    server.ok("user", "add", "alice")
    return "alice"


@pytest.fixture(scope="session")
def bob(server: Installation) -> str:
    server.ok("user", "add", "bob")
    return "bob"


@pytest.fixture
def person(server: Installation) -> Iterator[str]:
    """Somebody new, with a box of their own, stopped at the end; by the client, which needs no interpreter for a call."""
    name = f"person{next(_names)}"
    with SyncClient(socket=server.socket) as client:
        client.add_user(name)
    yield name
    with SyncClient(socket=server.socket) as client, contextlib.suppress(ApiError):  # a test may have removed them
        client.stop_box(name)
