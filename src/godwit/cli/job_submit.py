"""What `godwit job submit` does: a wish that is checked before anything is sent, and the job that comes of it."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Self

import typer

from godwit.cli.connecting import Target, ask, connected, run
from godwit.cli.job_text import accepted_text, check_seconds
from godwit.cli.text import safe, safe_json
from godwit.errors import GodwitError, UsageError
from godwit.limits import MAX_JOB_PAYLOAD_BYTES, MAX_PRIORITY, MAX_RETRIES
from godwit.net.job_options import JobOptions

if TYPE_CHECKING:
    from godwit.net.client import AsyncClient
    from godwit.net.jobs import AsyncJob

_LOOKS_LIKE_AN_OPTION: Final = re.compile(r"-[^\d.\s]")


@dataclass(frozen=True)
class Wish:
    """A job as a user wants it."""

    kind: str
    payload: bytes = b""
    key: str | None = None
    options: JobOptions = field(default_factory=JobOptions)

    @classmethod
    def of(cls, kind: str, payload: str | None, key: str | None, options: JobOptions, *, is_literal: bool) -> Self:
        """From the command line; UsageError for what cannot be, in its words, before anything is read or sent."""
        from godwit.broker.topics import check_kind

        check_kind(kind)
        _check_number("--priority", options.get("priority", 0), -MAX_PRIORITY, MAX_PRIORITY)
        _check_number("--retries", options.get("retries", 0), 0, MAX_RETRIES)
        delay_s, deadline_s = options.get("delay_s", 0.0), options.get("deadline_s")
        check_seconds("--delay", delay_s, least_s=0.0)
        check_seconds("--deadline", deadline_s)
        check_seconds("--retry-delay", options.get("retry_delay_s"), least_s=0.0)
        check_seconds("--time-limit", options.get("time_limit_s"))
        if deadline_s is not None and deadline_s <= delay_s:
            raise UsageError(f"--deadline {deadline_s:g} is over before --delay {delay_s:g} is; give it more time")
        return cls(kind, read_payload(payload, is_literal=is_literal), key, options)

    async def submit(self, client: AsyncClient) -> AsyncJob:
        return await client.submit(self.kind, self.payload, key=self.key, **self.options)


def _check_number(option: str, number: int, least: int, most: int) -> None:
    if not least <= number <= most:
        raise UsageError(f"{option} {number} cannot be; give a number from {least:,} to {most:,}")


def submit_job(target: Target, wish: Wish, *, wait: bool, as_json: bool, quiet: bool) -> None:
    """The whole command."""
    if wait:
        run(_submit_and_follow(target, wish, as_json=as_json, quiet=quiet))
        return
    job = ask(target, wish.submit)
    if as_json:
        import msgspec

        fields = {"job": job.number, "key": job.key, "kind": job.kind, "state": job.state, "agreed": job.agreed}
        typer.echo(safe_json(msgspec.json.encode(fields)).decode())
        return
    typer.echo(job.number)
    if not quiet:
        typer.echo(accepted_text(job), err=True)


async def _submit_and_follow(target: Target, wish: Wish, *, as_json: bool, quiet: bool) -> None:
    from godwit.cli.job_follow import follow

    async with connected(target) as client:
        await follow(await wish.submit(client), as_json=as_json, quiet=quiet)


def read_payload(text: str | None, *, is_literal: bool = False) -> bytes:
    """What is to be worked on: a text, standard input (-), or the content of a file (@FILE).

    `is_literal`: it stood behind --, so that it is no option, whatever it looks like.
    """
    if text is None:
        return b""
    if text == "-":
        return _bounded(sys.stdin.buffer, "standard input")
    if text.startswith("@"):
        path = Path(text[1:])
        try:
            with path.open("rb") as file:
                return _bounded(file, safe(str(path)))
        except OSError as error:
            raise GodwitError(
                f"cannot read {path}: {error.strerror or error}; check the path, or give a payload that begins with @ "
                "through standard input (-)"
            ) from error
    if _LOOKS_LIKE_AN_OPTION.match(text) and not is_literal:
        raise UsageError(f"there is no option {text}; if it is a payload, put -- before it")
    # What was no UTF-8 on the command line goes out as the bytes that it was.
    return _checked(text.encode("utf-8", "surrogateescape"), "the payload")


def _bounded(file: IO[bytes], what: str) -> bytes:
    return _checked(file.read(MAX_JOB_PAYLOAD_BYTES + 1), what)


def _checked(payload: bytes, what: str) -> bytes:
    if len(payload) > MAX_JOB_PAYLOAD_BYTES:
        raise UsageError(
            f"{what} is longer than {MAX_JOB_PAYLOAD_BYTES:,} bytes, the most that a job carries; send it as a file "
            "(godwit pub --file), and name that in the job"
        )
    return payload
