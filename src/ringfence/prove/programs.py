"""An attack program as bytes: the modules that it needs and what to call, for any python3 that reads it on stdin.

Pure. The modules travel as source, so that a box needs nothing of ours, and run under their own names.
"""

from __future__ import annotations

import json
from pathlib import Path

PACKAGE = "ringfence.prove.attacks"
FOLDER = Path(__file__).parent / "attacks"

# Loads the modules of a payload in order and calls one function of the last. Text: it runs where nothing of ours is.
LOADER = """
import sys, types
def load(ask, **place):
    above = None
    for name in ("ringfence", "ringfence.prove", "ringfence.prove.attacks"):
        above = sys.modules.setdefault(name, types.ModuleType(name))
        if not hasattr(above, "__path__"):
            above.__path__ = []
    for name, text in ask["modules"]:
        module = types.ModuleType(above.__name__ + "." + name)
        sys.modules[module.__name__] = module
        setattr(above, name, module)
        exec(compile(text, name + ".py", "exec"), module.__dict__)
    last = sys.modules[above.__name__ + "." + ask["modules"][-1][0]]
    where = sys.modules[above.__name__ + ".trying"].Place(ask["arguments"], **place)
    return last.ATTACKS[ask["name"]](where)
"""
COMMAND = f"{LOADER}\nimport json\nprint(json.dumps(load(json.load(sys.stdin))))\n"


def payload(module: str, name: str, arguments: tuple[str, ...] = ()) -> str:
    """JSON of one attack: `name` of `attacks/<module>.py`, its source and that of what it stands on."""
    modules = [(part, (FOLDER / f"{part}.py").read_text()) for part in dict.fromkeys(("trying", module))]
    return json.dumps({"modules": modules, "name": name, "arguments": list(arguments)})


def last_line(output: str) -> dict[str, str]:
    """What the program said: its last line. ValueError: it said nothing of the kind."""
    lines = output.strip().splitlines()
    if not lines:
        raise ValueError("the program said nothing")
    answer = json.loads(lines[-1])
    if not isinstance(answer, dict):
        raise ValueError(f"the program said {lines[-1][:200]!r}")
    return {str(name): str(value) for name, value in answer.items()}
