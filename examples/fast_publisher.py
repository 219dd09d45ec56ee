"""Sends 100,000 messages the fast way, and waits until the broker has all of them safe.

python examples/fast_publisher.py [HOST:PORT]
"""

import sys

import godwit

COUNT = 100_000


async def main(broker: str) -> None:
    async with godwit.connect(broker) as client:
        publisher = client.publisher("load/test")
        for number in range(COUNT):
            payload = f"message {number}".encode()
            try:
                publisher.send(payload)  # no await: full batches go by themselves
            except godwit.BufferFull:
                await publisher.ready()  # room again
                publisher.send(payload)
        await publisher.flush()  # all confirmed
        print(f"{COUNT:,} messages are safe")


if __name__ == "__main__":
    godwit.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost"))
