"""The `db` verbs over a database that may have no server: upgrade, check, backup, restore, rebuild. Called by app.py in a
process of the kernel's account; the own command has made sure of the lock where a verb needs it.

Each gives facts for JSON. It must never be called in the server's own process: these read a whole database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import IO, Any

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from ringfence.host.kernel.errors import Invalid, Unavailable
from ringfence.host.kernel.ports import Clock, Ids
from ringfence.host.store import migrate, rebuild, restore_swap
from ringfence.host.store.audit_keys import Signer
from ringfence.host.store.backup import dump
from ringfence.host.store.check import Finding, examine
from ringfence.host.store.declaring import Declarer
from ringfence.host.store.dialect import LeaseClock
from ringfence.host.store.dialects import dialect_of
from ringfence.host.store.door import entered
from ringfence.host.store.engine import SCHEMA_LOCK
from ringfence.host.store.failures import cut_short, translate
from ringfence.host.store.generation import generation_of
from ringfence.host.store.image_uses import image_uses
from ringfence.host.store.kernels import check_nobody_needs, check_nobody_works
from ringfence.host.store.restoring import put_back
from ringfence.host.store.sqlite_files import path_of
from ringfence.host.store.store import open_store
from ringfence.host.store.supporting import support_facts
from ringfence.host.store.whole_backup import Seen, settle

BUSY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Job:
    """What one verb is asked."""

    url: str
    installation: str
    release: str
    clock: Clock
    ids: Ids
    signer: Signer
    by: str  # who asks, for the audit
    alone: bool  # the installation's lock is held: no kernel of this host works on it


async def run(job: Job, verb: str, options: Mapping[str, Any], file: IO[bytes] | None) -> dict[str, Any]:
    """RingfenceError. `file`: the backup, to write or to read."""
    verbs = {
        "upgrade": _upgrade,
        "check": _check,
        "rebuild": _rebuild,
        "settle": _settle,
        "support": _support,
        "images": _images,
    }
    try:
        if verb in ("backup", "restore") and file is not None:
            return await (_backup(job, options, file) if verb == "backup" else _restore(job, options, file))
        if verb not in verbs:
            raise Invalid(f"no such verb: {verb}")
        return await verbs[verb](job, options)
    except Exception as error:
        raise translate(error) from error


async def _upgrade(job: Job, options: Mapping[str, Any]) -> dict[str, Any]:
    """Also Conflict: kernels that need the old form."""
    if not options.get("contract"):
        store = await open_store(job.url, job.clock, job.ids, signer=job.signer, installation=job.installation)
        await store.close()
    else:
        await _contract(job)
    async with entered(job.url, "scan", BUSY_SECONDS) as database:
        return await database.ask(_schema_facts)


async def _contract(job: Job) -> None:
    async with entered(job.url, "verb", BUSY_SECONDS) as database:
        dialect = database.dialect

        def work(connection: Connection) -> list[str]:
            with connection.begin():
                dialect.lock(connection, SCHEMA_LOCK)
                migrate.check(connection)
                waiting = migrate.contractions(connection)
                if waiting and not (job.alone and dialect.one_kernel):
                    now = dialect.lease_now(connection, LeaseClock(job.clock))
                    check_nobody_needs(connection, now, waiting[-1])
                migrate.contract(connection)
                return waiting

        done = await database.ask(work)
    if done:
        await _record(job, "store.contracted", {"schemas": done})


def _schema_facts(connection: Connection) -> dict[str, Any]:
    return {
        "schema": migrate.current(connection),
        "newest": migrate.newest(),
        "to_contract": migrate.contractions(connection),
        "generation": generation_of(connection),
    }


async def _check(job: Job, options: Mapping[str, Any]) -> dict[str, Any]:
    notes: list[str] = []

    def look(connection: Connection) -> dict[str, Any]:
        with connection.begin():
            migrate.check(connection)
            facts = _schema_facts(connection)
            looked = examine(connection, job.signer.keys, job.installation)
            return {**facts, "findings": [asdict(each) for each in looked.findings], "notes": notes + looked.notes}

    async with AsyncExitStack() as stack:
        try:
            notes += await _finished(job.url)
            database = await stack.enter_async_context(entered(job.url, "scan", BUSY_SECONDS))
        except Unavailable as error:  # what lies there is not one database: nobody is to open it
            return _unreadable(f"{error.message}; {error.remedy}", notes)
        try:
            facts = await database.ask(look)
        except DBAPIError as error:  # not even its first page can be read
            if cut_short(error):
                raise
            return _unreadable(translate(error).message, notes)
    return {"ok": not facts["findings"], **facts}


async def _finished(url: str) -> list[str]:
    """What the door would do without a word."""
    dialect = dialect_of(url, BUSY_SECONDS)
    kept = await asyncio.to_thread(restore_swap.finish, path_of(dialect.url)) if dialect.one_kernel else None
    if kept is None:
        return []
    return [f"a restore that was cut short before is finished now: the database that it replaced is {kept}"]


def _unreadable(says: str, notes: list[str]) -> dict[str, Any]:
    return {"ok": False, "findings": [asdict(Finding("readable", "database", says))], "notes": notes}


async def _backup(job: Job, options: Mapping[str, Any], file: IO[bytes]) -> dict[str, Any]:
    """`whole`: the facts have also what a backup of the whole installation must have of the rows, at this very moment."""
    seen = Seen(job.installation) if options.get("whole") else None

    def work(connection: Connection) -> dict[str, Any]:
        at = job.clock.now().isoformat(timespec="seconds")
        known = {"installation": job.installation, "release": job.release, "at": at}
        manifest, sealed = dump(connection, file, **known, seen=seen)
        facts = {**asdict(manifest), "rows": sum(sealed.rows.values()), "sha256": sealed.sha256}
        return facts if seen is None else {**facts, "seen": seen.as_json()}

    async with entered(job.url, "scan", BUSY_SECONDS) as database:
        return await database.ask(work)


async def _restore(job: Job, options: Mapping[str, Any], file: IO[bytes]) -> dict[str, Any]:
    named = str(options.get("file", ""))
    declarer = Declarer(job.signer, job.clock, job.ids, job.installation, job.by, named)
    return await put_back(job.url, file, declarer, anyway=bool(options.get("anyway")))


async def _settle(job: Job, options: Mapping[str, Any]) -> dict[str, Any]:
    """After the restore of a whole installation."""

    def work(connection: Connection) -> dict[str, Any]:
        with connection.begin():
            archived, kept = set(options["archived"]), set(options["kept"])
            return settle(connection, job.installation, options["uids"], archived, kept, job.clock.now())

    async with entered(job.url, "verb", BUSY_SECONDS) as database:
        return await database.ask(work)


async def _support(job: Job, options: Mapping[str, Any]) -> dict[str, Any]:
    def look(connection: Connection) -> dict[str, Any]:
        with connection.begin():
            return {**_schema_facts(connection), **support_facts(connection)}

    async with entered(job.url, "scan", BUSY_SECONDS) as database:
        return await database.ask(look)


async def _images(job: Job, options: Mapping[str, Any]) -> dict[str, Any]:
    def look(connection: Connection) -> dict[str, Any]:
        with connection.begin():
            migrate.check(connection)
            return image_uses(connection, job.installation)

    async with entered(job.url, "scan", BUSY_SECONDS) as database:
        return await database.ask(look)


async def _rebuild(job: Job, options: Mapping[str, Any]) -> dict[str, Any]:
    write = not options.get("dry_run")
    async with entered(job.url, "verb" if write else "scan", BUSY_SECONDS) as database:
        dialect = database.dialect

        def work(connection: Connection) -> dict[str, Any]:
            with connection.begin():
                migrate.check(connection)
                if write and not (job.alone and dialect.one_kernel):
                    check_nobody_works(connection, dialect.lease_now(connection, LeaseClock(job.clock)))
                differences = rebuild.compare(connection)
                if write:
                    rebuild.mend(connection, differences)
                return {"ok": not differences, "written": write, "differences": [one.as_json() for one in differences]}

        facts = await database.ask(work)
    if write and facts["differences"]:
        await _record(job, "store.rebuilt", {"differences": len(facts["differences"])})
    return facts


async def _record(job: Job, action: str, details: Mapping[str, Any]) -> None:
    store = await open_store(job.url, job.clock, job.ids, signer=job.signer, installation=job.installation)
    try:
        await store.audit.record(None, action, "store", {"by": job.by, **details})
    finally:
        await store.close()
