"""Kill a sensor. The broker publishes its last will, and the subscriber prints it.

python examples/last_will.py [HOST:PORT]
"""

import subprocess
import sys

import godwit
from godwit.transport.config import EndpointConfig

TOPIC = "home/sensor-2/state"


async def sensor(broker: str) -> None:
    will = godwit.Will(topic=TOPIC, payload=b"offline", retain=True)
    quick = EndpointConfig(idle_timeout_s=1.0, keep_alive_s=0.25)  # a loss is detected after 1 s; default 30 s
    async with godwit.connect(broker, name="sensor-2", will=will, endpoint=quick) as client:
        await client.publish(TOPIC, "online", retain=True)
        async with client.subscribe("home/sensor-2/orders") as orders:
            async for order in orders:
                print(order.payload)


async def main(broker: str) -> None:
    async with godwit.connect(broker) as client, client.subscribe(TOPIC) as messages:
        process = subprocess.Popen([sys.executable, __file__, broker, "sensor"])
        async for message in messages:
            if message.retained:
                continue  # the state of an earlier run
            print(f"sensor-2 is {message.payload.decode()}")
            if message.payload == b"offline":
                break
            process.kill()
            process.wait()
            print("sensor-2 was killed")


if __name__ == "__main__":
    where = sys.argv[1] if len(sys.argv) > 1 else "localhost"
    godwit.run(sensor(where) if sys.argv[2:] == ["sensor"] else main(where))
