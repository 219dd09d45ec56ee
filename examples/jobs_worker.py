"""Run a worker that reverses texts and counts their words, until Ctrl-C. Start any number, each with its own name.

python examples/jobs_worker.py NAME [HOST:PORT]
"""

import asyncio
import sys

import godwit


def main(name: str, broker: str) -> None:
    worker = godwit.Worker(broker, name=name, capacity=2)  # two tasks at once

    @worker.handles("text/reverse")
    async def reverse(task: godwit.Task) -> str:
        text = task.payload.decode()
        for done in range(len(text)):
            task.progress(done / len(text), f"letter {done}")
            await asyncio.sleep(0.01)  # simulated work
        return text[::-1]

    worker.handles("text/count", command=["wc", "-w"])  # payload to standard input, result from standard output

    print(f"{name} waits for work", flush=True)
    worker.run_forever()  # Ctrl-C returns unfinished tasks, and other workers do them
    print("bye")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python examples/jobs_worker.py NAME [HOST:PORT]")
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "localhost")
