"""Send 100,000 messages in batches, and wait until the broker has confirmed all of them.

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
                publisher.send(payload)  # without await: full batches are sent automatically
            except godwit.BufferFull:
                await publisher.ready()  # wait for free space in the buffer
                publisher.send(payload)
        await publisher.flush()  # wait until the broker has confirmed all
        print(f"{COUNT:,} messages are safe")


if __name__ == "__main__":
    godwit.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost"))
