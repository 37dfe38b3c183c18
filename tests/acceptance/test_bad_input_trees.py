"""Trees that nobody should make and everybody can: 3,000 levels deep, 200,000 files in one folder. They are shown, counted,
listed by pages and deleted, and the server answers all the while."""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.installation import Installation, eventually, installation

LEVELS, MANY = 3_000, 200_000
DEEP = (
    f"import os\nos.mkdir('deep'); os.chdir('deep')\nfor _ in range({LEVELS}):\n  os.mkdir('d'); os.chdir('d')\n"
    "open('leaf', 'w').close()"
)
SETTINGS = f'disk = "accounting"\n[limits]\ninodes = {MANY * 2}\n'
HOWS = ["server", "counted"] if os.geteuid() == 0 else ["counted"]  # by an image, and by walks alone


@pytest.fixture(scope="module")
def counted() -> Iterator[Installation]:
    """As root in memory: 200,000 entries take the host's own file system minutes."""
    if os.geteuid() != 0:
        with installation(settings=SETTINGS) as made:
            yield made
        return
    with installation(settings=SETTINGS, started=False) as made:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0711", "none", str(made.home / "boxes")], check=True)
        try:
            made.start("--accept", "no-disk-quota")
            yield made
        finally:
            made.stop()
            subprocess.run(["umount", "--lazy", str(made.home / "boxes")], check=True)


def folders(made: Installation) -> set[str]:
    return {path.name for path in (made.home / "boxes").iterdir()}


@pytest.mark.parametrize("how", HOWS)
def test_a_tree_of_3000_levels(how: str, request: pytest.FixtureRequest) -> None:
    """Made in the box; counted without recursion; deleted by the files API, and with its user."""
    kept: Installation = request.getfixturevalue(how)
    kept.ok("user", "add", "deep")
    kept.ok("exec", "deep", "--", "python3", "-c", DEEP)
    eventually(lambda: kept.box("deep")["inodes"] > LEVELS, what="the count")
    assert kept.box("deep")["observed"] == "running"
    kept.ok("files", "rm", "-r", "deep", "deep")
    eventually(lambda: kept.box("deep")["inodes"] < 100, what="the count after")
    kept.ok("exec", "deep", "--", "python3", "-c", DEEP)
    kept.ok("box", "stop", "deep")
    box = kept.box("deep")["box"]
    assert box in folders(kept)
    kept.ok("user", "rm", "--purge", "deep")
    assert box not in folders(kept)


@pytest.mark.root
def test_200000_files_in_one_folder(counted: Installation) -> None:
    """Made in the tree by root, which is the quickest; a page costs one look at the folder, whatever its length."""
    kept = counted
    kept.ok("user", "add", "many")
    kept.ok("exec", "many", "--", "mkdir", "many")
    folder = kept.home / "boxes" / kept.box("many")["box"] / "tree" / "home" / "many"
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for number in range(MANY):
        os.mknod(f"{number:06}", 0o600, dir_fd=opened)
    os.close(opened)
    page = kept.ok("files", "ls", "many", "many", "--json", "--limit", "1500").json()
    assert [entry["name"] for entry in page["entries"]] == [f"{number:06}" for number in range(1500)]
    assert base64.b64decode(page["next"]) == b"001499"
    following = kept.ok("files", "ls", "many", "many", "--limit", "2", "--after", page["next"])
    assert "001500" in following.text and "001501" in following.text and "001502" not in following.text
    assert "more: --after" in following.errors
    last = base64.b64encode(f"{MANY - 3:06}".encode()).decode()
    rest = kept.ok("files", "ls", "many", "many", "--json", "--after", last).json()
    assert ([entry["name"] for entry in rest["entries"]], rest["next"]) == (
        [f"{MANY - 2:06}", f"{MANY - 1:06}"],
        None,
    )
    eventually(lambda: kept.box("many")["inodes"] > MANY, 30, "the count")
    assert kept.ok("status", "--json").json()["ok"]
    kept.ok("user", "rm", "--purge", "many")
    assert not folder.exists()


def test_a_listing_is_printed_as_it_comes(server: Installation) -> None:
    """All of it, when no limit is given; and nothing of a folder that is empty or not there."""
    kept = server
    kept.ok("user", "add", "some")
    kept.ok("exec", "some", "--", "sh", "-c", "mkdir some none; cd some; seq -w 2500 | xargs touch")
    whole = kept.ok("files", "ls", "some", "some", "--json").json()
    assert [entry["name"] for entry in whole["entries"]] == [f"{number:04}" for number in range(1, 2501)]
    assert whole["next"] is None
    assert len(kept.ok("files", "ls", "some", "some").text.splitlines()) == 2501  # one line of titles
    assert kept.ok("files", "ls", "some", "none", "--json").json() == {"entries": [], "next": None}
    assert kept.run("files", "ls", "some", "absent", "--json").json()["error"]["code"] == "not_found"
    assert kept.run("files", "ls", "some", "some", "--after", "no cursor").code == 2
    assert kept.run("files", "ls", "some", "some", "--limit", "0").code == 2
    kept.ok("user", "rm", "--purge", "some")
