"""What a database's error means to the caller. The one place where errors of the drivers become ours.

SQLite: the primary result code is the low byte of the extended one (sqlite.org/rescode.html).
PostgreSQL: SQLSTATE (postgresql.org, appendix A).
"""

from __future__ import annotations

import sqlite3

from sqlalchemy import exc

from ringfence.host.kernel.errors import Conflict, DiskFull, Failed, Invalid, RingfenceError, Unavailable

_SHM_SIZE = sqlite3.SQLITE_IOERR_SHMSIZE  # no room to grow the -shm file: a full disk, though not called SQLITE_FULL
_FULL = frozenset({sqlite3.SQLITE_FULL})
_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_BROKEN = frozenset(
    {
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_INTERRUPT,
    }
)
_ENDS_TRANSACTION = _FULL | _LOCKED | _CORRUPT | _BROKEN


def ends_transaction(error: BaseException) -> bool:
    """Whether nothing of the transaction can be saved: the savepoint of the failed statement is no help."""
    if not isinstance(error, exc.DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    code = _sqlite_code(error)
    if code is not None:
        return code & 0xFF in _ENDS_TRANSACTION
    return _sqlstate(error)[:2] in ("08", "53", "57", "58", "XX")


def translate(error: BaseException) -> RingfenceError:
    """The error of kernel.errors for whatever came out of a transaction."""
    if isinstance(error, RingfenceError):
        return error
    if isinstance(error, exc.TimeoutError):
        return Unavailable("no database connection became free in time", remedy="try again")
    if isinstance(error, exc.IntegrityError):
        return Conflict("the same was changed at the same time", remedy="look again, then try again")
    if isinstance(error, exc.DBAPIError):
        code = _sqlite_code(error)
        return _sqlite(code, str(error.orig)) if code is not None else _postgres(_sqlstate(error), str(error.orig))
    if isinstance(error, (exc.StatementError, UnicodeError, OverflowError)):
        return Invalid(f"a value that the database cannot keep: {getattr(error, 'orig', None) or error}")
    if isinstance(error, ImportError):
        return Unavailable(f"the database's driver is missing: {error}", remedy="pip install asyncpg")
    if isinstance(error, OSError):
        return Unavailable(f"the database cannot be opened: {error}", remedy="check the path, its owner and its mode")
    return Failed(f"the store failed: {type(error).__name__}: {error}")


def _sqlite_code(error: exc.DBAPIError) -> int | None:
    code = getattr(error.orig, "sqlite_errorcode", None)
    return code if isinstance(code, int) else None


def _sqlstate(error: exc.DBAPIError) -> str:
    return str(getattr(error.orig, "sqlstate", "") or "")


def disk_full(detail: str) -> DiskFull:
    return DiskFull(
        f"no space left for the database: {detail}; nothing was written",
        remedy="free space on the volume of the database (df -h), then try again; what is stored can still be read",
    )


def locked(detail: str) -> Unavailable:
    return Unavailable(
        f"another process kept the database locked: {detail}; nothing was written",
        remedy="end the process that holds it (lsof on the database file names it), then try again",
    )


def corrupt(detail: str) -> Unavailable:
    return Unavailable(
        f"the database is damaged: {detail}",
        remedy="stop the server, move the database file with its -wal and -shm aside, and put a backup in its place",
    )


def _sqlite(code: int, detail: str) -> RingfenceError:
    primary = code & 0xFF
    if primary in _FULL or code == _SHM_SIZE:
        return disk_full(detail)
    if primary in _LOCKED:
        return locked(detail)
    if primary in _CORRUPT:
        return corrupt(detail)
    if primary in _BROKEN:
        remedy = "check the volume of the database: mounted read-write, healthy, owned by the server's account"
        return Unavailable(f"the database cannot be used: {detail}", remedy=remedy)
    return Failed(f"the database refused a statement: {detail}")


def _postgres(state: str, detail: str) -> RingfenceError:
    if state == "53100":
        return disk_full(detail)
    if state == "55P03":
        return locked(detail)
    if state.startswith("XX"):
        return corrupt(detail)
    if state[:2] in ("08", "53", "57", "58") or not state:
        return Unavailable(f"the database cannot be used: {detail}", remedy="check that the database server is up")
    return Failed(f"the database refused a statement: {detail}")
