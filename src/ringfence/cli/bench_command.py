"""`ringfence bench`: runs the measurements and says them. Exit 1 when a promise does not hold."""

from __future__ import annotations

import json as json_format
import sys


def boxes(json: bool) -> int:
    from ringfence.bench import boxes as measured
    from ringfence.bench.figures import as_text
    from ringfence.bench.throwaway import CommandFailed

    try:
        rows, notes = measured.run(lambda line: print(f"... {line}", file=sys.stderr, flush=True))  # noqa: T201
    except CommandFailed as error:
        sys.stderr.write(f"ringfence: the benchmark did not run to its end: {error}\n  see: ringfence doctor\n")
        return 1
    if json:
        answer = {"machine": measured.machine(), "rows": [row.as_json() for row in rows], "notes": notes}
        sys.stdout.write(json_format.dumps(answer, indent=2) + "\n")
    else:
        sys.stdout.write(as_text(measured.machine(), rows, notes))
    return 0 if all(row.holds for row in rows) else 1
