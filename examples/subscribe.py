"""Print the temperatures of all rooms until Ctrl-C.

python examples/subscribe.py [HOST:PORT]
"""

import sys

import godwit


async def main(broker: str) -> None:
    async with godwit.connect(broker) as client, client.subscribe("home/+/temperature") as messages:
        print("waiting for temperatures", flush=True)
        async for message in messages:  # reconnects automatically, without losing messages
            print(f"{message.topic}: {message.text} (from {message.publisher})", flush=True)


if __name__ == "__main__":
    try:
        godwit.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost"))
    except KeyboardInterrupt:
        print("bye")
