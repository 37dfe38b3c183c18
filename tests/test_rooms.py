"""The tree is the architecture (docs/design.md, decision 0001); this keeps it true.

Imports follow the rooms at every depth: a lazy import is an import. The functions take a list of (module, source), so
that each rule is also shown to fail on a source that breaks it.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
SRC = TOP / "src"
ME = "ringfence"
HOST = "ringfence.host"
MAX_LINES, MAX_SPAWNER_LINES, MAX_FUNCTION_LINES = 500, 250, 60
SAYS_NOTHING = {"util", "utils", "common", "helper", "helpers", "manager", "misc", "base"}


@dataclass(frozen=True)
class Room:
    """What a room may import: rooms (or single modules) of ours, third-party packages, and rooms of ours inside functions
    only (`lazy`: they must not cost a start that does not need them)."""

    ours: frozenset[str] = frozenset()
    outside: frozenset[str] = frozenset()
    lazy: frozenset[str] = frozenset()
    max_lines: int = MAX_LINES


def room(ours: str = "", outside: str = "", lazy: str = "", max_lines: int = MAX_LINES) -> Room:
    return Room(
        frozenset(f"{ME}.{name}" for name in ours.split()),
        frozenset(outside.split()),
        frozenset(f"{ME}.{name}" for name in lazy.split()),
        max_lines,
    )


PARTS = "kernel engine broker capabilities drivers harness store vault models egress channels web"
ROOMS: dict[str, Room] = {
    f"{ME}.wire": room(),
    f"{ME}.guest": room("wire"),
    f"{ME}.spawner": room(max_lines=MAX_SPAWNER_LINES),
    f"{HOST}.kernel": room(),
    f"{HOST}.engine": room("host.kernel"),
    f"{HOST}.broker": room("host.kernel wire", "pydantic pydantic_core"),
    f"{HOST}.capabilities": room("host.kernel", "httpx2"),
    f"{HOST}.drivers": room("host.kernel spawner.protocol"),
    f"{HOST}.harness": room("host.kernel", "acp"),
    f"{HOST}.store": room("host.kernel", "sqlalchemy alembic asyncpg"),
    f"{HOST}.vault": room("host.kernel", "cryptography"),
    f"{HOST}.models": room("host.kernel", "h11"),
    f"{HOST}.egress": room("host.kernel", "h11 cryptography dns"),
    f"{HOST}.channels": room("host.kernel"),
    f"{HOST}.web": room("host.kernel", "fastapi starlette uvicorn sse_starlette websockets pydantic"),
    f"{HOST}.install": room("host.kernel"),
    f"{HOST}.app": room(" ".join(f"host.{part}" for part in ["from_settings", *PARTS.split()]), lazy="host.jobs"),
    f"{HOST}.from_settings": room("host.capabilities host.engine host.kernel host.models host.store"),
    f"{HOST}.jobs": room("host.app host.from_settings " + " ".join(f"host.{part}" for part in PARTS.split())),
    f"{ME}.client": room("", "httpx2 websockets"),
    f"{ME}.cli": room("client", "typer click rich", lazy="host.install host.app bench prove"),
    f"{ME}.bench": room(
        "client host.app host.kernel host.engine host.drivers host.store host.egress host.vault spawner"
    ),
    f"{ME}.prove": room("client bench.throwaway host.install.accounts host.kernel host.egress host.vault spawner"),
}
HOLD_ROOMS = {ME, HOST}  # packages that hold rooms, and no code
PUBLIC = {f"{ME}.client"}  # what others import: its package names its own parts, and does nothing


def room_of(module: str) -> str | None:
    return next((name for name in ROOMS if module == name or module.startswith(f"{name}.")), None)


def sources() -> list[tuple[str, str]]:
    """(module, source) of every file; packages end in `.__init__`."""
    return [(".".join(p.relative_to(SRC).with_suffix("").parts), p.read_text()) for p in sorted(SRC.rglob("*.py"))]


def imports(module: str, tree: ast.Module) -> list[tuple[str, bool]]:
    """(dotted name, inside a function) of every import at any depth. `from a import b` counts as `a.b`; a relative import
    as what it names."""
    found: list[tuple[str, bool]] = []
    steps = module.split(".")

    def walk(node: ast.AST, inside: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend((alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = steps[: len(steps) - node.level] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            found.extend((f"{origin}.{alias.name}", inside) for alias in node.names)
        for child in ast.iter_child_nodes(node):
            walk(child, inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))

    walk(tree, False)
    return found


# The C module of SHA-256 has another name since Python 3.12; no version lists both.
STANDARD = sys.stdlib_module_names | {"_sha2", "_sha256"}


def _allowed(name: str, inside: bool, own: str, rules: Room) -> bool:
    top = name.split(".")[0]
    if top != ME:
        return top in STANDARD or top in rules.outside
    granted = {own} | rules.ours | (rules.lazy if inside else frozenset())
    return any(name == one or name.startswith(f"{one}.") for one in granted)


def wrong_imports(files: list[tuple[str, str]]) -> list[str]:
    bad = []
    for module, text in files:
        package = module.removesuffix(".__init__")
        own = room_of(package)
        if own is None:
            if package not in HOLD_ROOMS or package == module:
                bad.append(f"{module} is in no room")
            continue
        for name, inside in imports(module, ast.parse(text)):
            if not _allowed(name, inside, own, ROOMS[own]):
                bad.append(f"{module} imports {name}")
    return bad


def dynamic_imports(files: list[tuple[str, str]]) -> list[str]:
    """A computed import would walk around the table."""
    bad = []
    for module, text in files:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in {"__import__", "importlib.import_module", "import_module"}:
                    bad.append(f"{module} calls {called}")
    return bad


def too_long(files: list[tuple[str, str]]) -> list[str]:
    bad = []
    for module, text in files:
        own = room_of(module)
        limit = ROOMS[own].max_lines if own else MAX_LINES
        lines = len(text.splitlines())
        if lines > limit:
            bad.append(f"{module} has {lines} lines, limit {limit}")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                length = node.end_lineno - node.lineno + 1
                if length >= MAX_FUNCTION_LINES:
                    bad.append(f"{module}.{node.name} has {length} lines, limit {MAX_FUNCTION_LINES - 1}")
    return bad


def code_in_packages(files: list[tuple[str, str]]) -> list[str]:
    """An __init__ is a docstring and nothing else; a public one also names its parts again."""
    bad = []
    for module, text in files:
        if not module.endswith(".__init__"):
            continue
        package, tree = module.removesuffix(".__init__"), ast.parse(text)
        rest = [node for node in tree.body[1:] if not (package in PUBLIC and _names_parts(node, package))]
        if rest or ast.get_docstring(tree) is None:
            bad.append(module)
    return bad


def _names_parts(node: ast.stmt, package: str) -> bool:
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) == "__all__"
    return isinstance(node, ast.ImportFrom) and f"{node.module}".startswith(f"{package}.")


def without_docstring(files: list[tuple[str, str]]) -> list[str]:
    return [module for module, text in files if ast.get_docstring(ast.parse(text)) is None]


def meaningless_names(names: list[str]) -> list[str]:
    return [name for name in names if name.rpartition(".")[2] in SAYS_NOTHING]


def test_imports_follow_the_rooms() -> None:
    assert wrong_imports(sources()) == []


def test_no_computed_import() -> None:
    assert dynamic_imports(sources()) == []


def test_files_and_functions_stay_small() -> None:
    assert too_long(sources()) == []


def test_packages_hold_a_docstring_only() -> None:
    assert code_in_packages(sources()) == []


def test_every_module_says_what_it_is() -> None:
    assert without_docstring(sources()) == []


def test_file_names_say_something() -> None:
    tests = [p.stem for p in (TOP / "tests").rglob("*.py")]
    assert meaningless_names([module for module, _ in sources()] + tests) == []


def test_every_test_folder_is_a_package() -> None:
    """Else two test files of one name in two folders are one module."""
    folders = {p.parent for p in (TOP / "tests").rglob("*.py")}
    assert [str(f.relative_to(TOP)) for f in sorted(folders) if not (f / "__init__.py").is_file()] == []


def test_the_tree_is_found() -> None:
    """The rules above are worth nothing on an empty list."""
    assert {room_of(module) for module, _ in sources()} >= {f"{ME}.wire", f"{ME}.spawner", f"{HOST}.kernel"}


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("ringfence.spawner.main", "from ringfence.host.kernel import ids"),
        ("ringfence.spawner.main", "import pydantic"),
        ("ringfence.host.drivers.x", "from ringfence.spawner import main"),
        ("ringfence.host.web.x", "from ringfence.spawner.protocol import VERSION"),
        ("ringfence.host.capabilities.x", "from ringfence.host.engine import parts"),
        ("ringfence.host.engine.x", "import httpx2"),
        ("ringfence.host.store.x", "def f():\n    import ringfence.host.broker.link"),
        ("ringfence.host.kernel.x", "import ringfence.wire.messages"),
        ("ringfence.guest.x", "from ringfence.host import kernel"),
        ("ringfence.client.x", "from ringfence.wire import framing"),
        ("ringfence.cli.x", "from ringfence.host.install import commands"),
        ("ringfence.cli.x", "def f():\n    from ringfence.host.store import store"),
        ("ringfence.host.install.x", "from ..store import store"),
        ("ringfence.host.kernelx", ""),
        ("ringfence.host", ""),
    ],
)
def test_a_breach_is_found(module: str, text: str) -> None:
    assert wrong_imports([(module, text)])


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("ringfence.host.drivers.x", "from ringfence.spawner.protocol import VERSION"),
        ("ringfence.wire.state", "from .framing import decode"),
        ("ringfence.wire.state", "from . import framing"),
        ("ringfence.cli.x", "def f():\n    from ringfence.host.install import commands"),
        ("ringfence.host.app", "from ringfence.host.store.store import open_store\nimport asyncio"),
        ("ringfence.host.__init__", '"""Rooms."""'),
    ],
)
def test_what_the_table_grants_is_no_breach(module: str, text: str) -> None:
    assert wrong_imports([(module, text)]) == []


def test_the_other_rules_can_fail() -> None:
    assert dynamic_imports([("m", "import importlib\nimportlib.import_module('x')")])
    assert too_long([("ringfence.spawner.x", "\n" * 251)])
    assert not too_long([("ringfence.wire.x", "\n" * 251)])
    assert too_long([("m", "def f():\n" + "    pass\n" * 60)])
    assert code_in_packages([("m.__init__", '"""Doc."""\nX = 1')])
    assert code_in_packages([("ringfence.client.__init__", '"""Doc."""\nX = 1')])
    assert not code_in_packages([("ringfence.client.__init__", '"""Doc."""\nfrom ringfence.client.x import X')])
    assert meaningless_names(["ringfence.host.web.utils"])
