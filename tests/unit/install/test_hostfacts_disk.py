"""What doctor says of disk limits: never more than can be had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.host.install import hostfacts_disk
from ringfence.host.kernel.settings import Settings


def test_an_ordinary_account_is_told_that_files_are_only_counted() -> None:
    row = hostfacts_disk.limits(Settings(), root=False)
    assert not row.ok and "no-disk-quota" in row.remedy and "counted" in row.found


def test_what_is_missing_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostfacts_disk, "_FOLDERS", ("/nowhere",))
    row = hostfacts_disk.limits(Settings(), root=True)
    assert not row.ok and "mkfs.ext4" in row.found and "apt-get install -y e2fsprogs" in row.remedy


def test_accounting_is_no_limit_even_as_root() -> None:
    assert not hostfacts_disk.limits(replace(Settings(), disk="accounting"), root=True).ok


def test_more_promised_than_free_is_said(tmp_path: Path) -> None:
    assert hostfacts_disk.promised(tmp_path) is None
    box = tmp_path / "boxes" / ("a" * 16)
    box.mkdir(parents=True)
    with (box / "disk.img").open("wb") as file:
        file.truncate(1 << 20)
    row = hostfacts_disk.promised(tmp_path)
    assert row is not None and row.ok
    with (box / "disk.img").open("r+b") as file:
        file.truncate(8 << 40)  # a hole: nothing is written
    row = hostfacts_disk.promised(tmp_path)
    assert row is not None and not row.ok and "cannot all" in row.found
