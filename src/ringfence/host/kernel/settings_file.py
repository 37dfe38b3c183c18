"""The file of settings: one table that says what may stand in it.

Pure: text in, `Settings` out. Reads no file, no environment, no clock. `KEYS` is the only list of keys: parsing, `config
show` and docs/configuration.md all come from it, so that none of them can know a key that the others do not.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ringfence.host.kernel.boxes import Limits, LimitsAll, Rates
from ringfence.host.kernel.declared import rules, webhooks
from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.hidden_values import MARK, QUERY, shown_value
from ringfence.host.kernel.matchable import strange_place
from ringfence.host.kernel.models.usage import BudgetLimits
from ringfence.host.kernel.retention import Keep
from ringfence.host.kernel.settings import ACCEPT, DISKS, MODES, Settings, is_row, user_runs
from ringfence.host.kernel.settings_egress import EGRESS, EgressSettings
from ringfence.host.kernel.settings_key import LIST, Key
from ringfence.host.kernel.settings_life import LIFE, boxes, rests
from ringfence.host.kernel.settings_models import BUDGETS, MODEL, UPSTREAMS, check_model
from ringfence.host.kernel.settings_vault import VAULT
from ringfence.host.kernel.sizes import rate, size_text, size_within
from ringfence.host.kernel.vault_keys import VaultKeys

DAY = 86_400
MAX_RUN_SECONDS = 30 * DAY
_HOST = re.compile(r"[a-z0-9]([a-z0-9-]{0,62})(\.[a-z0-9-]{1,63})*\Z")
MAX_REASON = 500  # characters
_DATABASES = ("sqlite:///", "postgresql://")


def _text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("a string")
    return value


def _one_of(*allowed: str) -> Callable[[object], str]:
    def check(value: object) -> str:
        if value not in allowed:
            raise ValueError("one of " + ", ".join(allowed))
        return str(value)

    return check


def _whole(low: int, high: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return value

    return check


def _listen(value: object) -> tuple[str, int] | None:
    allowed = 'an "address:port" such as "127.0.0.1:8377" or "[::1]:8377", or "off"'
    if value in ("off", "none"):
        return None
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(allowed)
    try:
        return str(ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))), int(port)
    except ValueError as error:
        raise ValueError(allowed) from error


def _database(value: object) -> str:
    text = _text(value)
    if text and not text.startswith(_DATABASES):
        raise ValueError("a URL that begins with " + " or ".join(_DATABASES))
    if MARK in text or text.endswith(QUERY):
        raise ValueError("the URL itself: `config show` hides its password and its query")
    return text


def _domain(value: object) -> str:
    if not isinstance(value, str) or (value and not _HOST.match(value)):
        raise ValueError("a host name in lower case, without scheme and port")
    return value


def _path(value: object) -> str:
    text = _text(value)
    if text and not (text.startswith("/") and ".." not in text.split("/")):
        raise ValueError("an absolute path without ..")
    return text


def _program(value: object) -> str:
    text = _path(value)
    if not text:
        raise ValueError("an absolute path without ..")
    return text


def accept_ids(value: object) -> tuple[str, ...]:
    """["no-cgroup"] or "no-cgroup,C06", in one order (rows of prove last) and without repeats. ValueError: an id that is
    none."""
    items = [i.strip() for i in value.split(",") if i.strip()] if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise ValueError("a list of ids: " + ", ".join(ACCEPT))
    for item in items:
        if item not in ACCEPT and not (isinstance(item, str) and is_row(item)):
            near = difflib.get_close_matches(str(item), ACCEPT, 1, 0.4)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError("ids out of " + ", ".join(ACCEPT) + hint)
    return (*(i for i in ACCEPT if i in items), *sorted({i for i in items if i not in ACCEPT}))


def _reason(value: object) -> str:
    text = _text(value)
    if len(text) > MAX_REASON or not text.isprintable():
        raise ValueError(f"one line of at most {MAX_REASON} characters")
    return text.strip()


# The spawner has the same bounds and the last word (spawner/protocol.py BOUNDS); a test holds the two together.
LIMIT_BOUNDS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "memory": (96 << 20, 1 << 50),
        "pids": (32, 65536),
        "cpu_milli": (50, 1_024_000),
        "nofile": (256, 1 << 20),
        "fsize": (1 << 20, 1 << 50),
        "shm": (1 << 20, 1 << 45),
        "run": (1 << 20, 1 << 40),
        "disk": (32 << 20, 1 << 43),
        "inodes": (1024, 1 << 31),
    }
)
_LIMIT_SAYS: Mapping[str, str] = MappingProxyType(
    {
        "memory": "memory of a box, swap included",
        "pids": "processes and threads of a box",
        "cpu_milli": "CPU time of a box in thousandths of a core",
        "nofile": "open files of a process (hard limit)",
        "fsize": "largest file that a process may write",
        "shm": "/dev/shm of a box",
        "run": "/run of a box",
        "disk": "home, workspace and tmp of a box together",
        "inodes": "files, folders and links in them, 1 for each 4 KiB of the disk at most; a disk image is made for so many, "
        "and they grow with it",
    }
)
SIZES = ("memory", "fsize", "shm", "run", "disk")


def _limit_key(name: str) -> Key:
    low, high = LIMIT_BOUNDS[name]
    if name in SIZES:
        return Key(
            f"limits.{name}",
            "size",
            f"{size_text(low)} to {size_text(high)}",
            _LIMIT_SAYS[name],
            size_within(low, high),
        )
    return Key(f"limits.{name}", "whole number", f"{low} to {high}", _LIMIT_SAYS[name], _whole(low, high))


_ALL_SAYS: Mapping[str, str] = MappingProxyType(
    {
        "memory": "memory of all boxes together; 0 = all but max(1 GiB, 10 %) of the host's",
        "pids": "processes and threads of all boxes together; 0 = 3/4 of what the host allows",
        "cpu_milli": "CPU time of all boxes together, in thousandths of a core; 0 = all but 0.2 core",
    }
)


# What one box needs; of the CPU 1 ms in each 100 ms, the least quota that the kernel takes (sched/core.c, both versions).
_ALL_LEAST: Mapping[str, int] = MappingProxyType(
    {"memory": LIMIT_BOUNDS["memory"][0], "pids": LIMIT_BOUNDS["pids"][0], "cpu_milli": 10}
)


def _zero_or(check: Callable[[object], int], zeros: tuple[object, ...]) -> Callable[[object], int]:
    def either(value: object) -> int:
        if not isinstance(value, bool) and value in zeros:
            return 0
        try:
            return check(value)
        except ValueError as error:
            raise ValueError(f"0 or {error}") from error

    return either


def _limit_all_key(name: str) -> Key:
    low, high = _ALL_LEAST[name], LIMIT_BOUNDS[name][1]
    if name in SIZES:
        allowed, check = f"0, {size_text(low)} to {size_text(high)}", _zero_or(size_within(low, high), (0, "0"))
        return Key(f"limits_all.{name}", "size", allowed, _ALL_SAYS[name], check)
    check = _zero_or(_whole(low, high), (0,))
    return Key(f"limits_all.{name}", "whole number", f"0, {low} to {high}", _ALL_SAYS[name], check)


_RETENTION_SAYS: Mapping[str, str] = MappingProxyType(
    {
        "events_days": "days that a thread's events are kept; messages and replies stay; 0 = for ever",
        "runs_days": "days that steps, checkpoints and blobs of a run are kept after its end; 0 = for ever",
        "audit_days": "days that records of the audit are kept; 0 = for ever",
        "keys_days": "days that an idempotency key stands for its message",
        "usage_days": "days that what boxes used is kept, a row for each box and day; 0 = for ever",
    }
)
MAX_DAYS = 36_500


def _retention_key(name: str) -> Key:
    low = 1 if name == "keys_days" else 0
    allowed = f"{low} to {MAX_DAYS}"
    return Key(f"retention.{name}", "whole number", allowed, _RETENTION_SAYS[name], _whole(low, MAX_DAYS))


TABLES = ("boxes", "egress", "limits", "limits_all", "model_budget", "rates", "rest", "retention", "vault")
KEYS: tuple[Key, ...] = (
    Key(
        "database",
        "URL",
        "sqlite:///PATH, postgresql://...",
        "the store; empty = SQLite in db/ of the state",
        _database,
    ),
    Key(
        "listen", "address:port", '"127.0.0.1:8377", "off"', "where people and programs reach the API by token", _listen
    ),
    Key("domain", "host name", "lower case", "a further name in the Host header that the API answers to", _domain),
    MODEL,
    Key(
        "script",
        "path",
        "absolute",
        "a JSON file of answers that the scripted provider gives (operate.md), read at start; empty = none",
        _path,
    ),
    Key(
        "model_window",
        "whole number",
        "1000 to 10000000",
        "tokens that the model takes, its answer included; a conversation is compacted at 70 % of it",
        _whole(1000, 10_000_000),
    ),
    Key(
        "model_timeout_seconds",
        "whole number",
        "1 to 86400",
        "how long one answer of the model may take; the loop then asks again",
        _whole(1, DAY),
    ),
    Key(
        "run_soft_seconds",
        "whole number",
        f"0 to {MAX_RUN_SECONDS}",
        "working time after which a run is asked to sum up and end; 0 = never",
        _whole(0, MAX_RUN_SECONDS),
    ),
    Key(
        "run_hard_seconds",
        "whole number",
        f"0 to {MAX_RUN_SECONDS}",
        "working time after which a run is ended; 0 = never; not below run_soft_seconds",
        _whole(0, MAX_RUN_SECONDS),
    ),
    Key(
        "mode",
        "name",
        ", ".join(MODES),
        "how boxes get their host ids; auto = root, else subuid, else shared",
        _one_of(*MODES),
    ),
    Key("max_runs", "whole number", "1 to 512", "runs at work at once", _whole(1, 512)),
    Key(
        "max_user_runs",
        "whole number",
        "0 to 512",
        "of them of one user, to leave room for others; 0 = all of them. Not set: 6, or one less than max_runs",
        _whole(0, 512),
    ),
    Key("accept", "list of ids", ", ".join(ACCEPT), "what this host may lack without a refusal", accept_ids),
    Key(
        "accept_reason",
        "text",
        f"one line, {MAX_REASON} characters",
        "why others may be served with `unproved` or an open row of prove accepted; goes into the audit",
        _reason,
    ),
    Key("bwrap", "path", "absolute", "the bubblewrap program", _program),
    Key("python", "path", "absolute", "the interpreter of server and boxes; not one below a private folder", _program),
    Key("cgroup_parent", "path", "absolute", "a delegated cgroup directory to use; empty = found by itself", _path),
    Key(
        "disk",
        "name",
        ", ".join(DISKS),
        "what bounds a box's tree: an image of its own (root), project quotas (root), or counting; auto = the first of "
        "these that works. A box that is there keeps what it has",
        _one_of(*DISKS),
    ),
    *(_limit_key(name) for name in LIMIT_BOUNDS),
    *(_limit_all_key(name) for name in _ALL_SAYS),
    *BUDGETS,
    Key(
        "rates.output",
        "size",
        "0, 64KiB to 16GiB",
        "what a box's commands stream beyond their first 256 KiB, in a second; more waits; 0 = as fast as it is read",
        rate,
    ),
    Key(
        "rates.events",
        "whole number",
        "1 to 1000",
        "live events of a run in a second (progress of tools); more of them wait",
        _whole(1, 1000),
    ),
    *(_retention_key(name) for name in _RETENTION_SAYS),
    *LIFE,
    *VAULT,
    *EGRESS,
    UPSTREAMS,
    Key(
        "webhook",
        LIST,
        "name, url, secret_file, lookup_url",
        "[[webhook]]: a place that the tool http.webhook may send to (operate.md)",
        webhooks,
    ),
    Key(
        "policy",
        LIST,
        "tool, answer; where, redact, cap_bytes, notify_owner, expire_seconds",
        "[[policy]]: a rule on calls; deny before allow before ask. A wall for what the host does itself, which is denied "
        "without a rule; advice for what a loop does in a box",
        rules,
    ),
)


def _flatten(raw: Mapping[str, object]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in raw.items():
        if name in TABLES and isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": item for inner, item in value.items()}
        else:
            flat[name] = value
    return flat


def _checked(name: str, value: object, source: str) -> Any:
    known = {key.name: key for key in KEYS}
    if name in TABLES:
        inner = [key.partition(".")[2] for key in known if key.startswith(f"{name}.")]
        raise Invalid(
            f"{source}: {name} is a table, and no value may stand for it",
            remedy=f"write [{name}] and below it, one a line: {', '.join(inner)}",
            key=name,
        )
    if name not in known:
        short = {table: table for table in TABLES} | {k.rpartition(".")[2]: k for k in reversed(known)}
        table = name.partition(".")[0]
        if table in TABLES and "." in name:
            short = {k.rpartition(".")[2]: k for k in known if k.startswith(f"{table}.")}
        near = difflib.get_close_matches(name.rpartition(".")[2], short, 1, 0.5)
        hint = f"did you mean {short[near[0]]}? " if near else ""
        raise Invalid(
            f"{source}: unknown key {name!r}",
            remedy=f"{hint}`ringfence config show` lists every key",
            key=name,
            nearest=short[near[0]] if near else None,
        )
    try:
        return known[name].check(value)
    except ValueError as error:
        raise Invalid(
            f"{source}: {name} = {shown_value(name, value)} is not allowed",
            remedy=f"{name} must be {error}",
            key=name,
            value=shown_value(name, value),
            allowed=str(error),
        ) from None


def parse(text: str, *, source: str = "ringfence.toml") -> Settings:
    """Settings of a TOML text; what it leaves out has its default. Invalid: no TOML, a key that is none (with the nearest
    one), a value of another type or out of range (with the range)."""
    try:
        raw = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Invalid(f"{source}: not TOML: {error}", remedy="`ringfence config show` prints a valid file") from error
    values = {name: _checked(name, value, source) for name, value in _flatten(raw).items()}
    values.setdefault("max_user_runs", user_runs(values.get("max_runs", Settings().max_runs)))
    tables: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
    for name, value in values.items():
        table, _, inner = name.rpartition(".")
        if table:
            tables[table][inner] = value
    settings = Settings(
        **{n: v for n, v in values.items() if "." not in n},
        egress=EgressSettings(**tables["egress"]),
        limits=Limits(**tables["limits"]),
        limits_all=LimitsAll(**tables["limits_all"]),
        model_budget=BudgetLimits(**tables["model_budget"]),
        rates=Rates(**tables["rates"]),
        rest=rests(tables["rest"]),
        boxes=boxes(tables["boxes"]),
        retention=Keep(**tables["retention"]),
        vault=VaultKeys(**tables["vault"]),
    )
    return _together(settings, source)


def override(settings: Settings, values: Mapping[str, object], *, source: str = "command line") -> Settings:
    """`settings` with single keys of KEYS (none below limits) replaced, each checked as in the file."""
    known = {name: _checked(name, value, source) for name, value in values.items()}
    return _together(replace(settings, **known), source)


def _together(settings: Settings, source: str) -> Settings:
    """What no key can check by itself. Invalid."""
    soft, hard = settings.run_soft_seconds, settings.run_hard_seconds
    if hard and soft > hard:
        raise Invalid(
            f"{source}: run_soft_seconds = {soft} is more than run_hard_seconds = {hard}",
            remedy=f"run_soft_seconds must be 0 to {hard}, or run_hard_seconds at least {soft} (or 0 for none)",
            key="run_soft_seconds",
            value=str(soft),
            allowed=f"0 to {hard}",
        )
    check_model(settings, source)
    names = [hook.name for hook in settings.webhook]
    number, name = strange_place(settings.policy, names)
    if number:
        near = difflib.get_close_matches(name, names, 1, 0.5)
        raise Invalid(
            f"{source}: rule {number} of the policy is on the webhook {name!r}, and none of that name is declared",
            remedy=(f"did you mean {near[0]}? " if near else "")
            + f"declared are: {', '.join(names) or 'none; add a [[webhook]]'}",
            key="policy",
            nearest=near[0] if near else None,
        )
    return settings
