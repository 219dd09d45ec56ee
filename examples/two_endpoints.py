"""Connect two endpoints over loopback: the client sends three records, the server prints them and closes.

python examples/two_endpoints.py
"""

import asyncio
import os

from godwit.net.driver import EndpointDriver
from godwit.net.loop import run
from godwit.net.udp import UdpSocket
from godwit.transport.config import EndpointConfig
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Closed, Connected, Event, Received


def open_endpoint(*, accepts: bool) -> tuple[Endpoint, UdpSocket]:
    udp = UdpSocket("127.0.0.1")  # on a free port
    config = EndpointConfig(accepts=accepts, receive_buffer_bytes=udp.receive_buffer_bytes)
    return Endpoint(config, entropy=os.urandom), udp


async def main() -> None:
    over = asyncio.Event()

    def serve(events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Received):
                print(f"server: channel {event.channel}, record {event.record}: {event.body.decode()}")
                event.connection.consume(event.channel, len(event.body))  # renews the credit of the client
                if event.last:
                    event.connection.close(server.clock(), reason="thank you")

    def talk(events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Connected):
                channel = event.connection.open_channel()
                event.connection.send(channel, b"21.5")
                event.connection.send(channel, b"21.6")
                event.connection.send(channel, b"21.4", last=True)  # closes the channel
            elif isinstance(event, Closed):
                print(f"client: the {event.origin} closed: {event.reason}")
                over.set()

    server_endpoint, server_udp = open_endpoint(accepts=True)
    server = EndpointDriver(server_endpoint, server_udp, serve)
    client_endpoint, client_udp = open_endpoint(accepts=False)
    client = EndpointDriver(client_endpoint, client_udp, talk)

    client_endpoint.connect(server_udp.local_address, client.clock())
    client.flush()  # send pending packets after calling the endpoint outside of the driver
    await asyncio.wait_for(over.wait(), timeout=10)
    client.close()
    server.close()


if __name__ == "__main__":
    run(main())
