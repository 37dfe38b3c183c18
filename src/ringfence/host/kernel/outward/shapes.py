"""What tokens of providers look like, so that clients which check the look of theirs take a placeholder for one.
Data; pure.

None of them is valid anywhere: where a provider puts a checksum, there is padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MARKED = 33  # characters of marker and random part: the least that stands between prefix and suffix

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_URL = _LETTERS + "-_"
# {"alg":"none","typ":"JWT"} . {"exp":4102444800} (the year 2100): parsers read it, nobody can verify it.
_JWT = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.eyJleHAiOjQxMDI0NDQ4MDB9."


@dataclass(frozen=True, slots=True)
class Shape:
    """`length`: characters of the whole, at least prefix + MARKED + suffix. `alphabet`: of what follows the prefix."""

    prefix: str
    length: int
    alphabet: str = _LETTERS
    suffix: str = ""
    padding: str = "0"


def _shape(prefix: str, behind: int, alphabet: str = _LETTERS, suffix: str = "") -> Shape:
    """`behind`: characters behind the prefix. Providers whose tokens are too short for 130 bits get longer ones."""
    return Shape(prefix, len(prefix) + max(behind, MARKED + len(suffix)), alphabet, suffix)


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "generic": _shape("", 40),
        "github": _shape("ghp_", 36),
        "github-oauth": _shape("gho_", 36),
        "github-app": _shape("ghs_", 36),
        "github-fine": _shape("github_pat_" + "11" + "A" * 20 + "_", 59),  # 22 characters, _, 59
        "gitlab": _shape("glpat-", 20, _URL),  # 20 in truth
        "npm": _shape("npm_", 36),
        "pypi": _shape("pypi-AgEIcHlwaS5vcmc", 159, _URL),  # a macaroon for PyPI begins so
        "openai": _shape("sk-proj-", 156, _URL),
        "openai-old": _shape("sk-", 48),
        "anthropic": _shape("sk-ant-api03-", 95, _URL, "AA"),
        "slack-bot": _shape("xoxb-000000000000-000000000000-", 24),  # 24 in truth
        "huggingface": _shape("hf_", 34),
        "jwt": _shape(_JWT, 43, _URL),  # 43: a signature of 32 bytes
    }
)
