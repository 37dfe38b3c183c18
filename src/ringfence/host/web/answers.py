"""Every error as the one object: {"error": {"code", "message", "remedy", "details"}}. Never a traceback in a body."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from ringfence.host.kernel.errors import Failed, Invalid, NotFound, RingfenceError

_log = logging.getLogger("ringfence.web")


class MethodRefused(Invalid):
    code = "method_not_allowed"
    http_status = 405


def answer(error: RingfenceError) -> JSONResponse:
    headers = {"Cache-Control": "no-store"}
    if error.http_status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="ringfence"'
    return JSONResponse({"error": error.as_json()}, error.http_status, headers)


def internal() -> Failed:
    return Failed("the server failed on this request", remedy="the server's log has the cause; please report it")


async def _ours(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RingfenceError)
    return answer(error)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found = [_problem(each) for each in error.errors()]
    first = found[0]
    where = ".".join(first["where"])
    return answer(
        Invalid(f"{where}: {first['problem']}", remedy="see /v1/openapi.json for the shape", problems=found[:20])
    )


def _problem(each: Any) -> dict[str, Any]:
    """Without the input: it may be a secret."""
    return {
        "where": [str(part) for part in each["loc"]],
        "problem": str(each["msg"]).removeprefix("Value error, ")[:500],
    }


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, RingfenceError):  # FastAPI wraps what reading a body raises
        return answer(error.__cause__)
    if isinstance(error.__cause__, UnicodeDecodeError):
        return answer(Invalid("the body is not UTF-8", remedy="send JSON in UTF-8"))
    if error.status_code == 404:
        return answer(NotFound("no such address", remedy="see /v1/openapi.json for those that exist"))
    if error.status_code == 405:
        return answer(MethodRefused(f"{request.method} is not for this address", remedy="see /v1/openapi.json"))
    return answer(Invalid(str(error.detail), remedy="see /v1/openapi.json for the shape"))


async def _unknown(request: Request, error: Exception) -> JSONResponse:
    _log.error("%s %s failed: %s", request.method, request.scope["path"], type(error).__name__)
    return answer(internal())


def add_error_answers(app: FastAPI) -> None:
    app.add_exception_handler(RingfenceError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unknown)
