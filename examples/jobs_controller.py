"""Has work done by all workers there are, and watches it. Start one or more of examples/jobs_worker.py too.

python examples/jobs_controller.py [HOST:PORT]
"""

import sys

import godwit


async def main(broker: str) -> None:
    async with godwit.connect(broker, name="controller") as client:
        job = await client.submit("text/reverse", "never odd or even", workers="all")  # safe at the broker now
        async for update in job:  # without a worker it waits for the first one
            if update.what == "result":
                print(f"{update.worker} says: {(update.result or b'').decode()}")
        print(f"{job.agreed} of {job.agreed} done")

        counts = await client.submit_many([("text/count", "one"), ("text/count", "one two")])  # the quick way for many
        for job in counts:
            for result in await job.results():
                print(f"job {job.number} has words: {result.payload.decode().strip()}")


if __name__ == "__main__":
    godwit.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost"))
