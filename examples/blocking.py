"""Publish three readings, and print them as a subscriber receives them. Without asyncio.

python examples/blocking.py [HOST:PORT]
"""

import sys

import godwit


def main(broker: str) -> None:
    with godwit.sync.connect(broker) as client, client.subscribe("home/#") as messages:
        for room, temperature in (("kitchen", 21.5), ("attic", 17), ("cellar", 12.25)):
            client.publish(f"home/{room}", {"temperature": temperature})  # a dict is sent as JSON
        for _ in range(3):
            message = messages.get(timeout_s=5)
            print(message.topic, message.json()["temperature"])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost")
