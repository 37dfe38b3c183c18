"""The tools that the native loop offers to the model: one table. Pure; what they do is in `tools`.

Arguments are checked here before a step begins: what is wrong with them is a result for the model, and no step.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    Schema = dict[str, Any]

_PATH = {"type": "string", "description": "Relative to the home folder, or absolute below /home/user or /workspace."}
_FOLDER = {"type": "string", "description": "As the path of read; the home folder when it is left out."}


def _text(description: str) -> "Schema":
    return {"type": "string", "description": description}


def _count(description: str) -> "Schema":
    return {"type": "integer", "minimum": 0, "description": description}


def _arguments(required: list[str], **properties: "Schema") -> "Schema":
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_SHELL_SECONDS = {
    "type": "number",
    "exclusiveMinimum": 0,
    "description": "Seconds after which the command and all that it started are ended; 3600 when it is left out.",
}

# name: (effect class, description, JSON Schema of the arguments)
_TABLE: "dict[str, tuple[str, str, Schema]]" = {
    "shell": (
        "local",
        "Runs a command with bash in the box and waits for its end. The result has exit_code, stdout and stderr, the "
        "middle of long output left out. There is no terminal and no input.",
        _arguments(
            ["command"],
            command=_text("What bash is given."),
            cwd=_text("Absolute path of the folder to run it in; the home folder when it is left out."),
            timeout=_SHELL_SECONDS,
        ),
    ),
    "read": (
        "pure",
        "Reads a text file, at most 128 KiB of it at once; `rest` is how many bytes come after.",
        _arguments(
            ["path"], path=_PATH, offset=_count("Bytes to leave out at the beginning."), length=_count("Bytes to read.")
        ),
    ),
    "write": (
        "idempotent",
        "Makes a file, or replaces all of one, with its folders.",
        _arguments(["path", "text"], path=_PATH, text=_text("The whole new content.")),
    ),
    "edit": (
        "idempotent",
        "Replaces a piece of text in a file by another. The old text must be there exactly once.",
        _arguments(["path", "old", "new"], path=_PATH, old=_text("What is there."), new=_text("What shall be there.")),
    ),
    "list": (
        "pure",
        "Lists a folder: names, kinds and sizes, at most 1000.",
        _arguments([], path=_FOLDER),
    ),
    "search": (
        "pure",
        "Finds the lines that hold a text (no pattern) in a file or in all files below a folder, at most 200.",
        _arguments(["text"], text=_text("What to find."), path=_FOLDER),
    ),
}
NAMES = tuple(_TABLE)
LEFT_OUT = "left_out"
"""In the place of arguments that cannot be kept: why. No tool has an argument of that name."""
MAX_REASON = 200  # characters: a model may call its own argument so
HOST = "host"  # the effect of a tool that the host carries out: its class is the host's to say
EFFECTS = {name: effect for name, (effect, _, _) in _TABLE.items()}
SPECS = [{"name": name, "description": says, "parameters": schema} for name, (_, says, schema) in _TABLE.items()]
"""Fields of wire.messages.ToolSpec."""


def wrong(name: str, arguments: "dict[str, Any]", hosts: "Collection[str]" = ()) -> str:
    """What is wrong with a call, for the model; empty when nothing is. `hosts`: names of tools that the host carries out,
    which says by itself what is wrong with their arguments."""
    if name not in _TABLE and name not in hosts:
        return f"there is no tool {name[:64]!r}; there are {', '.join([*NAMES, *hosts])}"
    if LEFT_OUT in arguments:
        reason = str(arguments[LEFT_OUT])[:MAX_REASON]
        return f"the arguments of {name} were left out and nothing was carried out: {reason}; do it in smaller pieces"
    if name not in _TABLE:
        return ""
    schema = _TABLE[name][2]
    for argument in schema["required"]:
        if argument not in arguments:
            return f"{name} needs the argument {argument!r}"
    for argument, value in arguments.items():
        if argument not in schema["properties"]:
            return f"{name} has no argument {argument[:64]!r}; it has {', '.join(schema['properties'])}"
        fault = _fault(value, schema["properties"][argument])
        if fault:
            return f"{argument} must be {fault}"
    return ""


def _fault(value: object, schema: "Schema") -> str:
    kind = schema["type"]
    if kind == "string":
        return "" if isinstance(value, str) else "text"
    if kind == "integer":
        good = isinstance(value, int) and not isinstance(value, bool) and value >= schema["minimum"]
        return "" if good else "a whole number of 0 or more"
    good = isinstance(value, int | float) and not isinstance(value, bool) and value > schema["exclusiveMinimum"]
    return "" if good else "a number above 0"
