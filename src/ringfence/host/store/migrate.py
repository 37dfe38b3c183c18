"""Brings a database's schema to the one that this release knows, in one transaction, from the installed package.

Each migration is an expansion (`kind = "expand"`: an older release goes on working with what it leaves) or a contraction
("contract": it takes away what only older releases need). `serve` expands by itself and never contracts. Release n runs on
schema n, and on n-1 until its own expansion, which it does first.

Two rows say where a database is. `ringfence_schema` names the newest contraction (0001 before the first): a release that
does not know it must keep away. `ringfence_schema_expanded` names the newest revision of all: a release that does not know
this one, but knows the other, is an older one on a database that was expanded for a newer one, and works on it as it is.

Refuses what is not ours and what is newer: an older kernel must never write to a schema that it cannot read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection

from ringfence.host.kernel.errors import Failed, Unavailable

VERSION_TABLE = "ringfence_schema"  # one row, its column version_num; its presence says that the database is ours
EXPANDED_TABLE = "ringfence_schema_expanded"  # Alembic's own row; a database of the first release has none
KINDS = ("expand", "contract")
CONTRACT_REMEDY = "when no older kernel works on it: ringfence db upgrade --contract"


@dataclass(frozen=True, slots=True)
class Migration:
    revision: str
    contracts: bool


def chain() -> tuple[Migration, ...]:
    """Every migration of this release, the oldest first. Failed: one that does not say its kind."""
    scripts = ScriptDirectory.from_config(_config())
    found = [_migration(script.revision, script.module) for script in scripts.walk_revisions()]
    return tuple(reversed(found))


def _migration(revision: str, module: object) -> Migration:
    kind = getattr(module, "kind", None)
    if kind not in KINDS:
        raise Failed(f"migration {revision} does not say whether it expands or contracts")
    return Migration(revision, kind == "contract")


def newest() -> str:
    """The revision that this release's code knows last."""
    return chain()[-1].revision


def floor_of(known: tuple[Migration, ...], revision: str) -> str:
    """The newest contraction up to `revision`, else the first revision: what a release must know to work there."""
    at = [migration.revision for migration in known].index(revision)
    contracted = [migration.revision for migration in known[: at + 1] if migration.contracts]
    return contracted[-1] if contracted else known[0].revision


def oldest_fit() -> str:
    """The oldest revision that this release runs on: where its own last contraction has yet to be done."""
    known = chain()
    last = [at for at, migration in enumerate(known) if migration.contracts]
    return known[last[-1] - 1].revision if last and last[-1] else known[0].revision


def current(connection: Connection) -> str | None:
    """The database's newest revision; None for an empty database. Unavailable: the tables are not ringfence's."""
    floor = floor_now(connection)
    if floor is None or EXPANDED_TABLE not in sa.inspect(connection).get_table_names():
        return floor
    return _row(connection, EXPANDED_TABLE) or floor


def floor_now(connection: Connection) -> str | None:
    """The newest contraction that was done; None for an empty database. Unavailable: not ringfence's tables."""
    tables = [name for name in sa.inspect(connection).get_table_names() if name != EXPANDED_TABLE]
    if VERSION_TABLE not in tables:
        if tables:
            shown = ", ".join(sorted(tables)[:3])
            raise Unavailable(
                f"the database belongs to something else: it has tables ({shown}) and none of them is ringfence's",
                remedy="name another database, or an empty one",
            )
        return None
    return _row(connection, VERSION_TABLE)


def _row(connection: Connection, table: str) -> str | None:
    version = connection.execute(sa.text(f"SELECT version_num FROM {table}")).scalar_one_or_none()
    return None if version is None else str(version)


def check(connection: Connection) -> None:
    """Unavailable: not ringfence's, or contracted by a newer release. Changes nothing."""
    floor = floor_now(connection)
    known = [migration.revision for migration in chain()]
    if floor is not None and floor not in known:
        raise Unavailable(
            f"the database has schema {floor}, which is newer than this release of ringfence knows ({known[-1]})",
            remedy="start the release that made it, or put back a backup made by this one",
            schema=floor,
            newest=known[-1],
        )


def behind(connection: Connection) -> bool:
    """Whether any step is due, a contraction included."""
    return bool(_due(chain(), current(connection)))


def upgrade(connection: Connection) -> None:
    """Every expansion that is due. Runs inside the caller's transaction: all of it or nothing, one process at a time (the
    caller holds the lock of the schema, and took it first).
    Unavailable: an expansion waits behind a contraction of an earlier release, which is an act of the operator."""
    check(connection)
    known, at = chain(), current(connection)
    due = _due(known, at)
    if at is None:  # nothing lives in it that an older release could want
        _apply(connection, known, known[-1].revision)
        return
    for number, migration in enumerate(due):
        if migration.contracts:
            if any(not later.contracts for later in due[number:]):
                raise Unavailable(
                    f"the database is at schema {at}: {migration.revision} contracts it, and later steps need that",
                    remedy=CONTRACT_REMEDY,
                )
            due = due[:number]
            break
    if due:
        _apply(connection, known, due[-1].revision)


def contractions(connection: Connection) -> list[str]:
    """Revisions of the contractions that are not done yet."""
    return [migration.revision for migration in _due(chain(), current(connection)) if migration.contracts]


def contract(connection: Connection) -> None:
    """Every step that is due, contractions included. The caller has made sure that nobody needs the old form."""
    check(connection)
    known = chain()
    if _due(known, current(connection)):
        _apply(connection, known, known[-1].revision)


def upgrade_to(connection: Connection, revision: str) -> None:
    """An empty database to the schema of `revision`: what a backup of an older release is put back into."""
    _apply(connection, chain(), revision)


def _due(known: tuple[Migration, ...], at: str | None) -> tuple[Migration, ...]:
    """Steps behind `at`; none for a revision that a newer release made."""
    names = [migration.revision for migration in known]
    if at is None:
        return known
    return known[names.index(at) + 1 :] if at in names else ()


def _apply(connection: Connection, known: tuple[Migration, ...], revision: str) -> None:
    _stamp_first(connection)
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
    floor = floor_of(known, revision)
    if VERSION_TABLE not in sa.inspect(connection).get_table_names():
        connection.execute(sa.text(f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
        connection.execute(sa.text(f"INSERT INTO {VERSION_TABLE} (version_num) VALUES (:floor)"), {"floor": floor})
    else:
        connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = :floor"), {"floor": floor})


def _stamp_first(connection: Connection) -> None:
    """A database of the first release has one row only: what it names is the newest revision there."""
    floor = floor_now(connection)
    if floor is None or EXPANDED_TABLE in sa.inspect(connection).get_table_names():
        return
    context = MigrationContext.configure(connection, opts={"version_table": EXPANDED_TABLE, "transactional_ddl": True})
    context.stamp(ScriptDirectory.from_config(_config()), floor)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
