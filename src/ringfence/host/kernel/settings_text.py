"""Settings as text: the file that `config show` prints and docs/configuration.md, both out of settings_file.KEYS.

Pure. Knows no key by itself but the two whose spelling differs between file and `Settings` (`listen`, sizes).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from ringfence.host.kernel.declared import Webhook
from ringfence.host.kernel.models.upstreams import Upstream, as_table
from ringfence.host.kernel.models.usage import units
from ringfence.host.kernel.policy import Rule
from ringfence.host.kernel.settings import ACCEPT, Settings
from ringfence.host.kernel.settings_file import KEYS, SIZES
from ringfence.host.kernel.settings_key import LIST, MONEY
from ringfence.host.kernel.sizes import size_text


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml(name)} = {_toml(item)}" for name, item in value.items()) + " }"
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(str(value), ensure_ascii=False)  # a basic string of TOML has the escapes of JSON


def values(settings: Settings) -> dict[str, object]:
    """Every key of KEYS with its value as one writes it in the file."""
    flat: dict[str, object] = {}
    for key in KEYS:
        table, _, name = key.name.rpartition(".")
        value = getattr(getattr(settings, table) if table else settings, name)
        if name == "listen":
            host = f"[{value[0]}]" if value and ":" in value[0] else (value[0] if value else "")
            value = f"{host}:{value[1]}" if value else "off"
        elif table and name in SIZES:
            value = size_text(value)
        elif key.kind == MONEY:
            value = units(value)
        elif key.kind == LIST:
            value = tuple(_table(item) for item in value)
        flat[key.name] = value
    return flat


def _table(item: Rule | Webhook | Upstream) -> dict[str, object]:
    """Its keys as one writes them; those that say nothing are left out."""
    if isinstance(item, Upstream):
        return as_table(item)
    fields = item.to_json() if isinstance(item, Rule) else asdict(item)
    kept = {key: tuple(one) if isinstance(one, list) else one for key, one in fields.items()}
    return {key: one for key, one in kept.items() if one not in _LEFT_OUT}


def _listed(name: str, value: object) -> list[str]:
    """Each as a [[table]] of its own; behind every other table of the file, where they may stand."""
    lines: list[str] = []
    for item in value if isinstance(value, tuple) else ():
        lines += [f"[[{name}]]", *(f"{key} = {_toml(one)}" for key, one in item.items()), ""]
    return lines or [""]


_LEFT_OUT: tuple[object, ...] = (None, (), {}, False)  # what a rule has when it says nothing of it


def as_toml(settings: Settings) -> str:
    """A file that `parse` reads back as the same settings, each key with what it says."""
    lines, flat, inside = [], values(settings), ""
    for key in KEYS:
        table, _, name = key.name.rpartition(".")
        if table and table != inside:
            lines.append(f"[{table}]")
            inside = table
        lines += [f"# {key.says} ({key.kind}: {key.allowed})"]
        lines += _listed(name, flat[key.name]) if key.kind == LIST else [f"{name} = {_toml(flat[key.name])}", ""]
    return "\n".join(lines)


def as_markdown() -> str:
    """docs/configuration.md, whole."""
    flat = values(Settings())
    rows = [
        f"| `{k.name}` | {k.kind} | {k.allowed} | `{_toml(flat[k.name])}` | {k.says} |".replace("||", "|") for k in KEYS
    ]
    accepted = [f"| `{name}` | {means} |" for name, means in ACCEPT.items()]
    return "\n".join(
        [
            "# Configuration",
            "",
            "One file: `ringfence.toml` in the state directory, or the one that `serve --config FILE` names. Every key has a",
            "default, so an empty file is a whole one. An unknown key is an error that names the nearest known one.",
            "`ringfence config check` tries a file, `ringfence config show` prints the settings in force. Keys with a dot stand in",
            "the tables `[boxes]`, `[egress]`, `[limits]`, `[limits_all]`, `[model_budget]`, `[rates]`, `[rest]`, `[retention]` and `[vault]`. A size is",
            "a whole number of bytes or a string such as `512MiB`.",
            "",
            "This page is generated from the table in `src/ringfence/host/kernel/settings_file.py`; a test holds them together.",
            "",
            "| key | type | allowed | default | what it is |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "## What a host may lack",
            "",
            "Missing isolation is a refusal, unless its id is accepted here or with `serve --accept ID,...`.",
            "",
            "| id | accepting it means |",
            "|---|---|",
            *accepted,
            "",
        ]
    )
