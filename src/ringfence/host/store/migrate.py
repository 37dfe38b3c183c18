"""Brings a database's schema to the one that this release knows, in one transaction, from the installed package.

Refuses what is not ours and what is newer: an older kernel must never write to a schema that it does not know.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection

from ringfence.host.kernel.errors import Unavailable

VERSION_TABLE = "ringfence_schema"  # one row, its column version_num; its presence says that the database is ours


def newest() -> str:
    """The revision that this release's code needs."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None
    return head


def current(connection: Connection) -> str | None:
    """The database's revision; None for an empty database. Unavailable: the tables are not ringfence's."""
    tables = sa.inspect(connection).get_table_names()
    if VERSION_TABLE not in tables:
        if tables:
            shown = ", ".join(sorted(tables)[:3])
            raise Unavailable(
                f"the database belongs to something else: it has tables ({shown}) and none of them is ringfence's",
                remedy="name another database, or an empty one",
            )
        return None
    version = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one_or_none()
    return None if version is None else str(version)


def check(connection: Connection) -> None:
    """Unavailable: not ringfence's, or of a newer release. Changes nothing."""
    version = current(connection)
    known = [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()]
    if version is not None and version not in known:
        raise Unavailable(
            f"the database has schema {version}, which is newer than this release of ringfence knows ({known[0]})",
            remedy="start the release that made it, or put back a backup made by this one",
            schema=version,
            newest=known[0],
        )


def upgrade(connection: Connection) -> None:
    """Runs inside the caller's transaction: all of it or nothing, and one process at a time."""
    check(connection)
    if current(connection) == newest():
        return
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
