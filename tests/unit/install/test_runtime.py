"""What the runtime copy takes, and which old copies go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringfence.host.install.runtime import KEPT, digest_of, distributions, prune, requirement


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("typer>=0.20", ("typer", frozenset(), None)),
        ("sqlalchemy[asyncio]>=2.0.40", ("sqlalchemy", frozenset({"asyncio"}), None)),
        ('greenlet>=1; extra == "asyncio"', ("greenlet", frozenset(), "asyncio")),
        ("typing_extensions (>=4) ; python_version < '3.13'", ("typing-extensions", frozenset(), None)),
        ("Ruamel.Yaml[a, b] ; extra=='x' and os_name == 'nt'", ("ruamel-yaml", frozenset({"a", "b"}), "x")),
    ],
)
def test_requirements(text: str, parts: tuple[str, frozenset[str], str | None]) -> None:
    assert requirement(text) == parts


def test_what_the_server_needs_and_nothing_of_the_workshop() -> None:
    names = {dist.name.lower().replace("_", "-") for dist in distributions()}
    assert {"fastapi", "starlette", "sqlalchemy", "greenlet", "pydantic-core", "uvicorn"} <= names
    assert not {"pytest", "mypy", "ruff", "hypothesis", "pip", "hatchling", "ringfence"} & names


def test_the_digest_names_the_contents(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    first = digest_of(tmp_path, [])
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_text("")
    os.utime(tmp_path / "a.py", (1, 1))
    assert digest_of(tmp_path, []) == first
    (tmp_path / "a.py").write_text("x = 2\n")
    assert digest_of(tmp_path, []) != first
    assert digest_of(tmp_path, distributions()) != digest_of(tmp_path, [])


def runtimes(base: Path, number: int) -> list[Path]:
    made = []
    for n in range(number):
        path = base / "runtime" / f"{n:032x}"
        (path / "site").mkdir(parents=True)
        os.utime(path, (n, n))
        made.append(path)
    (base / "boxes").mkdir()
    (base / "proc").mkdir()
    return made


def test_old_runtimes_go_but_for_the_newest_and_the_used(tmp_path: Path) -> None:
    made = runtimes(tmp_path, KEPT + 5)
    (tmp_path / "boxes" / "b1").mkdir()
    (tmp_path / "boxes" / "b1" / "live.json").write_text(f'{{"runtime": "{made[1].name}"}}')
    (tmp_path / "proc" / "77").mkdir()
    (tmp_path / "proc" / "77" / "mountinfo").write_text(
        f"1 2 0:1 /x/{made[2].name}/guest /opt/ringfence ro - ext4 x rw\n"
    )
    (tmp_path / "proc" / "78").mkdir()
    (tmp_path / "proc" / "78" / "cmdline").write_text(f"python3\0-c\0sys.path.insert(0, '/x/{made[3].name}/site')")
    removed = prune(tmp_path / "runtime", made[4], tmp_path / "boxes", tmp_path / "proc")
    assert removed == [made[0].name]
    assert [p.exists() for p in made] == [False] + [True] * (KEPT + 4)


def test_few_runtimes_stay(tmp_path: Path) -> None:
    made = runtimes(tmp_path, KEPT)
    assert prune(tmp_path / "runtime", made[-1], tmp_path / "boxes", tmp_path / "proc") == []
