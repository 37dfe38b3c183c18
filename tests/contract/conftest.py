"""The tests of the store and of the engine run twice: on SQLite, and on a real PostgreSQL that this session starts.

A host without PostgreSQL fails them. A test that is about one of the two says so by its mark.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.bench.cluster import cluster
from tests.support.databases import SEARCH_PATH, Databases, put_migrated_file

ON_BOTH = ("test_store", "test_engine", "test_migrations", "test_vault")
MARKS = ("sqlite", "postgresql")
FROM_NOTHING = "test_store_opening"  # on SQLite; all others are given a file that is migrated already


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    with cluster(SEARCH_PATH) as running:
        yield Databases.over(running)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if not metafunc.module.__name__.rsplit(".", 1)[-1].startswith(ON_BOTH):
        return
    named = [mark for mark in MARKS if metafunc.definition.get_closest_marker(mark)]
    metafunc.parametrize("database", named or MARKS, indirect=True)


@pytest.fixture(autouse=True)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The kind of database that `tmp_path` stands for; before any store is opened in it."""
    marks = {name: request.node.get_closest_marker(name) is not None for name in ("empty", "alone")}
    if getattr(request, "param", "") == "postgresql":
        databases: Databases = request.getfixturevalue("databases")
        with databases.within(tmp_path, **marks):
            yield "postgresql"
        return
    if hasattr(request, "param") and not any(marks.values()) and FROM_NOTHING not in request.module.__name__:
        put_migrated_file(tmp_path)
    yield "sqlite"
