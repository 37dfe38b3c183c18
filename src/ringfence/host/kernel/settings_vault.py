"""The keys of [vault] in ringfence.toml: rows of settings_file.KEYS. Pure data. Must never hold a key of the vault
itself."""

from __future__ import annotations

from ringfence.host.kernel.hidden_values import MARK
from ringfence.host.kernel.settings_key import Key
from ringfence.host.kernel.vault_keys import ALLOWED, check_source, check_sources


def _source(value: object) -> str:
    """ValueError: also of what `config show` has hidden the arguments of."""
    source = check_source(value)
    if source.endswith(MARK):
        raise ValueError("the source itself: `config show` hides a program's arguments")
    return source


def _sources(value: object) -> tuple[str, ...]:
    return tuple(_source(each) for each in check_sources(value))


VAULT = (
    Key(
        "vault.key",
        "source",
        ALLOWED,
        "where `serve` reads the key that wraps stored credentials (operate.md); empty = vault/master.key of the state",
        _source,
    ),
    Key(
        "vault.old",
        "list of sources",
        ALLOWED,
        "keys of before, until `ringfence vault rotate`; empty, as `key` is = vault/master.key.NAME of the state",
        _sources,
    ),
)
