"""Sources of the vault's key: what is one, what is none; and no error that shows what was written in its place."""

from __future__ import annotations

import base64
import json

import pytest

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.settings import Settings
from ringfence.host.kernel.settings_file import parse
from ringfence.host.kernel.settings_text import as_toml
from ringfence.host.kernel.vault_keys import VaultKeys, key_from, source_of

KEY = bytes(range(32))


@pytest.mark.parametrize(
    "text", ["file:/srv/key", "env:RINGFENCE_KEY", "credential:ringfence.key", "command:/usr/bin/pass show ringfence"]
)
def test_sources(text: str) -> None:
    settings = parse(f'[vault]\nkey = "{text}"\nold = ["{text}"]')
    assert settings.vault == VaultKeys(text, (text,))
    assert parse(as_toml(settings)) == settings
    placed = settings.at("/srv", "i" * 16, "root")
    assert Settings.from_json(json.loads(json.dumps(placed.to_json()))) == placed
    assert ":".join(source_of(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "/srv/key",
        "file:key",
        "file:/srv/../key",
        "env:",
        "env:A B",
        "env:1A",
        "credential:../x",
        "credential:a/b",
        "credential:.x",
        "command:pass",
        "vault:/x",
        "file:/a\\u0000b",
        "c2VjcmV0LWNhbmFyeQ==",
    ],
)
def test_what_is_no_source(text: str) -> None:
    for line in (f'key = "{text}"', f'old = ["{text}"]'):
        with pytest.raises(Invalid) as error:
            parse(f"[vault]\n{line}")
        assert "file:/PATH" in error.value.remedy
        said = json.dumps(error.value.as_json())
        assert "c2VjcmV0" not in said, "somebody wrote the key itself there"


def test_old_ones_are_a_list() -> None:
    for value in ('"env:A"', "[1]", '[""]', json.dumps(["env:A"] * 33)):
        with pytest.raises(Invalid):
            parse(f"[vault]\nold = {value}")


@pytest.mark.parametrize(
    ("data", "key"),
    [
        (KEY, KEY),
        (KEY.hex().encode() + b"\n", KEY),
        (base64.b64encode(KEY) + b"\n", KEY),
        (b"\n" * 32, b"\n" * 32),  # 32 bytes are a key, whatever they are
        (KEY + b"\n", b""),
        (KEY[:31], b""),
        (b"", b""),
        (KEY.hex().encode()[:-2], b""),
        (b"\xff" * 44, b""),
    ],
)
def test_what_a_key_looks_like(data: bytes, key: bytes) -> None:
    assert key_from(data) == key
