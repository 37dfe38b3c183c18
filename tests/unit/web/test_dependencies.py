"""What every request goes through: nothing of it is sent into a thread and back."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from ringfence.host import web


def _within(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for each in dependant.dependencies:
        yield from _within(each)


def test_no_route_and_nothing_that_it_depends_on_runs_in_a_thread() -> None:
    names = [each.name for each in pkgutil.iter_modules(web.__path__) if each.name.startswith("routes_")]
    routers = [import_module(f"{web.__name__}.{name}").router for name in names]
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    assert len(routes) > 50
    blocking = {
        each.call
        for route in routes
        for each in _within(route.dependant)
        if each.call is not None and not inspect.iscoroutinefunction(each.call)
    }
    assert not blocking
