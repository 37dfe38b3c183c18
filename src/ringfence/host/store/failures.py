"""What a database's error means to the caller. The one place where errors of the drivers become ours.

SQLite: the primary result code is the low byte of the extended one (sqlite.org/rescode.html).
PostgreSQL: SQLSTATE (postgresql.org, appendix A).
"""

from __future__ import annotations

import errno
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

_LOST = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03"})  # the server ended the connection, and says why
_LOCK_TIMEOUT = "55P03"
_CANCELLED = "57014"  # by a statement_timeout, or by somebody
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Two transactions in each other's way, or a statement prepared before the schema changed: run again, it may succeed.
_AGAIN = frozenset({"40001", "40P01", "0A000"})
_RACED = frozenset({"23505", "23503"})  # unique, foreign key: another's commit came between a look and a write


class Disconnected(Exception):
    """The connection is gone, with the answer to what was asked last."""


def disconnected(error: BaseException) -> bool:
    """Whether the connection was lost: nothing is written, unless it was lost while COMMIT was under way."""
    if isinstance(error, Disconnected):
        return True
    return isinstance(error, exc.DBAPIError) and (
        error.connection_invalidated or _sqlstate(error) in _LOST or _sqlstate(error).startswith("08")
    )


def locked_out(error: BaseException) -> bool:
    """Whether a row stayed locked by another transaction for too long. PostgreSQL only."""
    return isinstance(error, exc.DBAPIError) and _sqlstate(error) == _LOCK_TIMEOUT


def in_the_way(error: BaseException) -> bool:
    """Whether the same transaction, run again, may succeed. PostgreSQL only: SQLite has one writer at a time."""
    return isinstance(error, exc.DBAPIError) and _sqlstate(error) in _AGAIN


def raced(error: BaseException) -> bool:
    """Whether another kernel's commit may be why a constraint does not hold. PostgreSQL only."""
    return isinstance(error, exc.IntegrityError) and _sqlstate(error) in _RACED


def no_room(error: BaseException) -> bool:
    """Whether a volume is full, or what one account may have of it."""
    return (isinstance(error, OSError) and error.errno in _NO_ROOM) or isinstance(error, DiskFull)


def cut_short(error: BaseException) -> bool:
    """Whether it says nothing of what was asked: the connection was lost, or the statement stopped from outside."""
    return disconnected(error) or (isinstance(error, exc.DBAPIError) and _sqlstate(error) == _CANCELLED)


def shut_out(error: BaseException) -> bool:
    """Whether another process keeps everybody out of the whole database. SQLite only."""
    code = _sqlite_code(error) if isinstance(error, exc.DBAPIError) else None
    return code is not None and code & 0xFF in _LOCKED


def ends_transaction(error: BaseException) -> bool:
    """Whether nothing of the transaction can be saved: the savepoint of the failed statement is no help."""
    if isinstance(error, OSError | Disconnected):
        return True
    if not isinstance(error, exc.DBAPIError):
        return False
    if disconnected(error) or locked_out(error) or in_the_way(error):
        return True
    code = _sqlite_code(error)
    if code is not None:
        return code & 0xFF in _ENDS_TRANSACTION
    return _sqlstate(error)[:2] in ("08", "53", "57", "58", "XX")


def translate(error: BaseException) -> RingfenceError:
    """The error of kernel.errors for whatever came out of a transaction."""
    if isinstance(error, RingfenceError):
        return error
    if disconnected(error):
        return unreachable(error)
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
    if no_room(error):
        return disk_full(str(error))
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


def locked(detail: str, holder: str = "lsof on the database file names it") -> Unavailable:
    return Unavailable(
        f"another process kept the database locked: {detail}; nothing was written",
        remedy=f"end the process that holds it ({holder}), then try again",
    )


def unreachable(error: BaseException) -> Unavailable:
    detail = str(getattr(error, "orig", None) or error) or type(error).__name__
    return Unavailable(
        f"the database server cannot be used: {detail}; nothing was written",
        remedy="check that it is up, its address and its account (psql with the same address), then try again",
    )


def unknown(error: BaseException) -> Unavailable:
    """The connection was lost between COMMIT and its answer."""
    detail = str(getattr(error, "orig", None) or error)
    return Unavailable(
        f"the connection to the database was lost while it committed ({detail}): whether this was written is not known",
        remedy="look, or ask again with the same key: what was written is then answered, and not written twice",
        outcome="unknown",
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
    if state == _LOCK_TIMEOUT:
        return locked(detail, "it is in pg_stat_activity")
    if state == _CANCELLED:
        return Unavailable(
            f"the database server stopped a statement: {detail}; nothing was written",
            remedy="look at what keeps the server busy (pg_stat_activity), then try again",
        )
    if state.startswith("22"):
        return Invalid(f"a value that the database cannot keep: {detail}")
    if state in _AGAIN:
        return Conflict("others changed the same at the same time; nothing was written", remedy="try again")
    if state.startswith("XX"):
        return corrupt(detail)
    if state[:2] in ("08", "53", "57", "58") or not state:
        return Unavailable(f"the database cannot be used: {detail}", remedy="check that the database server is up")
    return Failed(f"the database refused a statement: {detail}")
