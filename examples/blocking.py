"""Publish three messages without asyncio, and read them back.

python examples/blocking.py [HOST:PORT]
"""

import sys

import godwit


def main(broker: str) -> None:
    with godwit.sync.connect(broker) as client, client.subscribe("notes/#", timeout_s=5) as messages:
        for text in ("one", "two", "three"):
            client.publish("notes/today", text)
        for number, message in enumerate(messages, 1):  # ends when no message arrives for 5 seconds
            print(f"{number}: {message.payload.decode()}")
            if number == 3:
                break


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost")
