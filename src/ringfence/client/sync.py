"""The SDK without async: the same client, run by an event loop in a thread. No second copy of anything."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from types import TracebackType
from typing import Any, Self

from ringfence.client.client import Client


class SyncClient:
    """Every method of Client, blocking. What is an async iterator there is an iterator here; what is an async context
    manager, a context manager. Takes the arguments of Client. Close it, or use it in a `with`."""

    def __init__(self, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ringfence-client", daemon=True)
        self._thread.start()
        self._client = self._await(_made(options))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        if self._loop.is_closed():
            return
        self._await(self._client.close())
        self._await(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __getattr__(self, name: str) -> Any:
        return self._blocking(getattr(self._client, name))

    def _await(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _blocking(self, value: Any) -> Any:
        """The same thing without async; plain values as they are."""
        if inspect.iscoroutine(value):
            return self._await(value)
        if isinstance(value, AbstractAsyncContextManager):
            return self._managed(value)
        if isinstance(value, AsyncIterator):
            return self._iterated(value)
        if callable(value):
            return self._called(value)
        return value

    def _called(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **options: Any) -> Any:
            return self._blocking(method(*words, **options))

        return call

    def _iterated(self, source: AsyncIterator[Any]) -> Iterator[Any]:
        try:
            while True:
                try:
                    item = self._await(_next(source))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if isinstance(source, AsyncGenerator) and not self._loop.is_closed():
                self._await(_close(source))

    @contextmanager
    def _managed(self, source: AbstractAsyncContextManager[Any]) -> Iterator[Any]:
        opened = self._await(_enter(source))
        try:
            yield self._iterated(opened) if isinstance(opened, AsyncIterator) else _Blocking(self, opened)
        except BaseException as error:
            if not self._await(_leave(source, error)):
                raise
        else:
            self._await(_leave(source, None))


class _Blocking:
    """An object of the async client, its methods blocking."""

    def __init__(self, owner: SyncClient, inner: Any) -> None:
        self._owner = owner
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return self._owner._blocking(getattr(self._inner, name))


async def _made(options: dict[str, Any]) -> Client:
    return Client(**options)


async def _next(source: AsyncIterator[Any]) -> Any:
    return await anext(source)


async def _close(source: AsyncGenerator[Any, Any]) -> None:
    await source.aclose()


async def _enter(source: AbstractAsyncContextManager[Any]) -> Any:
    return await source.__aenter__()


async def _leave(source: AbstractAsyncContextManager[Any], error: BaseException | None) -> bool:
    return bool(await source.__aexit__(type(error) if error else None, error, error.__traceback__ if error else None))
