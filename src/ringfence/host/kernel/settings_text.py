"""Settings as text: the file that `config show` prints and docs/configuration.md, both out of settings.KEYS.

Pure. Knows no key by itself but the two whose spelling differs between file and `Settings` (`listen`, sizes).
"""

from __future__ import annotations

from ringfence.host.kernel.settings import ACCEPT, KEYS, SIZES, Settings
from ringfence.host.kernel.sizes import size_text


def _toml(value: object) -> str:
    if isinstance(value, int):
        return str(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


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
        flat[key.name] = value
    return flat


def as_toml(settings: Settings) -> str:
    """A file that `parse` reads back as the same settings, each key with what it says."""
    lines, flat, inside = [], values(settings), ""
    for key in KEYS:
        table, _, name = key.name.rpartition(".")
        if table != inside:
            lines.append(f"[{table}]")
            inside = table
        lines += [f"# {key.says} ({key.kind}: {key.allowed})", f"{name} = {_toml(flat[key.name])}", ""]
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
            "the tables `[limits]`, `[limits_all]` and `[rates]`. A size is a whole number of bytes or a string such as `512MiB`.",
            "",
            "This page is generated from the table in `src/ringfence/host/kernel/settings.py`; a test holds them together.",
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
