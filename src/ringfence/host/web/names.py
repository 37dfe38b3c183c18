"""Names and byte paths in URLs. Segments arrive as they were sent (guards.py) and are decoded here, exactly once."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote_to_bytes

from fastapi import Path
from pydantic import BeforeValidator
from starlette.requests import Request

from ringfence.host.kernel.errors import Invalid
from ringfence.host.web.login import text_of


def _decoded(value: object) -> object:
    return text_of(value, "a name in the address") if isinstance(value, str) else value


Name = Annotated[str, Path(), BeforeValidator(_decoded)]
"""Matched exactly: no case folding, no normalisation."""


def raw_query(request: Request, name: str) -> bytes | None:
    """The value of a query parameter as bytes. Starlette's own parser would replace what is not UTF-8."""
    wanted = name.encode()
    for pair in request.scope["query_string"].split(b"&"):
        key, _, value = pair.partition(b"=")
        if unquote_to_bytes(key) == wanted:
            return unquote_to_bytes(value.replace(b"+", b" "))
    return None


def file_path(request: Request) -> bytes:
    path = raw_query(request, "path")
    if path is None:
        raise Invalid("no path", remedy="give ?path= with the percent-encoded bytes of the path")
    return path
