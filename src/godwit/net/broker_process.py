"""The broker as a process of its own: it stops on signals, reloads its configuration on SIGHUP, and notifies systemd.

run(serve(configuration, load=..., notices=...))
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from godwit.net.broker_archive import Notices
from godwit.net.service import NoNotices, Service
from godwit.net.service_manager import ServiceManager
from godwit.server.configuration import Configuration

if TYPE_CHECKING:
    from godwit.net.cluster_service import ClusterService


async def serve(
    configuration: Configuration,
    *,
    notices: Notices | None = None,
    load: Callable[[], Configuration] | None = None,
    ready: Callable[[Service | ClusterService], None] | None = None,
) -> None:
    """Run a broker until SIGINT or SIGTERM. A service manager such as systemd is notified of its state.

    Args:
        configuration: The broker's configuration.
        notices: Receives an event line for each event.
        load: Loads the configuration again on SIGHUP.
        ready: Called once the broker has started.

    Raises:
        GodwitError: See Service.start.
        NodeStoppedError: A node of a cluster must not continue.
    """
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    task = asyncio.current_task()
    assert task is not None
    is_starting = True
    is_start_cancelled = False
    handled = [signal.SIGINT, signal.SIGTERM]
    manager = ServiceManager()
    running: Service | ClusterService
    if configuration.cluster is None:
        running = Service(configuration, notices=notices)
    else:
        from godwit.net.cluster_service import ClusterService

        running = ClusterService(configuration, notices=notices or NoNotices())
        running.failed.add_done_callback(lambda _: stopping.set())

    def stop() -> None:
        nonlocal is_start_cancelled
        stopping.set()
        if is_starting:
            is_start_cancelled = True
            task.cancel()

    def remove_handlers() -> None:
        with suppress(NotImplementedError):
            for number in handled:
                loop.remove_signal_handler(number)

    with suppress(NotImplementedError):  # on Windows, where Ctrl-C cancels this coroutine
        for number in handled:
            loop.add_signal_handler(number, stop)
    try:
        async with running as service:
            is_starting = False
            status = f"listening on {', '.join(service.urls)}"

            def reload(load: Callable[[], Configuration]) -> None:
                manager.notify_reloading()
                service.try_reload(load)
                manager.notify_ready(status)

            if load is not None:
                with suppress(NotImplementedError):
                    loop.add_signal_handler(signal.SIGHUP, reload, load)
                    handled.append(signal.SIGHUP)
            try:
                if ready is not None:
                    ready(service)
                manager.notify_ready(status)
                await stopping.wait()
                if not isinstance(service, Service) and service.failed.done():
                    raise service.failed.result()
            finally:
                manager.notify_stopping()
                remove_handlers()  # at once, so that a second Ctrl-C ends the process immediately
    except asyncio.CancelledError:
        if not is_start_cancelled:
            raise
        task.uncancel()
    finally:
        remove_handlers()
        manager.close()
