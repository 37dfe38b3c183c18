"""The table of secrets that exist, and the forms in which one may have leaked. Pure but for asking the stage.

Whoever adds a secret to the product adds its row to KINDS: a canary that is planted, or a value that is known.
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass

from ringfence.prove import planted, vault_kinds
from ringfence.prove.attacks.secrets import MIXED, TOLD
from ringfence.prove.outward_stage import Held
from ringfence.prove.stage import VICTIM, Stage
from ringfence.prove.world import MODEL_KEY

DATABASE_PASSWORD = b"prove-of-no-database-5f1c09d27ab4"  # of the server that leak_database.py starts
OWNER = "lena"  # the user whose tokens are looked for


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    value: Callable[[Stage], bytes]
    in_main: bool = False  # PID 1 and the loop whose it is may hold it
    in_box: bool = False  # every process of the owner's box may: it is given to commands, and worth nothing elsewhere


@dataclass(frozen=True, slots=True)
class Needle:
    kind: str
    form: str
    data: bytes


def _token(stage: Stage) -> bytes:
    return str(stage.client.add_token(stage.user(OWNER))["token"]).encode()


def _operator_token(stage: Stage) -> bytes:
    return str(stage.client.add_token(stage.user(OWNER), scopes=["operator"])["token"]).encode()


def _run_token(stage: Stage) -> bytes:
    mixed = bytes.fromhex(str(stage.shell(stage.user(OWNER), f"cat {TOLD}")["stdout"]).strip())
    return bytes(each ^ MIXED for each in mixed)


def _file(stage: Stage) -> bytes:
    """A new one in the victim's box: attack programs are told the flag's content, this one nobody is."""
    text = secrets.token_hex(16).encode()
    stage.exec(VICTIM, ["sh", "-c", "cat > ~/unseen; cat ~/unseen"], text)
    return text


def _model_key(stage: Stage) -> bytes:
    value = stage.world.secret(MODEL_KEY)
    stage.client.set_tenant_secret(MODEL_KEY, value)
    return value


KINDS: tuple[Kind, ...] = (
    Kind("vault key", lambda stage: stage.canaries.vault_key),
    Kind("gate key", lambda stage: (stage.made.home / "vault" / "gate.key").read_bytes()),
    Kind("audit key", lambda stage: (stage.made.home / "vault" / "audit.key").read_bytes()),
    Kind("webhook secret", lambda stage: planted.webhook_secret(stage.made)),
    Kind("database password", lambda _stage: DATABASE_PASSWORD),
    Kind("API token", _token),
    Kind("operator token", _operator_token),
    Kind("run token", _run_token, in_main=True),
    Kind("credential", lambda stage: stage.world.secret(OWNER)),
    Kind("key of a model's provider", _model_key),
    Kind("key of a CA", lambda stage: vault_kinds.authority_key(stage, OWNER)),
    Kind("key of a CA, as PEM", lambda stage: vault_kinds.authority_pem(stage, OWNER)),
    Kind("data key", lambda stage: vault_kinds.data_key(stage, OWNER)),
)


def given(held: Held) -> tuple[Kind, ...]:
    """What a command of the owner's was given that is at work."""
    return (
        Kind("placeholder", lambda _stage: _unique(held.token), in_box=True),
        Kind("key of a run for the gateway", lambda _stage: _unique(held.model), in_box=True),
    )


def _unique(placeholder: str) -> bytes:
    """What no other one has: 130 bits as 26 characters. What is around them looks like a provider's."""
    return placeholder.partition("EXAMPLE")[2][:26].encode()


OF_OTHERS = Kind("another user's file", _file)  # looked for in everybody else's box


def needles(kind: str, value: bytes) -> tuple[Needle, ...]:
    """Every form of a secret of 16 bytes at least. Halves, so that one that was split is found too; inner parts of base64,
    which hold whatever stands before and behind."""
    half = len(value) // 2
    forms = {"plain, first half": value[:half], "plain, second half": value[half:]}
    for shift in range(3):
        forms[f"base64 at {shift}"] = _inner_base64(value, shift)
        forms[f"base64url at {shift}"] = _inner_base64(value, shift).translate(bytes.maketrans(b"+/", b"-_"))
    forms["hex"] = value[:half].hex().encode()
    forms["HEX"] = value[:half].hex().upper().encode()
    forms["URL"] = "".join(f"%{each:02X}" for each in value[:half]).encode()
    forms["url"] = "".join(f"%{each:02x}" for each in value[:half]).encode()
    once = {data: form for form, data in reversed(forms.items())}
    return tuple(Needle(kind, form, data) for data, form in once.items())


def _inner_base64(value: bytes, shift: int) -> bytes:
    """What base64 of `value` has in common whatever `shift` bytes (modulo 3) stand before it: without the first and last
    group, 16 characters at least for 16 bytes."""
    text = b64encode(b"\0" * shift + value)
    return text[4:-4]


def found(data: bytes, wanted: tuple[Needle, ...]) -> list[Needle]:
    return [needle for needle in wanted if needle.data in data]
