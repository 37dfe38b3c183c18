"""K07 to K10: whoever writes to the database alone, against the vault; and a server that starts without its key.

An installation of its own: what is written into its database is wrong on purpose. Whether a value got out is what the world
has. Must never open a value itself.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ringfence.bench.throwaway import Installation
from ringfence.client.sync import SyncClient
from ringfence.prove import apart, programs
from ringfence.prove.attacks.trying import DONE
from ringfence.prove.outward_stage import SECRET, binding, database
from ringfence.prove.row import Tries
from ringfence.prove.stage import Stage, said
from ringfence.prove.world import API, MINE, OTHER

PLAY = "vault"
VERA, WANDA = "vera", "wanda"
Rows = dict[str, list[dict[str, Any]]]  # table -> its rows, of one credential
_TABLES = {"credentials": "id", "credential_versions": "credential", "credential_bindings": "credential"}


def vault(stage: Stage) -> dict[str, Tries]:
    """Row id -> what was tried, and `ID control`. Played once."""

    def play(stage: Stage) -> dict[str, Tries]:
        with apart.installation(stage) as made:
            (made.home / "ringfence.toml").write_text(stage.world.settings())
            made.start()
            with closing(Play(stage, made)) as here:
                return {**here.rollback(), **here.moved(), **here.rebound(), **here.sealed()}

    return stage.once(PLAY, play)


class Play:
    def __init__(self, stage: Stage, made: Installation) -> None:
        self._stage, self._made = stage, made
        self._client = SyncClient(socket=made.socket)
        self._values: dict[str, str] = {}
        for user in (VERA, WANDA):
            self._client.add_user(user)
            with self._acting(user) as acting:
                acting.add_egress_rule(user, {"answer": "allow", "host": API})
            self._store(user, binding())

    def close(self) -> None:
        self._client.close()

    @contextmanager
    def _acting(self, user: str) -> Iterator[SyncClient]:
        with closing(SyncClient(socket=self._made.socket, act_as=user)) as acting:
            yield acting

    def _store(self, user: str, bound: dict[str, object] | None = None) -> str:
        """The next version: its value."""
        value = f"vault-{secrets.token_hex(16)}"
        with self._acting(user) as acting:
            acting.set_secret(user, SECRET, value.encode(), binding=bound)
        self._values[user] = value
        return value

    def _sent(self, user: str, host: str = API) -> str:
        """What the world sees at the host for the placeholder of a new command: a value, or empty."""
        path = f"{MINE}/vault-{secrets.token_hex(6)}"
        text = programs.payload("outward", "used", (host, path))
        answer = self._client.exec(user, ["python3", "-I", "-c", programs.COMMAND], stdin=text.encode(), timeout=60)
        outcome = str(answer.get("stdout", ""))
        found = [each for each in self._stage.world.at(host) if path in each.line]
        if found:
            return found[-1].head.partition("Bearer ")[2].split("\n")[0].strip() or "nothing in it"
        self._last = said(outcome, answer).outcomes["used"] if outcome else json.dumps(answer)[:80]
        return ""

    def _word(self, user: str, *values: str, host: str = API) -> str:
        """`done`: one of these got out."""
        got = self._sent(user, host)
        return f"{DONE} sent" if got in values else "another value was sent" if got else self._last

    # --- the database ------------------------------------------------------------------------------------------------

    def _database(self) -> sqlite3.Connection:
        wire = sqlite3.connect(database(self._made), timeout=10, isolation_level=None)
        wire.row_factory = sqlite3.Row
        return wire

    def _rows(self, user: str) -> Rows:
        with closing(self._database()) as wire:
            query = (
                'SELECT c.id FROM credentials c JOIN users u ON u.id = c."user" '
                "WHERE u.name = ? AND c.name = ? ORDER BY c.created_at DESC"
            )
            (credential,) = wire.execute(query, (user, SECRET)).fetchone()
            return {
                table: [dict(row) for row in wire.execute(f'SELECT * FROM {table} WHERE "{key}" = ?', (credential,))]
                for table, key in _TABLES.items()
            }

    def _put(self, rows: Rows) -> None:
        """Exactly these, in place of all that there is of that credential."""
        (owner,) = rows["credentials"]
        with closing(self._database()) as wire:
            wire.execute("PRAGMA foreign_keys = OFF")
            wire.execute("BEGIN IMMEDIATE")
            for table, key in _TABLES.items():
                wire.execute(f'DELETE FROM {table} WHERE "{key}" = ?', (owner["id"],))
                for row in rows[table]:
                    names = ", ".join(f'"{name}"' for name in row)
                    marks = ", ".join("?" for _ in row)
                    wire.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(row.values()))
            wire.execute("COMMIT")

    # --- the rows ----------------------------------------------------------------------------------------------------

    def rollback(self) -> dict[str, Tries]:
        first, older = self._values[VERA], self._rows(VERA)
        newer_value = self._store(VERA)
        newer = self._rows(VERA)
        self._put(older)
        told = {"the whole of the older one": self._word(VERA, first)}
        older_value_only = {**newer, "credential_versions": [
            {**older["credential_versions"][0], "version": newer["credential_versions"][0]["version"]}
        ]}  # fmt: skip
        self._put(older_value_only)
        told["its value as the newer version"] = self._word(VERA, first)
        self._put(newer)
        control = {"the newest put back": self._word(VERA, newer_value)}
        with self._acting(VERA) as acting:
            acting.revoke_secret(VERA, SECRET)
        gone = self._rows(VERA)
        self._client.stop_box(VERA)  # a box that starts is told of bindings anew
        self._put(newer)
        told["what was revoked"] = self._word(VERA, newer_value)
        self._put(gone)
        return {"K07": Tries(told), "K07 control": Tries(control)}

    def moved(self) -> dict[str, Tries]:
        """The other user's rows with the value of hers: her credential is stored anew before."""
        value = self._store(VERA, binding())
        hers, own = self._rows(VERA), self._rows(WANDA)
        (version,), (mine,) = hers["credential_versions"], own["credential_versions"]
        taken = {**version, "credential": mine["credential"], "version": mine["version"]}
        told = {}
        for name, mac in (("the value", None), ("the value and its mac", hers["credentials"][0]["mac"])):
            owner = own["credentials"][0] if mac is None else {**own["credentials"][0], "mac": mac}
            self._put({**own, "credentials": [owner], "credential_versions": [taken]})
            told[name] = self._word(WANDA, value)
        given = {**hers["credentials"][0], "user": own["credentials"][0]["user"], "name": "hers"}
        bound = {**own["credential_bindings"][0], "credential": given["id"]}
        self._put({**own, "credential_bindings": []})
        self._put({**hers, "credentials": [given], "credential_bindings": [bound]})
        told["the credential itself"] = self._word(WANDA, value)
        self._put(hers)
        self._put(own)
        return {"K08": Tries(told), "K08 control": Tries({"her own put back": self._word(WANDA, self._values[WANDA])})}

    def rebound(self) -> dict[str, Tries]:
        """Her binding, made one for another host, and one of one's own beside it. A rule of hers lets that host through."""
        with self._acting(WANDA) as acting:
            acting.add_egress_rule(WANDA, {"answer": "allow", "host": OTHER})
        own, value, told = self._rows(WANDA), self._values[WANDA], {}
        (bound,) = own["credential_bindings"]
        there = {**bound, "body": bound["body"].replace(API, OTHER)}
        beside = {**there, "id": "bnd_beside", "digest": "beside"}
        for name, bindings in (("another host", [there]), ("a binding beside it", [bound, beside])):
            self._put({**own, "credential_bindings": bindings})
            self._client.stop_box(WANDA)  # a box that starts is told of bindings anew
            told[name] = self._word(WANDA, value, host=OTHER)
        self._put(own)
        self._client.stop_box(WANDA)
        return {"K10": Tries(told), "K10 control": Tries({"as it was": self._word(WANDA, value)})}

    def sealed(self) -> dict[str, Tries]:
        key = self._made.home / "vault" / "master.key"
        told = {}
        self._made.stop()
        kept = key.rename(key.with_name("kept.key"))
        told["without a key"] = self._restarted(WANDA)
        self._made.stop()
        self._another(key, kept)
        told["with another key"] = self._restarted(WANDA)
        self._made.stop()
        kept.rename(key)
        control = {"with its key": self._restarted(WANDA)}
        return {"K09": Tries(told), "K09 control": Tries(control)}

    def _restarted(self, user: str) -> str:
        self._client.close()
        self._made.start()
        self._client = SyncClient(socket=self._made.socket)
        return self._word(user, self._values[user])

    def _another(self, key: Path, kept: Path) -> None:
        key.unlink(missing_ok=True)
        key.write_bytes(secrets.token_bytes(32))
        key.chmod(0o600)
        owner = kept.stat()
        if owner.st_uid != key.stat().st_uid:
            os.chown(key, owner.st_uid, owner.st_gid)
