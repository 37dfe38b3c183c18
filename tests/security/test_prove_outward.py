"""Rows of groups K and L, and the leak scan's of the vault, open when their wall is taken out of prove's copy of the package.

Not here: L06, whose wall is the box's network namespace (test_egress_listeners.py), and second walls, which drill D-5 tries.
"""

from __future__ import annotations

import pytest

from ringfence.prove.copied import Patch
from tests.security.test_prove_rows import every, instead, opened

pytestmark = pytest.mark.root

ANYTHING = """

def _anything():
    from ringfence.host.kernel.outward.rules import EgressRule

    return (EgressRule("rul_any", Verdict.ALLOW, "*"),)
"""
AGREES = "if _authority(named, HTTPS if origin.tls else HTTP) != (origin.host, origin.port):"
OUTWARD: dict[str, tuple[Patch, str]] = {  # file -> what is wrong in it, and the rows that must say so
    "host/egress/judging.py": (
        every(
            instead("compile_rules(configuration.rules)", "compile_rules((*configuration.rules, *_anything()))"),
            instead(AGREES, "if False:"),
            lambda source: source + ANYTHING,
        ),
        "L01,L03,L05,L07,L11",
    ),
    "host/egress/reach.py": (
        instead("        why = addresses.denied(address, self._own)\n", "        return None\n"),
        "L02",
    ),
    "host/kernel/outward/matching.py": (
        instead("return pattern.names and pattern.covers(asked.host) and", "return True or"),
        "L04",
    ),
    "host/egress/bodies.py": (instead("if self.taken > self._cap:", "if self.taken > self._cap << 20:"), "L08"),
    "host/egress/outpost.py": (
        instead("        live = self.live.pop(identifier, None)\n", "        return\n        live = None\n"),
        "L09",
    ),
    "host/egress/tickets.py": (
        instead("ticket = self._live.get(digest)\n", "ticket = self._live.get(digest) or next(iter(self._live.values()), None)\n"),
        "L10",
    ),
}  # fmt: skip
# Apart from OUTWARD, where nothing ends: here whoever waits for a command's end still ends its way out.
LEFT: dict[str, tuple[Patch, str]] = {
    "host/engine/commands.py": (
        every(
            instead("        self._outward.attend(box, key, inner)\n", "        _Executed._outward = self._outward\n"),
            instead("await super().outcome()\n", "await super().outcome()\n        self._outward.over(self._slot.box, self._key)\n"),
        ),
        "L09",
    ),
}  # fmt: skip
KEPT = '(vault / "kept.key" if (vault / "kept.key").exists() else vault / MASTER)'
RECORDED = "        await self._audit.release("
SAYS = '        __import__("sys").stderr.write(repr(lent.value.reveal()))\n'
VAULT: dict[str, tuple[Patch, str]] = {
    "host/app.py": (instead("libc.prctl(_PR_SET_DUMPABLE, 0,", "libc.prctl(_PR_SET_DUMPABLE, 1,"), "K03"),
    "host/egress/scrub.py": (
        instead("    return frozenset(form for", "    return frozenset()\n    return frozenset(form for"),
        "K04",
    ),
    "host/vault/seen.py": (
        instead("        if seen is None:\n            return True\n", "        if True:\n            return True\n"),
        "K07",
    ),
    "host/vault/sealing.py": (
        instead("return canonical_json(said)", "return canonical_json([version])"),
        "K08",
    ),
    "host/vault/keyring.py": (instead("_read(vault / MASTER)", f"_read{KEPT}"), "K09"),
    "host/kernel/outward/rolls.py": (
        instead("if name in named and named[name].removeprefix(DENIES) == said", "if True"),
        "K10",
    ),
}  # fmt: skip

# Apart from VAULT: the scan opens sealed rows as the package does that runs prove.
LOG: dict[str, tuple[Patch, str]] = {"host/vault/release.py": (instead(RECORDED, SAYS + RECORDED), "K02,K05")}


def test_rows_of_the_way_out_notice_that_their_wall_is_gone() -> None:
    opened(OUTWARD)


def test_a_row_notices_a_way_out_that_only_who_waits_for_the_end_ends() -> None:
    opened(LEFT)


def test_rows_of_the_vault_notice_that_their_wall_is_gone() -> None:
    opened(VAULT)


def test_the_leak_scan_notices_a_value_in_the_log() -> None:
    opened(LOG)
