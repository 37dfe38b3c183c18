"""Group K but for what is looked for everywhere (rows_leaks.py): the server's and a worker's memory, values that a server
reflects, and the vault against who writes to the database."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ringfence.prove import jail, programs
from ringfence.prove.attacks.trying import DONE
from ringfence.prove.outward_stage import holding, leaked, program, seen_directly, workers
from ringfence.prove.row import NotHere, Row, Tries, ran
from ringfence.prove.stage import ATTACKER, VICTIM, Stage, said
from ringfence.prove.vault_play import PLAY, vault
from ringfence.prove.world import API, MINE


def _by_own_account(pid: int, who: str) -> dict[str, str]:
    """The programs of H01 and H02, by the account of that very process."""
    uid = Path(f"/proc/{pid}/status").read_text().partition("\nUid:")[2].split()[0]
    account = int(uid) if os.geteuid() == 0 else None
    told: dict[str, str] = {}
    for name in ("memory", "steal"):
        text = programs.payload("siblings", name, (str(pid),))
        told |= {f"{who}: {what}": word for what, word in said(jail.bare(account, text, 30.0)).outcomes.items()}
    return told


def _memory(stage: Stage, _runner: str) -> Tries:
    """K03: of the server, and of a worker at work. A worker whose id is taken over has no id that a process could be started
    under from a box; root can."""
    if stage.mode != "root":
        raise NotHere("the server is its user here, whose other programs may do what it may")
    told = _by_own_account(stage.made.kernel_pid(), "server")
    core = [line.split()[4] for line in Path(f"/proc/{stage.made.kernel_pid()}/limits").read_text().splitlines()
            if line.startswith("Max core file size")]  # fmt: skip
    told["server: core"] = "bounded" if core and core[0] in ("0", "1") else f"{DONE} {core}"
    with holding(stage, VICTIM, f"{MINE}/late-memory"):
        for pid in workers(stage, VICTIM):
            told |= _by_own_account(pid, "worker")
    return Tries(told)


def _own_child(stage: Stage) -> Tries:
    """The control: the same programs by the same account on a process that is open to it."""
    account = stage.ids[1] if os.geteuid() == 0 else None
    found: dict[str, str] = {}
    for name in ("memory_of_child", "steal_from_child"):
        found |= said(jail.bare(account, programs.payload("siblings", name), 30.0)).outcomes
    return Tries(found)


def _reflected(stage: Stage, _runner: str) -> Tries:
    """K04: plain, in JSON, in hexadecimal digits, percent-encoded, in base64, in a field and in the body."""
    came = program(stage, ATTACKER, "echoed", API, f"{MINE}/echo").outcomes
    value = stage.world.secret(ATTACKER)
    if not any(f"{MINE}/echo" in each.line and each.holds(value) for each in stage.world.at(API)):
        raise NotHere("the request did not come to be reflected")
    return Tries({part: leaked(bytes.fromhex(text), value) for part, text in came.items()})


def _vault(row_id: str) -> Callable[[Stage, str], Tries]:
    def attack(stage: Stage, _runner: str) -> Tries:
        return vault(stage)[row_id]

    return attack


def _honest(row_id: str) -> Callable[[Stage], Tries]:
    return lambda stage: vault(stage)[f"{row_id} control"]


def _stored(row_id: str, attempt: str, expected: str, wall: str) -> Row:
    return Row(row_id, attempt, expected, wall, _vault(row_id), ran(_honest(row_id)), "h", play=PLAY)


ROWS: tuple[Row, ...] = (
    Row(
        "K03",
        "memory, descriptors and core of the server and of a worker, by their own accounts",
        "EACCES, EPERM",
        "not dumpable; RLIMIT_CORE",
        _memory,
        ran(_own_child),
        "h",
    ),
    Row(
        "K04",
        "have a server reflect the credential, in a field and in the body, in nine spellings",
        "masked",
        "the worker looks for what it put into the request, in every form that it knows",
        _reflected,
        ran(lambda stage: seen_directly(stage, ATTACKER)),
    ),
    _stored(
        "K07",
        "put an older or a revoked version back into the database",
        "502 credential_unavailable",
        "versions in what is authenticated, a MAC of the newest, and a witness outside of the database",
    ),
    _stored("K08", "move a sealed value to another's row", "it does not open", "whose it is, is authenticated with it"),
    _stored(
        "K09",
        "start without the vault's key, or with another",
        "sealed: nothing opens",
        "the key is not in the state's database",
    ),
    _stored(
        "K10",
        "bind a credential to another host by writing into the database",
        "it does not count: refused, and told",
        "a roll of what counts, with a MAC whose key is not in the database",
    ),
)
