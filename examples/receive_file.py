"""Receive the files that are sent to the topic `files` into a folder, until Ctrl-C.

python examples/receive_file.py FOLDER [HOST:PORT]
"""

import sys

import godwit


async def main(folder: str, broker: str) -> None:
    # The broker stores the subscription of a named client: after a disconnect the rest of a file arrives.
    async with (
        godwit.connect(broker, name="file-receiver") as client,
        client.receive_files("files", folder=folder, on_problem=print, keep=True) as files,
    ):
        print("waiting for files", flush=True)
        async for file in files:  # each when it is complete and its hash is correct
            print(f"{file.path.name}: {file.size_bytes:,} bytes, SHA-256 {file.sha256.hex()}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python examples/receive_file.py FOLDER [HOST:PORT]")
    try:
        godwit.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "localhost"))
    except godwit.GodwitError as error:  # the text has the cause and the remedy
        sys.exit(str(error))
    except KeyboardInterrupt:
        print("bye")
