"""Send a file to all receivers on the topic `files`. If interrupted, start it again: the transfer resumes.

python examples/send_file.py FILE [HOST:PORT]
"""

import sys

import godwit


def show(done_bytes: int, total_bytes: int) -> None:
    print(f"\r{done_bytes:,} of {total_bytes:,} bytes", end="", file=sys.stderr)


async def main(path: str, broker: str) -> None:
    async with godwit.connect(broker) as client:
        sent = await client.send_file("files", path, progress=show)
        print(file=sys.stderr)
        print(f"{sent.name}: {sent.size_bytes:,} bytes are safe, SHA-256 {sent.sha256.hex()}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python examples/send_file.py FILE [HOST:PORT]")
    try:
        godwit.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "localhost"))
    except godwit.GodwitError as error:  # the text has the cause and the remedy
        sys.exit(str(error))
