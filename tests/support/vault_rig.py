"""A real vault over a real store: keys in a folder, as the state has them; and the words that tests of it say often."""

from __future__ import annotations

from pathlib import Path

from ringfence.host.kernel.canonical import canonical_json
from ringfence.host.kernel.outward.credentials import Binding, Credential, Owner, Use
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.spelled import binding_to_json
from ringfence.host.kernel.people import User
from ringfence.host.store.store import SqlStore
from ringfence.host.vault.authorities import VaultAuthorities
from ringfence.host.vault.generations import agreed
from ringfence.host.vault.keyring import MASTER, of_folder
from ringfence.host.vault.keys import open_keys
from ringfence.host.vault.seen import Witnesses
from ringfence.host.vault.vault import SealedVault, open_vault
from tests.support.clocks import CountingIds, HandClock
from tests.support.store import Team

CANARY = b"ghp_canaryCANARYcanary0123456789abcdef"
REACH = canonical_json(
    [binding_to_json(Binding("", "", "**.test"))]
).decode()  # of what others may bind, where none is said
KEY, SECOND = b"k" * 32, b"n" * 32


def put_key(folder: Path, key: bytes = KEY, name: str = MASTER) -> Path:
    """In the folder's vault. Blocks."""
    vault = folder / "vault"
    vault.mkdir(mode=0o700, exist_ok=True)
    path = vault / name
    path.unlink(missing_ok=True)
    path.touch(0o600)
    path.write_bytes(key)
    return path


async def a_vault(folder: Path, store: SqlStore) -> SealedVault:
    """Of a server that starts, with the keys that lie in the folder's vault."""
    vault = folder / "vault"
    keys = await open_keys(lambda: of_folder(vault))
    seen = vault / "seen"
    return open_vault(keys, Witnesses(seen, agreed(seen, await store.kernels.generation())))


def authorities(vault: SealedVault, store: SqlStore, clock: HandClock, first: int = 1 << 33) -> VaultAuthorities:
    return VaultAuthorities(vault, store.credentials, clock, CountingIds(first))


def draft(team: Team, name: str, user: User | None, owner: Owner = Owner.USER, number: int = 0) -> Credential:
    """Version 1 of a new one. `number`: of its id, where a test has several of one name."""
    whose = None if user is None else user.id
    id_ = f"crd_{name.replace('-', '').replace('.', '')}{whose[10:14] if whose else ''}{number}"
    now = team.clock.now()
    reach = "" if owner is Owner.USER else REACH
    return Credential(id_, team.tenant.id, owner, whose, name, 1, "opaque", now, now, reach=reach)


async def stored(
    team: Team,
    vault: SealedVault,
    name: str = "token",
    value: bytes = CANARY,
    user: User | None = None,
    number: int = 0,
    owner: Owner = Owner.USER,
) -> Credential:
    """Alice's own, unless it is somebody else's."""
    made = draft(team, name, user or team.alice, owner, number=number)
    return await vault.put(team.store.credentials, made, Secret(value))


async def value_of(store: SqlStore, vault: SealedVault, credential: str) -> bytes:
    return (await vault.read(store.credentials, credential))[1].reveal()


def binding(credential: Credential, host: str = "api.test", use: Use = Use.PLACEHOLDER) -> Binding:
    return Binding("", credential.id, host, use=use)
