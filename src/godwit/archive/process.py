"""The archive as a process: its arguments, its beginning and its end.

The broker starts it. They talk over its standard input and output (godwit.server.archive_pipe), and it ends when the
broker does, whatever its clients are doing.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from godwit.archive.actions import Actions
from godwit.archive.memory import bound_memory, keep_freed_memory
from godwit.archive.pipe import BrokerPipe
from godwit.archive.readers import Readers
from godwit.archive.server import ArchiveServer
from godwit.archive.stages import Stages
from godwit.archive.tokens import TokenFile
from godwit.errors import ConfigurationError, GodwitError, SocketError

EXPIRY_PERIOD_S: Final = 60.0
OOM_SCORE: Final = "1000"
"""If the machine runs out of memory, the archive ends and is started again; the broker goes on."""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    broker_fd = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing that a library prints gets between the messages
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    keep_freed_memory()
    bound_memory()
    ended = threading.Event()
    pipe = BrokerPipe(sys.stdin.fileno(), broker_fd, ended.set)
    try:
        stages = Stages(options.stages)
        server, url = _serve(options, stages, pipe)
    except (GodwitError, OSError) as error:
        pipe.log("warning", f"the archive cannot start: {error}")
        return 1
    pipe.start()
    pipe.ready(url)
    while not ended.wait(EXPIRY_PERIOD_S):
        if count := stages.expire(time.time()):
            pipe.log("info", f"removed {count} stages that nobody has committed")
        if count := server.expire_uploads():
            pipe.log("info", f"ended {count} connections whose uploads stood still")
    os._exit(0)  # without waiting for clients that do not read on


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m godwit.archive", description=__doc__)
    parser.add_argument("--log", type=Path, required=True, help="the log's file")
    parser.add_argument("--stages", type=Path, required=True, help="the folder of staged writes")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="where to serve; port 0: any")
    parser.add_argument(
        "--token-file",
        type=Path,
        help="tokens and rights; without it everybody may read and write",
    )
    parser.add_argument("--certificate", type=Path, help="serve with TLS: the certificate, PEM")
    parser.add_argument("--key", type=Path, help="and its private key, PEM")
    return parser


def _serve(options: argparse.Namespace, stages: Stages, pipe: BrokerPipe) -> tuple[ArchiveServer, str]:
    """The server at work, and its address."""
    if (options.certificate is None) != (options.key is None):
        raise ConfigurationError("a certificate needs its key and a key its certificate: give both or none")
    certificate = None
    if options.certificate is not None:
        certificate = (options.certificate.read_bytes(), options.key.read_bytes())
    scheme = "grpc" if certificate is None else "grpc+tls"
    tokens = None
    if options.token_file is not None:
        tokens = TokenFile(options.token_file, lambda text: pipe.log("warning", text))
    readers = Readers(options.log)
    host, _, port = options.listen.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigurationError(f"{options.listen!r} is no address: give HOST:PORT, as in 127.0.0.1:50001")
    try:
        server = ArchiveServer(
            f"{scheme}://{host}:{port}",
            readers=readers,
            stages=stages,
            actions=Actions(readers, stages, pipe),
            tell=lambda text: pipe.log("warning", text),
            tokens=tokens,
            certificate=certificate,
        )
    except pa.ArrowException as error:
        raise SocketError(
            f"cannot listen on {scheme}://{host}:{port}: {error}; the port may be in use, or the certificate bad"
        ) from error
    return server, f"{scheme}://{host}:{server.port}"
