"""The version of this server. A constant, since what runs is a copy of the package without its metadata."""

from __future__ import annotations

VERSION = "0.1.0.dev0"  # as in pyproject.toml; a test holds the two together
