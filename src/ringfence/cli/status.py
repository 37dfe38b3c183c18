"""`ringfence status`: the health of every part."""

from __future__ import annotations

from ringfence.cli import say_it
from ringfence.cli.calls import call
from ringfence.cli.options import Json

NOT_WELL = 5


def status(json: Json = False) -> int:
    """Show the health of the server and its parts; exit 5 when one is not well."""
    answer = call(lambda client: client.status())
    if json:
        say_it.as_json(answer)
    else:
        parts = answer.pop("parts", {})
        say_it.facts(answer)
        for name, part in parts.items():
            more = ", ".join(f"{key} {value}" for key, value in part.items() if key != "ok")
            say_it.line(f"{name}: {'ok' if part.get('ok') else 'NOT WELL'} {say_it.plain(more)}".rstrip())
    return 0 if answer["ok"] else NOT_WELL
