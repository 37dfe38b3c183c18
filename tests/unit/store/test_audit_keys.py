"""The keys of the audit: read from the vault, and from nothing that looks like one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.host.kernel.errors import Unavailable
from ringfence.host.store.audit_keys import vault_signer


def key(path: Path, data: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    return path


def test_mine_and_others(tmp_path: Path) -> None:
    key(tmp_path / "audit.key", b"k" * 32)
    key(tmp_path / "audit.key.other-host", b"o" * 32)
    key(tmp_path / "audit.key.bad name", b"no key")
    key(tmp_path / "master.key", b"m" * 32)
    signer = vault_signer(tmp_path, "krn_a")
    assert (signer.worker, signer.keys.mine, signer.keys.others) == ("krn_a", b"k" * 32, (b"o" * 32,))
    assert signer.witnesses == tmp_path / "audit"


def test_what_is_no_key(tmp_path: Path) -> None:
    path = tmp_path / "audit.key"
    with pytest.raises(Unavailable, match="cannot be read"):
        vault_signer(tmp_path, "")
    for data in (b"", b"k" * 31, b"k" * 33):
        key(path, data)
        with pytest.raises(Unavailable, match="not a key of 32 bytes"):
            vault_signer(tmp_path, "")
    key(path, b"k" * 32, 0o640)
    with pytest.raises(Unavailable, match="others can read"):
        vault_signer(tmp_path, "")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unavailable, match="cannot be read"):
        vault_signer(tmp_path, "")
