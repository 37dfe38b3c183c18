"""What must hold between calls of models and the sums that budgets are held against. Text only: check.py asks, in the
form and by the rules of check_rows.py.

Old calls are taken away and their sums stay: a sum may be more than its calls, and never less.
"""

from __future__ import annotations

from ringfence.host.store.check_rows import Rule

_USED = "c.input + c.output + c.cache_read + c.cache_write"
_TOKENS = f"CASE c.state WHEN 'reserved' THEN c.reserved_tokens ELSE {_USED} END"
_MICROS = "CASE c.state WHEN 'reserved' THEN c.reserved_micros ELSE c.micros END"
_SUMS = (  # of calls, and what they are held against
    (f"SUM({_TOKENS})", "tokens"),
    (f"SUM({_MICROS})", "micros"),
    ("COUNT(*)", "calls"),
    *((f"SUM(c.{name})", name) for name in ("input", "output", "cache_read", "cache_write")),
    ("SUM(c.micros)", "paid"),
)


def _behind(column: str, period: str) -> str:
    names = ", ".join(f"s.{name}" for _, name in _SUMS)
    behind = " OR ".join(f"{calls} > COALESCE(s.{name}, 0)" for calls, name in _SUMS)
    return f"""
        SELECT c.{column} AS id FROM model_calls c
        LEFT JOIN model_spent s ON s.of = c.{column} AND s.period = {period}
        WHERE c.{column} IS NOT NULL
        GROUP BY c.{column}, s.period, {names}
        HAVING {behind}
        """


MODELS: tuple[Rule, ...] = (
    Rule(
        "model_spent_user",
        "the user's calls of models are more than is counted for the user",
        _behind('"user"', "c.period"),
    ),
    Rule("model_spent_run", "the run's calls of models are more than is counted for the run", _behind("run", "''")),
    Rule(
        "model_call_run",
        "the call of a model is not of its run or its tenant",
        """
        SELECT c.id AS id FROM model_calls c JOIN users u ON u.id = c."user" LEFT JOIN runs r ON r.id = c.run
        WHERE u.tenant <> c.tenant OR r.actor <> c."user"
        """,
    ),
)
