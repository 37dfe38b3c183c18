"""A throw-away PostgreSQL cluster: found on this host, made in a scratch directory, gone at the end.

Benchmarks and tests stand on it. It listens on a socket in its own directory and nowhere else, and runs as an account
that is not root (PostgreSQL refuses root). Must never touch a cluster that the distribution started. Blocks.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ringfence.bench.throwaway import CommandFailed

PLACES = Path("/usr/lib/postgresql")  # Debian: one folder for each major version
SUPERUSER = "ringfence"
_ACCOUNTS = ("postgres", "nobody")  # of root's servers: the first that there is
# Of every cluster. What is not named is PostgreSQL's own: autovacuum and the checkpointer take their part of what is measured.
_COMMON = {
    "listen_addresses": "''",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "timezone": "'Asia/Kathmandu'",  # of nobody here: what forgets to say UTC is found out
    "deadlock_timeout": "100ms",
    "log_min_messages": "fatal",
}
_FAST = {"fsync": "off", "full_page_writes": "off"}


@dataclass(frozen=True, slots=True)
class Cluster:
    folder: Path
    programs: Path
    account: str | None  # that the server runs as; None: ours

    def url(self, database: str) -> str:
        """As `serve --db` takes it."""
        return f"postgresql://{SUPERUSER}@/{database}?host={self.folder}"

    def create(self, database: str, template: str = "template0") -> str:
        """Its url. The names are put into SQL as they are."""
        self.sql("postgres", f"CREATE DATABASE {database} TEMPLATE {template}")
        return self.url(database)

    def drop(self, database: str) -> None:
        """Whoever is connected loses the connection."""
        self.sql("postgres", f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")

    def sql(self, database: str, text: str) -> list[list[str]]:
        """Rows as text. CommandFailed."""
        words = ["psql", "-X", "-q", "-A", "-t", "-F", "\x1f", "-v", "ON_ERROR_STOP=1", "-h", str(self.folder)]
        out = self._run(*words, "-U", SUPERUSER, "-d", database, "-c", text)
        return [line.split("\x1f") for line in out.splitlines()]

    def start(self) -> None:
        options = f"-k {self.folder}"
        self._run("pg_ctl", "-D", str(self._data), "-l", str(self.folder / "log"), "-o", options, "-w", "start")

    def stop(self, mode: str = "immediate") -> None:
        """`immediate`: as if it had been killed; the next start recovers from the log. `fast`: in order."""
        self._run("pg_ctl", "-D", str(self._data), "-m", mode, "-w", "stop")

    def kill(self) -> None:
        """SIGKILL to the postmaster; its children end by themselves, and the next start waits for them."""
        os.kill(int((self._data / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _run(self, program: str, *words: str) -> str:
        command = [str(self.programs / program), *words]
        if self.account is not None:
            command = ["runuser", "-u", self.account, "--", *command]
        # pg_ctl leaves a server behind that inherits its descriptors: a pipe would never end.
        with tempfile.TemporaryFile() as out:
            ran = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd="/", check=False
            )
            out.seek(0)
            text = out.read().decode(errors="replace")
        if ran.returncode != 0:
            raise CommandFailed(f"{program}: exit {ran.returncode}: {text[-2000:]}")
        return text

    def make(self, settings: dict[str, str]) -> None:
        words = ["--no-sync", "--locale=C", "--encoding=UTF8", f"--username={SUPERUSER}", "--auth=trust"]
        self._run("initdb", "-D", str(self._data), *words)
        lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(lines)


def programs() -> Path:
    """The newest version's programs. CommandFailed: there is none."""
    found = {int(place.parent.name): place for place in PLACES.glob("*/bin") if re.fullmatch(r"\d+", place.parent.name)}
    usable = {version: place for version, place in found.items() if (place / "postgres").exists()}
    if not usable:
        raise CommandFailed("there is no PostgreSQL on this host: apt-get install -y postgresql")
    return usable[max(usable)]


def account() -> str | None:
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in _ACCOUNTS if name in known)


@contextlib.contextmanager
def cluster(settings: dict[str, str] | None = None, *, durable: bool = False) -> Iterator[Cluster]:
    """Running. `durable`: as PostgreSQL is by itself; else it syncs nothing, for what loses no power."""
    folder = Path(tempfile.mkdtemp(prefix="ringfence-pg-"))  # short: a socket's path has 107 bytes at most
    runs_as = account()
    try:
        if runs_as is not None:
            entry = pwd.getpwnam(runs_as)
            os.chown(folder, entry.pw_uid, entry.pw_gid)
        made = Cluster(folder, programs(), runs_as)
        made.make(_COMMON | ({} if durable else _FAST) | (settings or {}))
        made.start()
        try:
            yield made
        finally:
            with contextlib.suppress(CommandFailed):  # a test may have ended it
                made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
