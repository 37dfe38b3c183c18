"""Every row of the suite, and which of them `--only` means."""

from __future__ import annotations

from collections.abc import Iterable

from ringfence.prove import (
    rows_a,
    rows_b,
    rows_c,
    rows_d,
    rows_drills,
    rows_e,
    rows_f,
    rows_g,
    rows_h,
    rows_i,
    rows_j,
    rows_k,
    rows_l,
    rows_leaks,
    rows_m,
    rows_s,
    rows_trees,
)
from ringfence.prove.row import Row

APART = ("drills",)  # groups that run only when they are named: each of their rows needs a server of its own

# `--only spike`: from one shell, what whoever takes the agent over tries first.
SPIKE = "spike"
SPIKE_ROWS = (
    *("A02", "K01", "K04", "K11", "K12"),  # read real credentials
    *("G09", "G10", "G12"),  # call the host under another scope, with another run's token or one of an earlier attempt
    *("D07", "L02", "L11"),  # reach a denied target
    *("L09", "L10"),  # replay an expired placeholder, use another user's
    *("H01", "H02", "H03", "H15"),  # signal and inspect a trusted process
    *("D10", "D11", "L06"),  # another box's wire, the ports of the way out, another's proxy
)


class NoSuchRow(Exception):
    """`--only` names what is not there; the message lists what is."""


def rows() -> tuple[Row, ...]:
    """In the order of docs/threats.md."""
    return (
        *rows_a.ROWS,
        *rows_b.ROWS,
        *rows_c.ROWS,
        *rows_d.ROWS,
        *rows_e.ROWS,
        *rows_f.ROWS,
        *rows_trees.ROWS,
        *rows_g.ROWS,
        *rows_h.ROWS,
        *rows_i.ROWS,
        *rows_j.ROWS,
        *rows_k.ROWS,
        *rows_l.ROWS,
        *rows_m.ROWS,
        *rows_s.ROWS,
        *rows_leaks.ROWS,
        *rows_drills.rows(),
    )


def chosen(all_rows: Iterable[Row], only: str | None) -> list[Row]:
    """`only`: ids, group letters, group names or `spike`, separated by commas; None: all but those of APART.
    NoSuchRow."""
    known = list(all_rows)
    if only is None:
        return [row for row in known if row.in_group not in APART]
    words = {word.strip() for word in only.split(",") if word.strip()}
    if SPIKE in words:
        words = (words - {SPIKE}) | set(SPIKE_ROWS)
    groups = {row.in_group for row in known} | {_letter(row) for row in known}
    unknown = sorted(words - groups - {row.id for row in known})
    if unknown or not words:
        named = ", ".join([*sorted(groups), SPIKE])
        raise NoSuchRow(f"no row or group {', '.join(unknown) or only!r}: there are the groups {named}, and ids as A01")
    return [row for row in known if row.id in words or row.in_group in words or _letter(row) in words]


def _letter(row: Row) -> str:
    """Of the list of attacks, whichever group it runs in."""
    return row.in_group if row.in_group in APART else row.id[0]
