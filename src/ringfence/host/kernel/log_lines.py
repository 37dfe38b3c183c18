"""How a line of the server's log looks: one JSON object, without the words that are to be in none. Pure."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime

from ringfence.host.kernel.hidden import scrubbed


class JsonLines(logging.Formatter):
    def __init__(self, words: Sequence[str]) -> None:
        super().__init__()
        self._words = words

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "at": at,
            "level": record.levelname.lower(),
            "part": record.name,
            "message": scrubbed(record.getMessage(), self._words),
        }
        if record.exc_info:
            line["error"] = scrubbed(self.formatException(record.exc_info), self._words)
        return json.dumps(line)
