"""Which generation of the store this host agrees to: the one that it saw first, and any that `db restore` made here or
an operator has said is right. Blocks.

A restored store may have older versions than were seen, so a row in the database alone must not say that it was
restored: who can put older rows back there can write that row too. Must never take a number from the store but at the
very first look.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from ringfence.host.vault.seen import GENERATION, written

_MAX_BYTES = 64


def agreed(folder: Path, of_store: int) -> int:
    """The generation by which what is older is judged: never higher than what was agreed to here, nor than the
    store's."""
    try:
        fd = os.open(folder / GENERATION, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            return min(int(file.read(_MAX_BYTES)), of_store)
    except FileNotFoundError:
        try:
            agree(folder, of_store)
        except OSError as error:
            _log().error("the generation of the store cannot be noted: %s", error)
        return of_store
    except (OSError, ValueError) as error:  # as if nothing had ever been restored: what is older is refused
        _log().error("%s cannot be read: %s", folder / GENERATION, error)
        return min(1, of_store)


def agree(folder: Path, generation: int) -> None:
    """On disk when it returns. OSError."""
    written(folder, GENERATION, str(generation))


def _log() -> logging.Logger:
    return logging.getLogger("ringfence.vault")
