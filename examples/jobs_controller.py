"""Submit a job to all connected workers, and print its results. Start one or more examples/jobs_worker.py as well.

python examples/jobs_controller.py [HOST:PORT]
"""

import sys

import godwit


async def main(broker: str) -> None:
    async with godwit.connect(broker, name="controller") as client:
        job = await client.submit("text/reverse", "never odd or even", workers="all")  # stored by the broker
        async for update in job:  # without a worker, the job waits for the first one
            if update.what == "result":
                print(f"{update.worker}: {(update.result or b'').decode()}")
        print(f"{job.agreed} of {job.agreed} done")

        counts = await client.submit_many([("text/count", "one"), ("text/count", "one two")])  # faster for many
        for job in counts:
            for result in await job.results():
                print(f"job {job.number} has words: {result.payload.decode().strip()}")


if __name__ == "__main__":
    godwit.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost"))
