"""Publish three temperatures, and print the number of subscribers that each of them reached.

python examples/publish.py [HOST:PORT]
"""

import sys

import godwit


async def main(broker: str) -> None:
    async with godwit.connect(broker, name="sensor-1") as client:
        for temperature in ("21.5", "21.6", "21.4"):
            # QoS 1: returns when the broker has stored the message. Retained: later subscribers get the last one.
            reached = await client.publish("home/room1/temperature", temperature, retain=True)
            print(f"{temperature} is safe; subscribers reached: {reached}")


if __name__ == "__main__":
    godwit.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost"))
