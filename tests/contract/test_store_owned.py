"""D-6: a query that loses its filter gives nothing out, because the rows say whose they are."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Row

from ringfence.host.kernel.errors import Failed
from ringfence.host.store.owned import owned, owned_row


def rows(*users: str) -> list[Row[tuple[str, int]]]:
    engine = sa.create_engine("sqlite://")
    try:
        with engine.connect() as connection:
            selects = [
                sa.select(sa.literal(user).label("user"), sa.literal(n).label("n")) for n, user in enumerate(users)
            ]
            return list(connection.execute(sa.union_all(*selects)))
    finally:
        engine.dispose()


def test_own_rows_come_as_they_are() -> None:
    assert [row.n for row in owned(rows("a", "a"), user="a")] == [0, 1]
    assert owned([], user="a") == []
    assert owned_row(None, user="a") is None


@pytest.mark.parametrize("users", [("b",), ("a", "b"), ("", "a")])
def test_a_row_of_another_gives_nothing_out(users: tuple[str, ...]) -> None:
    with pytest.raises(Failed, match="another user"):
        owned(rows(*users), user="a")
