"""A client that is not connected yet: what `godwit.connect` returns."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from godwit.errors import BrokerUnreachableError
from godwit.net.loop import TimeLimit
from godwit.net.runtime import BrokerResolver
from godwit.transport.events import Address

if TYPE_CHECKING:
    from godwit.net.client import AsyncClient


class Connecting:
    """A client that is not connected yet: use it with `async with`, or await it. Made by `connect`."""

    def __init__(
        self, resolver: BrokerResolver, timeout_s: float | None, begin: Callable[[Sequence[Address]], AsyncClient]
    ) -> None:
        """`begin`: returns a client that begins to connect to one of these addresses."""
        self._resolver = resolver
        self._timeout_s = timeout_s
        self._begin = begin
        self._client: AsyncClient | None = None

    def __repr__(self) -> str:
        return f"<Connecting to {self._resolver}: use it with `async with`, or await it>"

    @property
    def is_answered(self) -> bool:
        """Whether a broker answers. It may still wait with the login, for example while the name is in use."""
        return self._client is not None and self._client.is_answered

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncClient:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.__aexit__(kind, error, traceback)

    async def _open(self) -> AsyncClient:
        client: AsyncClient | None = None
        try:
            async with TimeLimit(self._timeout_s):
                addresses = await self._resolver.resolve()
                self._client = client = self._begin(addresses)
                await client._runtime.wait_until_online()
                return client
        except BaseException as error:
            is_answered, reason = False, ""
            if client is not None:
                is_answered, reason = client.is_answered, client.last_reason
                client.abort()
            if isinstance(error, TimeoutError):
                raise _unreachable(str(self._resolver), self._timeout_s, is_answered, reason) from None
            raise


def _unreachable(broker: str, timeout_s: float | None, is_answered: bool, reason: str) -> BrokerUnreachableError:
    """Return the error of a client that could not connect in time. `reason`: why the last attempt failed, if known."""
    if is_answered:
        return BrokerUnreachableError(
            f"the broker at {broker} answers, but has not let this client in within {timeout_s:g} s: another "
            "connection may still hold its name; try again, or wait for longer"
        )
    return BrokerUnreachableError(
        f"no broker answered at {broker} within {timeout_s:g} s{f' ({reason})' if reason else ''}: is it running "
        "there, and does the way to it let UDP pass?"
    )
