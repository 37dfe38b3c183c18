"""What a box trusts: the host's roots, and the CA of its own worker, from its next start on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.spawner import protocol, trust
from tests.support import spawner_rig
from tests.support.spawner_rig import CERTIFICATE, Refusal, Rig

pytestmark = pytest.mark.root
A, B = "a" * 16, "b" * 16
FILES = ("/etc/ringfence/ca.pem", "/etc/ringfence/bundle.pem", "/etc/ssl/certs/ca-certificates.crt")


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = spawner_rig.make()
    made.start()
    yield made
    made.clean()


def shown(rig: Rig, box: str) -> list[str]:
    return [str(rig.shell(box, f"cat {path}")["out"]) for path in FILES]


def another() -> str:
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout /dev/null -subj /CN=other"
    )
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout


def test_a_box_trusts_its_ca_and_the_public_roots_from_its_next_start_on(rig: Rig) -> None:
    roots = trust.roots().decode()
    assert roots.count("BEGIN CERTIFICATE") > 50  # this host has some, or the rest says nothing
    for box in (A, B):
        rig.provision(box)
    rig.start_box(A)
    assert shown(rig, A) == ["", roots, roots]
    rig.ask(protocol.Trust(A, CERTIFICATE))
    assert shown(rig, A) == ["", roots, roots]
    rig.ask(protocol.Stop(A))
    for box in (A, B):
        rig.start_box(box)
    assert shown(rig, A) == [CERTIFICATE, roots + CERTIFICATE, roots + CERTIFICATE]
    assert shown(rig, B) == ["", roots, roots]  # another box's CA is nobody else's
    for path in FILES:
        assert rig.shell(A, f"echo x >> {path} || chmod 666 {path} || mv {path} /tmp")["rc"] != 0, path
    second = another()
    rig.ask(protocol.Trust(A, second))
    rig.ask(protocol.Trust(A, second))
    rig.ask(protocol.Stop(A))
    rig.start_box(A)
    assert shown(rig, A)[:2] == [second, roots + second]
    control = rig.home / "boxes" / A / "ctl"
    for name in ("ca.pem", "bundle.pem"):
        status = (control / name).stat()
        assert (status.st_uid, status.st_mode & 0o777) == (0, 0o644)
    (control / "bundle.pem").write_text("of yesterday")
    rig.ask(protocol.Stop(A))
    rig.start_box(A)
    assert shown(rig, A)[1] == roots + second  # stale, made anew
    rig.ask(protocol.Remove(A))
    assert not control.exists()


def test_the_company_s_roots_are_believed_in_boxes_too(rig: Rig) -> None:
    """Where a rule passes a host through, the box verifies the server itself. Of the file certificates alone are shown."""
    first, second = another(), another()
    company = rig.home.parent / "company.pem"
    company.write_text(f"subject=a\n{first}# a note, and a key that has no business there\nK3Y\n{second.rstrip()}")
    rig.stop()
    rig.overrides["root_ca"] = str(company)
    rig.write_config()
    rig.start()
    roots = trust.roots().decode()
    for box in (A, B):
        rig.provision(box)
    rig.ask(protocol.Trust(A, CERTIFICATE))
    for box in (A, B):
        rig.start_box(box)
    assert shown(rig, A) == [first + second + CERTIFICATE, *[roots + first + second + CERTIFICATE] * 2]
    assert shown(rig, B)[:2] == [first + second, roots + first + second], "one that has no CA yet"
    company.write_text(second)
    for box in (A, B):
        rig.ask(protocol.Stop(box))
        rig.start_box(box)
    assert shown(rig, A)[:2] == [second + CERTIFICATE, roots + second + CERTIFICATE], "from its next start on"
    assert shown(rig, B)[:2] == [second, roots + second]
    for hidden in ("not there", "empty", "a folder"):
        company.unlink(missing_ok=True)
        if hidden == "empty":
            company.write_text("K3Y")
        elif hidden == "a folder":
            company.mkdir()
        rig.ask(protocol.Stop(A))
        rig.start_box(A)
        assert shown(rig, A)[:2] == [CERTIFICATE, roots + CERTIFICATE], hidden
    rig.ask(protocol.Stop(A))
    rig.ask(protocol.Remove(A))
    assert not (rig.home / "boxes" / A / "ctl").exists()


def test_tools_find_it_without_a_variable(rig: Rig) -> None:
    rig.provision(A)
    rig.ask(protocol.Trust(A, CERTIFICATE))
    rig.start_box(A)
    assert rig.shell(A, "git config http.sslCAInfo")["out"].strip() == FILES[1]
    assert f"cert = {FILES[1]}" in rig.shell(A, "cat /etc/pip.conf")["out"]
    assert f"cafile={FILES[1]}" in rig.shell(A, "cat /etc/npmrc")["out"]
    assert f"ca_certificate = {FILES[1]}" in rig.shell(A, "cat /etc/wgetrc")["out"]
    code = "import ssl; c = ssl.create_default_context(); print(c.get_ca_certs())"  # the system's own store
    assert "ringfence test CA" in rig.shell(A, f'python3 -c "{code}"')["out"]


def test_ssh_has_no_complaint_about_system_files(rig: Rig) -> None:
    """Case D71: what the host's root owns shows as nobody's in a box, and ssh would refuse it."""
    rig.provision(A)
    rig.start_box(A)
    told = rig.shell(A, "ssh -G localhost")
    assert told["rc"] == 0 and "hostname localhost" in told["out"] and "owner" not in told["err"].lower(), told["err"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        CERTIFICATE * 2,
        CERTIFICATE + "x",
        "x" + CERTIFICATE,
        CERTIFICATE.rstrip("\n"),
        CERTIFICATE.replace("\n", "\r\n"),
        CERTIFICATE.replace("CERTIFICATE", "PRIVATE KEY"),
        CERTIFICATE.replace("M", "*", 1),
        CERTIFICATE.replace("MII", "AII", 1),
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\n" + "A" * 5000 + "\n-----END CERTIFICATE-----\n",
    ],
    ids=lambda text: str(len(text)),
)
def test_what_is_no_single_certificate_is_refused(rig: Rig, text: str) -> None:
    rig.provision(A)
    with pytest.raises(Refusal) as caught:
        rig.ask(protocol.Trust(A, text))
    assert caught.value.code == "bad_request"
    assert not (rig.home / "boxes" / A / "ctl" / "ca.pem").exists()
    rig.ask(protocol.Trust(A, CERTIFICATE))  # control
    assert (rig.home / "boxes" / A / "ctl" / "ca.pem").read_text() == CERTIFICATE


def test_a_planted_link_is_not_followed(rig: Rig) -> None:
    rig.provision(A)
    control = rig.home / "boxes" / A / "ctl"
    victim = rig.home.parent / "victim"
    victim.write_text("x")
    for name in ("ca.pem", "bundle.pem"):
        rig.ask(protocol.Trust(A, CERTIFICATE))
        (control / name).unlink(missing_ok=True)
        (control / name).symlink_to(victim)
        with pytest.raises(Refusal):
            rig.start_box(A)
        assert victim.read_text() == "x"
        (control / name).unlink()
    assert not rig.start_box(A)["already"] and victim.read_text() == "x"  # control


def test_a_file_that_cannot_be_opened_leaves_none_open(tmp_path: Path) -> None:
    """Control: without it, both are."""
    for name in ("one", "two"):
        (tmp_path / name).touch()
    control = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        trust._opened(control, {"a": "one", "b": "two", "c": "none"})
    assert len(os.listdir("/proc/self/fd")) == before
    opened = trust._opened(control, {"a": "one", "b": "two"})
    assert len(os.listdir("/proc/self/fd")) == before + 2
    for fd in (*opened.values(), control):
        os.close(fd)
