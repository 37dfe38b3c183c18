"""Makes the web application: routes, guards, error answers, the OpenAPI document. Opens nothing and decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI

from ringfence.host.kernel.failpoints import Failpoints, Quiet
from ringfence.host.web import (
    exec_stream,
    routes_audit,
    routes_backup,
    routes_boxes,
    routes_copies,
    routes_egress,
    routes_exec,
    routes_export,
    routes_files,
    routes_gates,
    routes_life,
    routes_logs,
    routes_messages,
    routes_people,
    routes_runs,
    routes_secrets,
    routes_sweep,
    routes_threads,
    routes_usage,
)
from ringfence.host.web.acknowledging import Acknowledging
from ringfence.host.web.answers import add_error_answers
from ringfence.host.web.guards import LOOPBACK, Guards
from ringfence.host.web.login import Door
from ringfence.host.web.peer import Admission
from ringfence.host.web.ports import Engine
from ringfence.host.web.shapes import ErrorAnswer
from ringfence.host.web.showing import Showing

_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorAnswer, "description": "the caller's to mend"},
    "5XX": {"model": ErrorAnswer, "description": "a part is missing, or ours to mend"},
}


def make_app(
    engine: Engine,
    *,
    operator: bool,
    admission: Admission | None = None,
    hosts: Collection[str] = (),
    failpoints: Failpoints | None = None,
) -> FastAPI:
    """`operator`: trusts peer credentials as `admission` says (default: root and this account), for the unix socket
    only. Otherwise trusts tokens only, and answers to loopback names and `hosts`. `failpoints`: of tests; None: Quiet."""
    app = FastAPI(
        title="ringfence",
        version=_version(),
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        responses=_ERRORS,
        redirect_slashes=False,
    )
    app.state.door = Door(engine, operator, admission or Admission())
    app.state.stopping = asyncio.Event()  # set when the server stops: streams end
    add_error_answers(app)
    app.add_middleware(Acknowledging, failpoints=failpoints or Quiet())
    app.add_middleware(Showing, engine=engine, operator=operator)
    app.add_middleware(Guards, hosts=None if operator else LOOPBACK | {name.lower() for name in hosts})
    for module in (
        routes_exec,  # a path is compared with one route after the other: what is asked for most comes first
        routes_life,
        routes_boxes,
        exec_stream,
        routes_people,
        routes_copies,
        routes_files,
        routes_threads,
        routes_messages,
        routes_runs,
        routes_gates,
        routes_audit,
        routes_backup,
        routes_secrets,
        routes_egress,
        routes_sweep,
        routes_usage,
        routes_logs,
        routes_export,
    ):
        app.include_router(module.router)
    return app


def _version() -> str:
    try:
        return version("ringfence")
    except PackageNotFoundError:
        return "0"  # run from a copied tree without metadata
