"""The models of one server, made of its settings: providers for the native loop, the gateway, and what both are
counted by."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.models.ports import Keys, ModelUsage
from ringfence.host.kernel.models.upstreams import Upstream
from ringfence.host.kernel.models.usage import BudgetLimits
from ringfence.host.kernel.ports import Clock, Ids
from ringfence.host.models.budgets import Budgets
from ringfence.host.models.gateway import Gateway
from ringfence.host.models.native import NativeModel
from ringfence.host.models.upstream_client import UpstreamClient


@dataclass(frozen=True, slots=True)
class Models:
    native: Mapping[str, NativeModel]  # by alias
    gateway: Gateway | None  # None: there is no upstream
    budgets: Budgets


@asynccontextmanager
async def assembled(
    upstreams: Sequence[Upstream],
    limits: BudgetLimits,
    keys: Keys,
    usage: ModelUsage,
    *,
    clock: Clock,
    ids: Ids,
    worker: str,
    proxy: str = "",
    root_ca: str = "",
) -> AsyncIterator[Models]:
    """`worker`: this kernel process. `proxy`: a corporate one, `host:port`. `root_ca`: PEM file of a root besides the
    host's own. On the way out what is still to be counted is written. Invalid: the file is none."""
    budgets = Budgets(usage, limits, ids, clock, worker)
    roots = await asyncio.to_thread(_roots, root_ca)
    client = UpstreamClient(keys, roots, proxy=proxy)
    native = {each.alias: NativeModel(each, client, budgets) for each in upstreams}
    try:
        yield Models(native, Gateway(upstreams, client, budgets) if upstreams else None, budgets)
    finally:
        await budgets.close()
        await client.close()


def _roots(root_ca: str) -> ssl.SSLContext:
    """Reads files."""
    context = ssl.create_default_context()
    try:
        if root_ca:
            context.load_verify_locations(root_ca)
    except OSError as error:  # ssl.SSLError is one
        raise Invalid(f"root_ca: {root_ca} is no PEM file of certificates: {error}", remedy='root_ca = ""') from error
    return context
