"""An installation for real: made twice, refused where it must be, and what a server is started with.

Through the own commands as processes, as people call them.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ringfence.bench.throwaway import COMMAND
from ringfence.host.install import prepare, runtime
from ringfence.host.install.layout import Layout
from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.settings import Settings
from tests.support.installation import state_base

ROOT = os.geteuid() == 0
CALL = "import json, sys; from ringfence.cli import own; getattr(own, sys.argv[1])(**json.loads(sys.argv[2]))"
WEAK = "no-cgroup,shared-uid,no-landlock,no-pidfs,no-nft"


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


def command(name: str, options: dict[str, object]) -> list[str]:
    return [sys.executable, "-c", CALL, name, json.dumps(options)]


def own(home: Path, name: str, *, before: tuple[str, ...] = (), **options: object) -> Done:
    environment = {**os.environ, "RINGFENCE_HOME": str(home)}
    done = subprocess.run(
        [*before, *command(name, options)], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def base() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="ringfence-install-", dir=state_base()))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def made() -> Iterator[tuple[Path, Done, Done]]:
    """One state, made twice, for the tests that only look."""
    path = Path(tempfile.mkdtemp(prefix="ringfence-install-", dir=state_base()))
    path.chmod(0o755)
    home = path / "state"
    first = own(home, "init", json=True)
    assert first.code == 0, first.err
    key = (home / "vault" / "master.key").read_bytes()
    second = own(home, "init", json=True)
    assert second.code == 0, second.err
    assert (home / "vault" / "master.key").read_bytes() == key
    yield home, first, second
    shutil.rmtree(path)


def test_twice_is_once(made: tuple[Path, Done, Done]) -> None:
    _, first, second = made
    token = first.json()["token"]
    assert len(token) > 50
    assert second.json()["token"] is None
    same = ("home", "installation", "mode", "kernel", "ids")
    assert [first.json()[k] for k in same] == [second.json()[k] for k in same]


def test_the_token_is_in_no_file(made: tuple[Path, Done, Done]) -> None:
    home, first, _ = made
    secret = first.json()["token"].encode()
    files = [p for p in home.rglob("*") if p.is_file() and "runtime" not in p.relative_to(home).parts]
    assert home / "db" / "ringfence.db" in files
    assert [p for p in files if secret in p.read_bytes()] == []


def test_owners_and_modes(made: tuple[Path, Done, Done]) -> None:
    home, first, _ = made
    kernel = first.json()["kernel"]["uid"]
    me = os.geteuid()
    wanted = {
        ".": (0o711, me), "installation.json": (0o644, me), "db": (0o700, kernel), "vault": (0o700, kernel),
        "run": (0o750, kernel), "boxes": (0o711, me), "spawner": (0o700, me), "runtime": (0o755, me),
        "vault/master.key": (0o600, kernel), "run/kernel.json": (0o600, kernel), "db/ringfence.db": (0o600, kernel),
    }  # fmt: skip
    seen = {name: (stat.S_IMODE((home / name).stat().st_mode), (home / name).stat().st_uid) for name in wanted}
    assert seen == wanted
    assert (kernel != 0) and (kernel == me or ROOT)


def test_the_runtime_is_nobodys_to_write(made: tuple[Path, Done, Done]) -> None:
    home, _, _ = made
    copies = list((home / "runtime").iterdir())
    assert len(copies) == 1
    parts = list(copies[0].rglob("*"))
    assert len(parts) > 500
    assert [p for p in parts if not p.is_symlink() and p.stat().st_mode & 0o022] == []
    assert {p.lstat().st_uid for p in parts} == {os.geteuid()}


@pytest.mark.root
def test_the_kernels_account_runs_from_the_copy_alone(made: tuple[Path, Done, Done]) -> None:
    """The clone may lie below /root; nothing that runs after dropping root may need it."""
    home, first, _ = made
    kernel = first.json()["kernel"]["uid"]
    copy = next((home / "runtime").iterdir())
    code = "from ringfence.host import app; import fastapi; print(app.__file__, fastapi.__file__)"
    argv = prepare.launch(copy / "site", "/usr/bin/python3", code)
    ids: dict[str, Any] = {"user": kernel, "group": kernel, "extra_groups": []}
    done = subprocess.run(argv, env={}, capture_output=True, text=True, check=False, cwd="/", **ids)
    assert done.returncode == 0, done.stderr
    assert [p.startswith(str(copy)) for p in done.stdout.split()] == [True, True]
    for name, readable in (("vault/master.key", True), ("run/kernel.json", True), ("spawner", False), ("boxes", False)):
        reads = subprocess.run(["ls", "-l", home / name, "--"], capture_output=True, check=False, **ids)
        assert (reads.returncode == 0) is readable, name


@pytest.mark.root
def test_no_other_account_reads_the_key(made: tuple[Path, Done, Done]) -> None:
    home, first, _ = made
    kernel = first.json()["kernel"]["uid"]
    for uid, code in ((kernel + 8, 1), (kernel, 0)):  # a box's id; the control: the kernel's
        ids: dict[str, Any] = {"user": uid, "group": uid, "extra_groups": []}
        done = subprocess.run(["cat", home / "vault" / "master.key"], capture_output=True, check=False, **ids)
        assert done.returncode == code


@pytest.mark.root
def test_two_installations_share_no_id(made: tuple[Path, Done, Done], base: Path) -> None:
    _, first, _ = made
    other = own(base / "other", "init", json=True)
    a, b = first.json()["ids"], other.json()["ids"]
    assert a[1] < b[0] or b[1] < a[0]
    assert first.json()["installation"] != other.json()["installation"]


# Without the locks of whoever makes an account on the host at this moment.
PRIVATE_ETC = """
set -e
cp -a /etc "$1/etc" && rm -f "$1"/etc/*.lock && mount --bind "$1/etc" /etc && shift && exec "$@"
"""
ENSURE = "import sys; from ringfence.host.install.accounts import ensure_account as e; print(e(int(sys.argv[1])))"


def with_a_private_etc(base: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Runs a shell script where /etc is a copy. $py makes the account with the id that follows."""
    command = ["unshare", "--mount", "sh", "-c", PRIVATE_ETC, "sh", str(base), "sh", "-c", script]
    environment = {**os.environ, "py": f"{sys.executable} -c '{ENSURE}'"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.root
def test_the_account_is_made_once(base: Path) -> None:
    twice = with_a_private_etc(
        base,
        'userdel -f ringfence; groupdel ringfence; eval "$py 1879048192" && eval "$py 1879048192" && getent passwd ringfence',
    )
    assert twice.returncode == 0, twice.stderr
    lines = twice.stdout.splitlines()
    assert lines[:2] == ["account ringfence, id 1879048192, made", "account ringfence, id 1879048192"]
    assert lines[2].startswith("ringfence:x:1879048192:1879048192:")
    assert lines[2].endswith(":/nonexistent:/usr/sbin/nologin")


@pytest.mark.root
def test_an_account_with_another_id_is_not_touched(base: Path) -> None:
    other = with_a_private_etc(base, 'userdel -f ringfence; useradd -u 54321 ringfence; eval "$py 1879048192"')
    assert other.returncode != 0
    assert "the account ringfence exists with id 54321" in other.stderr


@pytest.mark.root
def test_a_host_without_useradd_goes_by_number(base: Path) -> None:
    hidden = "mount --bind /dev/null /usr/sbin/useradd; "
    done = with_a_private_etc(base, f'userdel -f ringfence; {hidden} eval "$py 1879048192"')
    assert done.returncode == 0, done.stderr
    assert "without a name" in done.stdout


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["init", "serve"])
def test_a_symlinked_state_is_refused(base: Path, name: str) -> None:
    (base / "real").mkdir()
    (base / "link").symlink_to("real")
    done = own(base / "link", name)
    assert done.code == 3
    assert f"RINGFENCE_HOME={base / 'real'}" in done.err
    assert list((base / "real").iterdir()) == []


@pytest.mark.parametrize("name", ["init", "serve"])
def test_a_world_writable_state_is_refused(base: Path, name: str) -> None:
    (base / "open").mkdir()
    (base / "open").chmod(0o777)
    done = own(base / "open", name)
    assert done.code == 3
    assert f"chmod go-w {base / 'open'}" in done.err
    assert list((base / "open").iterdir()) == []


@pytest.mark.root
def test_a_state_below_a_private_folder_is_refused(base: Path) -> None:
    (base / "private").mkdir(mode=0o700)
    done = own(base / "private" / "state", "init")
    assert done.code == 3
    assert f"chmod o+x {base / 'private'}" in done.err
    (base / "private").chmod(0o711)
    assert own(base / "private" / "state", "init").code == 0


def test_errors_are_json_when_asked_for(base: Path) -> None:
    (base / "link").symlink_to(".")
    error = own(base / "link", "init", json=True).json()["error"]
    assert set(error) == {"code", "message", "remedy", "details"}
    assert error["code"] == "refused"


def settings(base: Path, text: str) -> Path:
    home = base / "state"
    home.mkdir(mode=0o711, exist_ok=True)
    (home / "ringfence.toml").write_text(text)
    (home / "ringfence.toml").chmod(0o644)
    return home


def test_serve_without_bubblewrap_is_refused(base: Path) -> None:
    """F97: never an unjailed run."""
    home = settings(base, f'bwrap = "{base}/bwrap"')
    done = own(home, "serve", accept=WEAK)
    assert done.code == 5
    assert f"{base}/bwrap is missing" in done.err
    assert "apt-get install -y bubblewrap" in done.err
    assert not (home / "spawner").exists()


@pytest.mark.parametrize(("mode", "word"), [(0o4755, "setuid"), (0o757, "writable")])
def test_serve_with_a_doubtful_bubblewrap_is_refused(base: Path, mode: int, word: str) -> None:
    shutil.copy("/usr/bin/bwrap", base / "bwrap")
    (base / "bwrap").chmod(mode)
    done = own(settings(base, f'bwrap = "{base}/bwrap"'), "serve", accept=WEAK)
    assert done.code == 5
    assert word in done.err
    assert "chmod" in done.err


def without_user_namespaces(limit: int) -> tuple[str, ...]:
    """A user namespace of its own in which at most `limit` further ones may be made."""
    return ("unshare", "--user", "--map-root-user", "sh", "-c",
            f'echo {limit} >/proc/sys/user/max_user_namespaces && exec "$@"', "sh")  # fmt: skip


def test_user_namespaces_switched_off(base: Path) -> None:
    """F96: the row names the setting and the fix; the control: the same place with room for some."""
    control = own(base / "state", "doctor", before=without_user_namespaces(50), json=True).json()["rows"]
    assert next(row for row in control if row["id"] == "user-namespaces")["ok"]
    done = own(base / "state", "doctor", before=without_user_namespaces(0), json=True)
    assert done.code == 5
    row = next(row for row in done.json()["rows"] if row["id"] == "user-namespaces")
    assert (row["ok"], row["level"]) == (False, "required")
    assert row["found"].startswith("user.max_user_namespaces is 0")
    assert row["remedy"].startswith("sysctl -w user.max_user_namespaces=")


@pytest.mark.root
def test_serve_without_user_namespaces_is_refused(base: Path) -> None:
    """As root: to an ordinary user's namespace the folders above the state would seem to be nobody's."""
    refused = own(base / "state", "serve", before=without_user_namespaces(0), accept=WEAK)
    assert refused.code == 5
    assert "user.max_user_namespaces" in refused.err
    assert not (base / "state").exists()


def test_a_second_server_is_named_by_its_pid(made: tuple[Path, Done, Done]) -> None:
    home, _, _ = made
    with (home / "spawner" / "lock").open("r+") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        done = own(home, "serve", accept=WEAK)
        assert done.code == 5
        assert f"pid {os.getpid()}" in done.err
        assert f"kill {os.getpid()}" in done.err
    with prepare.no_server(Layout(home)):  # the control: free again
        pass


@pytest.mark.parametrize("options", [{"listen": "0.0.0.0:8377"}, {"profile": "production"}])
def test_a_listener_for_others_needs_a_proof(base: Path, options: dict[str, Any]) -> None:
    done = own(base / "state", "serve", **options)
    assert done.code == 5
    assert "--accept unproved" in done.err
    assert not (base / "state").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"listen": "nowhere"}, "address:port"),
        ({"accept": "no-cgroups"}, "did you mean no-cgroup"),
        ({"accept": "C66"}, "did you mean C"),
        ({"accept": "no-nft,ZZZ"}, "ZZZ is the id of no row"),
        ({"profile": "prod"}, "--profile production"),
        ({"db": "mysql://x"}, "sqlite:///"),
        ({"config": "/nonexistent.toml"}, "no such file"),
    ],
)
def test_wrong_words(base: Path, options: dict[str, Any], words: str) -> None:
    done = own(base / "state", "serve", **options)
    assert done.code == 2
    assert words in done.err


def test_settings_that_others_can_write_are_refused(base: Path) -> None:
    """They name programs that run with the server's rights."""
    home = settings(base, "max_runs = 3\n")
    (home / "ringfence.toml").chmod(0o666)
    done = own(home, "serve", accept=WEAK)
    assert done.code == 3
    assert f"chmod go-w {home / 'ringfence.toml'}" in done.err


def test_config_check_notes_inodes_that_no_image_can_have(base: Path) -> None:
    home = settings(base, '[limits]\ndisk = "64MiB"\ninodes = 16385\n')
    checked = own(home, "config_check")
    assert (checked.code, checked.out.splitlines()[0]) == (0, "ok") and "16384 at most, not 16385" in checked.out
    assert len(own(home, "config_check", json=True).json()["notes"]) == 1
    settings(base, '[limits]\ndisk = "64MiB"\ninodes = 16384\n')
    assert own(home, "config_check").out == "ok\n" and own(home, "config_check", json=True).json() == {"ok": True}


def test_config(base: Path) -> None:
    home = settings(base, "max_runs = 3\n")
    assert own(home, "config_check").code == 0
    shown = own(home, "config_show")
    assert "max_runs = 3" in shown.out
    (base / "again.toml").write_text(shown.out)
    (base / "again.toml").chmod(0o644)
    assert own(home, "config_show", file=str(base / "again.toml")).out == shown.out
    assert own(home, "config_show", json=True).json()["limits.memory"] == "1GiB"
    settings(base, "lisen = 1\n")
    wrong = own(home, "config_check")
    assert wrong.code == 2
    assert "lisen" in wrong.err
    assert "did you mean listen" in wrong.err


@pytest.mark.parametrize(
    ("content", "mode", "code", "words"),
    [
        (None, 0o644, 2, "no such file"),
        (b"[{}]", 0o644, 2, "rule 1: when is missing"),
        (b"\xff", 0o644, 2, "is not UTF-8: byte 0xff after 0 bytes"),
        (b"[]", 0o666, 3, "can be written by others"),
        (b"[]", 0o644, 0, "ok"),
    ],
)
def test_config_checks_the_script(base: Path, content: bytes | None, mode: int, code: int, words: str) -> None:
    """Its lines run in people's boxes: it is looked at as the settings are."""
    script = base / "script.json"
    if content is not None:
        script.write_bytes(content)
        script.chmod(mode)
    done = own(settings(base, f'script = "{script}"\n'), "config_check")
    assert done.code == code
    assert words in done.err + done.out
    assert code == 0 or str(script) in done.err


def test_a_fifo_is_no_script(base: Path) -> None:
    os.mkfifo(base / "script.json", 0o600)
    done = own(settings(base, f'script = "{base}/script.json"\n'), "config_check")
    assert done.code == 2
    assert "no regular file" in done.err


def test_settings_that_cannot_be_read_are_told_with_what_mends_them(base: Path) -> None:
    """One line that says what, as every command begins it, one with the remedy: of this very fault."""
    file = base / "s.toml"
    file.write_bytes(b'# \xff\ndisk = "auto"\n')
    for name, what, remedy in (
        (str(file), f"{file} is not UTF-8: byte 0xff after 2 bytes", "save it as UTF-8"),
        (str(base), f"{base} is a folder", "name a text file"),
        (f"{file}/below", f"{file}/below cannot be read: Not a directory", "name a text file"),
        ("", "the name of the settings file is empty", "leave it out"),
    ):
        done = own(base / "state", "config_check", file=name)
        assert done.code == 2
        said, below = done.err.splitlines()
        assert said == f"ringfence: {what}" and below.startswith("  ") and remedy in below, done.err


def test_doctor_of_this_host() -> None:
    done = own(state_base() / "ringfence-no-such", "doctor", json=True)
    answer = done.json()
    assert (done.code == 0) is answer["ok"] is all(r["ok"] for r in answer["rows"] if r["level"] == "required")
    assert all(set(row) == {"id", "ok", "level", "found", "remedy"} for row in answer["rows"])
    assert not (state_base() / "ringfence-no-such").exists()


def test_a_driver_that_is_none_is_wrong_usage() -> None:
    done = subprocess.run([COMMAND, "doctor", "--driver", "docker"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "none of bubblewrap" in done.stderr and "Traceback" not in done.stderr


# --- what a server is started with -----------------------------------------------------------------------------------


@pytest.mark.root
def test_what_the_spawner_and_the_kernel_are_given(made: tuple[Path, Done, Done]) -> None:
    home, first, _ = made
    argv, environment = prepare.serve(Layout(home), prepare.Wish(listen="off", accept="no-nft"))
    assert argv[:5] == ["/usr/bin/python3", "-I", "-S", "-B", "-c"]
    assert argv[-1] == str(home / "spawner" / "config.json")
    assert set(environment) == {"PATH", "LANG"}
    given = json.loads((home / "spawner" / "config.json").read_text())
    low, high = first.json()["ids"]
    assert (given["mode"], given["kernel_uid"], given["ids"]) == ("root", low, [low + 8, high])
    assert given["accept"] == ["no-nft"]
    assert Path(given["runtime"], "guest", "init.pyc").is_file()
    assert Path(given["runtime"], "guest.digest").read_text().strip() == given["guest_digest"]
    settings = Settings.from_json(json.loads((home / "run" / "kernel.json").read_text()))
    assert (settings.home, settings.listen, settings.installation) == (str(home), None, given["installation"])
    assert settings.database == f"sqlite:///{home}/db/ringfence.db"


@pytest.mark.root
def test_the_kernel_is_given_a_copy_of_the_script(made: tuple[Path, Done, Done], base: Path) -> None:
    """It lies where only root may look."""
    home, first, _ = made
    script = base / "private" / "script.json"
    script.parent.mkdir(mode=0o700)
    script.write_text('[{"when": "x", "answers": [{"text": "y"}]}]')
    (base / "with.toml").write_text(f'script = "{script}"\n')
    for path in (script, base / "with.toml"):
        path.chmod(0o644)
    prepare.serve(Layout(home), prepare.Wish(config=base / "with.toml", listen="off", accept="no-nft"))
    given = Settings.from_json(json.loads((home / "run" / "kernel.json").read_text()))
    status = Path(given.script).stat()
    assert given.script == str(home / "run" / "script.json")
    assert Path(given.script).read_text() == script.read_text()
    assert (status.st_uid, status.st_mode & 0o777) == (first.json()["ids"][0], 0o600)
    script.write_text("[1]")
    with pytest.raises(Invalid, match="rule 1: must be an object"):
        prepare.serve(Layout(home), prepare.Wish(config=base / "with.toml", listen="off", accept="no-nft"))


def test_a_runtime_is_copied_once(made: tuple[Path, Done, Done]) -> None:
    home, _, _ = made
    first = runtime.install(home / "runtime", "/usr/bin/python3")
    inode = first.path.stat().st_ino
    assert runtime.install(home / "runtime", "/usr/bin/python3") == first
    assert first.path.stat().st_ino == inode
    assert [p.name for p in (home / "runtime").iterdir() if p.name.startswith(".")] == []
