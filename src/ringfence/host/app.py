"""The composition root and the kernel process: the one place where rooms meet.

Started by the spawner as its child, already without privileges, with its end of the spawner's socket. It makes the parts,
hands them to the engine and serves until the spawner ends or SIGTERM comes. It must never decide anything: what is here
opens, joins and closes. Boxes outlive it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import hmac
import json
import logging
import os
import resource
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ringfence.host.broker.audited import audited_wire
from ringfence.host.capabilities.keys import gate_key
from ringfence.host.drivers.box_logs import FileLogs
from ringfence.host.drivers.bubblewrap import Bubblewrap
from ringfence.host.drivers.files import FilesClient
from ringfence.host.drivers.host_load import load
from ringfence.host.drivers.shelf import FileShelf
from ringfence.host.drivers.spawner_client import SpawnerClient
from ringfence.host.egress.standing import site_of
from ringfence.host.egress.token_endpoint import HttpsTokenEndpoint
from ringfence.host.egress.way_out import Sources, WayOut
from ringfence.host.engine.engine import Engine
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.people import MAKE_A_TENANT, NO_TENANT, PREFIX, secret_hash
from ringfence.host.from_settings import config_of, models_of, signer_of, webhooks_of
from ringfence.host.kernel import ids as kernel_ids
from ringfence.host.kernel.audit import Lane
from ringfence.host.kernel.capabilities import register
from ringfence.host.kernel.errors import Conflict, Failed, Invalid, RingfenceError, Unavailable
from ringfence.host.kernel.hidden import secrets_of
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.backups import State
from ringfence.host.kernel.log_lines import JsonLines
from ringfence.host.kernel.people import Scope, UserKind
from ringfence.host.kernel.policy import Policy
from ringfence.host.kernel.ports import Store
from ringfence.host.kernel.settings import Settings
from ringfence.host.kernel.version import VERSION
from ringfence.host.models.assembly import Models, assembled
from ringfence.host.models.gateway import Gateway
from ringfence.host.models.provider_keys import ProviderKeys
from ringfence.host.store import audit_reading, verbs
from ringfence.host.store.audit_keys import Signer
from ringfence.host.store.peopled import has_tenants
from ringfence.host.store.store import SqlStore, open_store
from ringfence.host.store.verbs import Job
from ringfence.host.vault.authorities import VaultAuthorities
from ringfence.host.vault.opening import keys_of, restored, seals_of, vault_of
from ringfence.host.vault.release import Counter
from ringfence.host.vault.renewing import Renewing
from ringfence.host.vault.vault import SealedVault
from ringfence.host.web.server import serve

_PR_SET_DUMPABLE = 4  # prctl(2)
_SECRET_BITS = 256
# So many objects more than were freed, and the collector looks for cycles: at the default of 700 it looks 30 times while
# one large frame is parsed. No higher: what is in cycles until then are errors of asks, with up to 1 MiB of an ask each.
_GC_THRESHOLDS = (10_000, 10, 10)
JOB = "/job.json"  # what the kernel process is given instead of kernel.json when it is no server: jobs.py
DEFAULT_TENANT = "default"
FIRST_OPERATOR = "operator"


class SystemClock:
    """ports.Clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)  # noqa: TID251  the one place that may

    def monotonic(self) -> float:
        return time.monotonic()


class SystemIds:
    """ports.Ids."""

    def new(self, prefix: str) -> str:
        return kernel_ids.sortable(prefix, time.time_ns() // 1_000_000, secrets.randbits(50))

    def box(self) -> BoxId:
        return kernel_ids.box_id(secrets.randbits(80))

    def secret(self) -> str:
        return kernel_ids.base32(secrets.randbits(_SECRET_BITS), 52)  # 52 * 5 = 260 bits hold 256


def _log_to_stderr(words: Sequence[str] = ()) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(words))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for noisy in ("uvicorn", "alembic", "sqlalchemy"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _closed_to_debuggers() -> None:
    """Nobody of the same account reads our memory, and no core of it is written. Before the first secret is read."""
    # 1 is less than a page. For 0 the kernel would run a handler behind a pipe (core(5)); where 0 was given, it stays.
    most = 0 if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise Failed(f"prctl(PR_SET_DUMPABLE): {os.strerror(ctypes.get_errno())}")


def _room_for_sockets() -> None:
    """As many descriptors as may be: an open box has a wire, 6 fixed listeners and 4 to 16 for its commands, so that the usual
    1,024 are those of fifty boxes."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def settle_memory() -> None:
    """What was made at the start stays until the end: 130,000 objects of modules, routes and statements. The collector
    is not to walk them again each time, which takes 60 ms in which nobody is answered."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@asynccontextmanager
async def releases_of(settings: Settings, store: Store, vault: SealedVault, worker: str) -> AsyncIterator[Counter]:
    """Where values leave the vault, access tokens among them: what is asked for at the end is waited for, and stored. Invalid:
    a file that is named is none."""
    site = await asyncio.to_thread(site_of, settings.egress)
    endpoint = HttpsTokenEndpoint(site, store.egress_rules, SystemClock().monotonic)
    renewing = Renewing(vault, store.credentials, store.renewals, endpoint, store.audit, store.onward, worker)
    try:
        yield Counter(vault, store.credentials, store.audit, renewing)
    finally:
        await renewing.close()


def keys_of_models(settings: Settings, store: Store, vault: SealedVault, releases: Counter) -> ProviderKeys:
    hosts = {each.key: each.host for each in settings.model_upstream}
    return ProviderKeys(store.credentials, releases, vault, store.model_usage, hosts)


def models_at_work(
    settings: Settings, store: Store, keys: ProviderKeys, worker: str
) -> AbstractAsyncContextManager[Models]:
    """Providers, the gateway and their budgets; what is still to be counted at the end is."""
    return assembled(
        settings.model_upstream,
        settings.model_budget,
        keys,
        store.model_usage,
        clock=SystemClock(),
        ids=SystemIds(),
        worker=worker,
        proxy=settings.egress.upstream_proxy,
        root_ca=settings.egress.root_ca,
    )


async def egress_of(
    settings: Settings,
    store: Store,
    vault: SealedVault,
    driver: Bubblewrap,
    releases: Counter,
    key: bytes,
    gateway: Gateway | None,
) -> WayOut | None:
    """The way out of boxes; None: the settings want none. `key`: a secret of the vault, from which that of placeholders is
    made. Invalid: a file that is named is none."""
    if not settings.egress.enabled:
        return None
    clock, ids = SystemClock(), SystemIds()
    site = await asyncio.to_thread(site_of, settings.egress)
    authorities = VaultAuthorities(vault, store.credentials, clock, ids)
    derived = hmac.digest(key, b"ringfence placeholders", "sha256")
    return WayOut(Sources(store, driver, releases, authorities, clock, ids, site, derived, gateway))


async def _open_audit(store: SqlStore) -> None:
    """A disk that is full must not keep a server down: what needs the audit is refused until there is room."""
    try:
        await store.audit.open()
    except RingfenceError as error:
        logging.getLogger("ringfence.audit").error("the chain of the audit is not begun: %s", error.message)


async def pass_gate(store: Store, settings: Settings) -> None:
    """What was accepted though it stands open goes into the audit, with who and why. Unavailable: several tenants on walls
    that are not proven. Without any the log says so: the server works, and nobody is known to it."""
    tenants = len(await store.tenants.all())
    if not tenants:
        logging.getLogger("ringfence.store").warning("%s: %s", NO_TENANT, MAKE_A_TENANT)
    if settings.gate and tenants > 1:
        raise Unavailable(f"{tenants} tenants need proven walls: {settings.gate}", remedy=settings.gate_remedy)
    if settings.open:
        details = {"ids": list(settings.open), "reason": settings.accept_reason, "by": settings.accepted_by}
        await store.audit.record(None, "serve.accepted", "host", details)


@asynccontextmanager
async def driver_at_work(settings: Settings, client: SpawnerClient) -> AsyncIterator[tuple[Bubblewrap, FileLogs]]:
    """With the logs of its boxes; what they are told up to the end is written."""
    logs = FileLogs(Path(settings.home), SystemClock(), secrets_of(settings))
    try:
        yield Bubblewrap(Path(settings.home), client, FilesClient, logs), logs
    finally:
        await logs.close()


def _of_host(settings: Settings, logs: FileLogs) -> dict[str, Any]:
    """Fields of Parts that tell of the host."""
    return {"whole": _whole_of(settings), "load": load, "shelf": FileShelf(Path(settings.home)), "logs": logs}


def _whole_of(settings: Settings) -> State:
    from ringfence.host import jobs

    return jobs.whole_of(settings)


@asynccontextmanager
async def running(settings: Settings, client: SpawnerClient) -> AsyncIterator[Engine]:
    """The engine at work over the real parts; everything is let go of in the reverse order."""
    clock, ids = SystemClock(), SystemIds()
    worker = ids.new("krn")
    scripted = await asyncio.to_thread(models_of, settings)  # reads a file
    webhooks = await asyncio.to_thread(webhooks_of, settings, clock)
    key = await asyncio.to_thread(gate_key, Path(settings.home) / "vault")
    signer = await asyncio.to_thread(signer_of, settings, worker)
    keys = await keys_of(settings)
    store = await open_store(
        settings.database,
        clock,
        ids,
        signer=signer,
        keep=settings.retention,
        installation=settings.installation,
        seals=seals_of(settings, keys),
    )
    try:
        await _open_audit(store)
        await store.reserve.keep()
        await pass_gate(store, settings)
        vault = await vault_of(settings, keys, store)
        async with (
            releases_of(settings, store, vault, worker) as releases,
            models_at_work(settings, store, lent := keys_of_models(settings, store, vault, releases), worker) as models,
            audited_wire(store.audit, worker, settings.rates) as broker,
            driver_at_work(settings, client) as (driver, logs),
        ):
            egress = await egress_of(settings, store, vault, driver, releases, key, models.gateway)
            engine = Engine(
                Parts(
                    store,
                    driver,
                    broker,
                    {**scripted, **models.native},
                    clock,
                    ids,
                    config_of(settings),
                    worker,
                    capabilities=register(webhooks),
                    policy=Policy(settings.policy),
                    gate_key=key,
                    egress=egress,
                    vault=vault,
                    spending=models.budgets if models.gateway is not None else None,
                    withdraw=lent.withdraw,
                    **_of_host(settings, logs),
                )
            )
            try:
                await engine.start()
                yield engine
            finally:
                await engine.stop()
                for webhook in webhooks:
                    await webhook.close()
    finally:
        await store.close()


async def _serve(fd: int, settings: Settings) -> int:
    """The exit status: 0 after SIGTERM, 1 when the spawner has gone."""
    loop = asyncio.get_running_loop()
    client = SpawnerClient(fd)
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    try:
        async with running(settings, client) as engine:

            def ready() -> None:
                settle_memory()
                web = f" and http://{_address(settings.listen)}" if settings.listen else ""
                boxes = f"{engine.adopted} {'box' if engine.adopted == 1 else 'boxes'} adopted"
                _say(f"ringfence {VERSION} serving at {settings.socket}{web} (mode {settings.mode}, {boxes})")

            return await _until_told(serve(engine, settings, ready), asked, client)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)  # the spawner sends SIGTERM when the socket ends; we are ending
        client.close()


async def _until_told(serving: Any, asked: asyncio.Event, client: SpawnerClient) -> int:
    async with asyncio.TaskGroup() as group:
        web = group.create_task(serving)
        signalled = group.create_task(asked.wait())
        await asyncio.wait({web, signalled, client.closed}, return_when=asyncio.FIRST_COMPLETED)
        for task in (web, signalled):
            task.cancel()
    return 0 if asked.is_set() else 1


def _address(listen: tuple[str, int]) -> str:
    host, port = listen
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def bootstrap(settings: Settings, *, empty_only: bool = False) -> str:
    """Brings the database up to date, makes tenant `default` and user `operator` when they are missing, and returns a
    new token of that user with scope operator. Needs no spawner; its box is provisioned on first use. `empty_only`: where
    there is any tenant nothing is done, and the answer is empty."""
    if empty_only and await has_tenants(settings.database):
        return ""
    clock, ids = SystemClock(), SystemIds()
    signer = await asyncio.to_thread(signer_of, settings, ids.new("krn"))
    store = await open_store(settings.database, clock, ids, signer=signer, installation=settings.installation)
    try:
        with suppress(Conflict):
            await store.tenants.add(DEFAULT_TENANT)
        with suppress(Conflict):
            await store.users.add(DEFAULT_TENANT, FIRST_OPERATOR, UserKind.PERSON, None)
        user = await store.users.get(DEFAULT_TENANT, FIRST_OPERATOR)
        secret = PREFIX + ids.secret()
        scopes = frozenset({Scope.OPERATOR, Scope.USER})
        await store.tokens.add(user.id, secret_hash(secret), scopes, "made by init", None)
        return secret
    finally:
        await store.close()


def database_verb(argv: Sequence[str]) -> None:
    """A verb of `ringfence db`, or `audit`, as a process of the kernel's account. `argv`: the verb, the descriptor of the
    backup or "".
    stdin: {"settings", "options", "by", "alone"}. stdout: {"facts"} or {"error", "exit_code"}, one JSON object."""
    _closed_to_debuggers()
    verb, fd = argv
    asked = json.load(sys.stdin)
    try:
        facts = asyncio.run(_database(verb, asked, int(fd) if fd else None))
        json.dump({"facts": facts}, sys.stdout)
    except RingfenceError as error:
        json.dump({"error": error.as_json(), "exit_code": error.exit_code}, sys.stdout)


async def _database(verb: str, asked: Mapping[str, Any], fd: int | None) -> dict[str, Any]:
    settings, ids = Settings.from_json(asked["settings"]), SystemIds()
    if verb == "audit":
        return await read_audit(settings, asked["options"])
    signer = (
        Signer()
        if verb in ("backup", "support", "images")
        else await asyncio.to_thread(signer_of, settings, ids.new("krn"))
    )
    job = Job(
        url=settings.database,
        installation=settings.installation,
        release=VERSION,
        clock=SystemClock(),
        ids=ids,
        signer=signer,
        by=str(asked["by"]),
        alone=bool(asked["alone"]),
    )
    if fd is None:
        return await verbs.run(job, verb, asked["options"], None)
    file = open(fd, "wb" if verb == "backup" else "rb")  # noqa: ASYNC230, SIM115  a process of its own
    try:
        facts = await verbs.run(job, verb, asked["options"], file)
        return facts if verb == "backup" else await _put_back(settings, facts)
    finally:
        with suppress(OSError):  # what could not be written was told already
            file.close()


async def _put_back(settings: Settings, facts: dict[str, Any]) -> dict[str, Any]:
    """What is older in the store is no alarm on this host from now on."""
    try:
        await restored(settings, facts["generation"])
    except OSError as error:
        note = f"not noted for the vault: {error}; when the server runs: ringfence vault restored"
        return {**facts, "notes": [*facts["notes"], note]}
    return facts


async def read_audit(settings: Settings, wish: Mapping[str, Any]) -> dict[str, Any]:
    """The audit without a server: changes nothing. `wish`: {"verb": "verify"}, or {"verb": "ls", "lane", "since",
    "before", "limit"}."""
    signer = await asyncio.to_thread(signer_of, settings, "")
    if wish["verb"] == "verify":
        return (await audit_reading.verify(settings.database, signer, settings.installation)).as_json()
    since = datetime.fromisoformat(wish["since"]) if wish["since"] else None
    lanes = {Lane(wish["lane"])} if wish["lane"] else set(Lane)
    return {"rows": await audit_reading.rows(settings.database, lanes, since, wish["before"], wish["limit"])}


def _settings(path: str) -> Settings:
    try:
        return Settings.from_json(json.loads(Path(path).read_text()))
    except (OSError, ValueError) as error:
        raise Invalid(f"cannot read {path}: {error}", remedy="start the server again: ringfence serve") from error


def main(argv: Sequence[str] | None = None) -> None:
    """The kernel process. `argv`: the descriptor of the spawner's socket, the path of kernel.json. Never returns."""
    fd, path = list(sys.argv[1:] if argv is None else argv)
    _closed_to_debuggers()
    if path.endswith(JOB):
        from ringfence.host import jobs

        sys.exit(jobs.main(int(fd), path))
    _room_for_sockets()
    os.umask(0o077)
    _log_to_stderr()
    _say(f"ringfence {VERSION} starting")
    try:
        settings = _settings(path)
        _log_to_stderr(secrets_of(settings))
        sys.exit(asyncio.run(_serve(int(fd), settings)))
    except RingfenceError as error:
        _end(error)
    except BaseExceptionGroup as group:
        known = _first(group)
        if known is None:
            raise
        _end(known)


def _first(group: BaseExceptionGroup[BaseException]) -> RingfenceError | None:
    """The error of ours that a TaskGroup wrapped."""
    for error in group.exceptions:
        found = _first(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, RingfenceError):
            return found
    return None


def _end(error: RingfenceError) -> None:
    """The remedy is indented: by that whoever reads the log knows it from the next line."""
    below = f"  {error.remedy}\n" if error.remedy else ""
    sys.stderr.write(f"ringfence: {error.message}\n{below}")
    sys.exit(error.exit_code)
