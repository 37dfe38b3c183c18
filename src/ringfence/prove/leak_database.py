"""For the leak scan: a server whose database is not to be reached, and what it says of that. The URL has a password in it."""

from __future__ import annotations

from contextlib import suppress

from ringfence.bench.throwaway import CommandFailed, Installation
from ringfence.prove import apart
from ringfence.prove.attacks.trying import DONE
from ringfence.prove.leak_kinds import DATABASE_PASSWORD, Needle, found
from ringfence.prove.stage import Stage

NOBODY = "127.0.0.1:1"  # a port that nothing listens on
COMMANDS = (
    ("db", "check"),
    ("db", "upgrade"),
    ("audit", "verify"),
    ("doctor",),
    ("config", "show"),
    ("config", "show", "--json"),
    ("config", "check"),
)


def unreachable(stage: Stage, wanted: tuple[Needle, ...]) -> dict[str, str]:
    """What the server and each command said, looked through. CommandFailed: no such installation here."""
    told = {}
    with apart.installation(stage) as made:
        url = f"postgresql://prove:{DATABASE_PASSWORD.decode()}@{NOBODY}/none"
        (made.home / "ringfence.toml").write_text(f'database = "{url}"\n')
        for words in COMMANDS:
            result = made.run(*words)
            told[" ".join(words)] = _looked(result.out + result.err, wanted)
        told["serve"] = _looked(_served(made), wanted)
    return told


def _served(made: Installation) -> bytes:
    with suppress(CommandFailed):
        made.start()
    if made.server is not None and made.server.stdout is not None:
        made.server.stdout.close()  # it has ended by itself, so that nobody else stops it
    return made.log.read_bytes() + "\n".join(made.lines).encode()


def _looked(said: bytes, wanted: tuple[Needle, ...]) -> str:
    hits = found(said, wanted)
    if not said.strip():
        return f"{DONE} nothing to look through"
    return f"{DONE} {hits[0].kind} ({hits[0].form})" if hits else "nothing of it"
