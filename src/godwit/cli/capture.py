"""`godwit capture`, `flow` and `dissector`: record packets of a broker, and show them here and in Wireshark."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from godwit.cli.connection import (
    DEFAULT_BROKER,
    REQUEST_TIMEOUT_S,
    ArqOption,
    BrokerOption,
    NameOption,
    SecretOption,
    Target,
    TimeoutOption,
    connected,
    run,
)
from godwit.cli.new_file import check_free, new_file
from godwit.cli.text import count, safe
from godwit.errors import GodwitError, UsageError

if TYPE_CHECKING:
    from godwit.capture.key_log import KeyLog

DISSECTOR: Final = "godwit.lua"
MAX_CAPTURE_BYTES: Final = 1024 * 1024 * 1024
"""A capture is read as a whole."""
FORMS: Final = (".svg", ".html", ".txt")

dissector_app = typer.Typer(no_args_is_help=True)


def register(root: typer.Typer) -> None:
    """Add `godwit capture`, `godwit flow` and `godwit dissector`."""
    root.command("capture", epilog="Example: godwit capture -o a.pcapng --seconds 10 --filter client=sensor-1")(capture)
    root.command("flow", epilog="Example: godwit flow capture.pcapng -o flow.svg --address 192.0.2.7:40001")(flow)
    root.add_typer(dissector_app, name="dissector")


# -- capture ----------------------------------------------------------------------------------------------------------


def capture(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", readable=False, help="File to create, pcapng.")
    ],
    seconds: Annotated[int, typer.Option(metavar="N", min=1, max=3600, help="Duration in seconds.")] = 30,
    size: Annotated[int, typer.Option(metavar="MIB", min=1, max=1024, help="Largest size of the file in MiB.")] = 16,
    packet_bytes: Annotated[
        int, typer.Option(metavar="N", min=32, max=65_535, help="Bytes of a packet that are recorded.")
    ] = 65_535,
    filter: Annotated[
        str,
        typer.Option(
            metavar="CONDITIONS",
            help="Only such packets: host=ADDRESS, port=N, client=NAME, direction=in or out; all must hold.",
            show_default="all packets",
        ),
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
) -> None:
    """Record the packets that a broker receives and sends, for Wireshark and godwit flow.

    This needs the right to kick. The packets of this command itself are left out. The file is complete after the time,
    when it has its largest size, or after Ctrl-C. Packets that would slow the broker down are counted, not recorded.
    """
    check_free(output, force=force)
    target = Target.of(broker, name, secret_file, timeout, arq)
    with new_file(output, force=force) as part:
        packets, dropped, error = run(_capture(target, part, seconds, size * 1024 * 1024, packet_bytes, filter))
    typer.echo(f"{safe(str(output))}: {count(packets, 'packet')}, {count(output.stat().st_size, 'byte')}", err=True)
    if dropped:
        typer.echo(f"{count(dropped, 'packet')} could not be recorded: choose fewer with --filter", err=True)
    if error is not None:
        raise error


async def _capture(
    target: Target, part: Path, seconds: int, max_bytes: int, packet_bytes: int, filter: str
) -> tuple[int, int, GodwitError | None]:
    """Write the packets. Return their number, that of packets that are missing, and the error that ended the capture.

    Raises an error that came before the first packet, after which there is nothing to keep.
    """
    from contextlib import aclosing

    from godwit.capture.pcapng import count_packets
    from godwit.net.captures import capture_counts, capture_packets

    packets, last = 0, b""
    problem: GodwitError | None = None
    with part.open("wb", buffering=0) as file:
        try:
            async with (
                connected(target) as client,
                aclosing(
                    capture_packets(
                        client, seconds=seconds, max_bytes=max_bytes, packet_bytes=packet_bytes, filter=filter
                    )
                ) as pieces,
            ):
                async for piece in pieces:
                    file.write(piece)
                    packets += count_packets(piece)
                    last = piece
        except asyncio.CancelledError:  # Ctrl-C or SIGTERM
            if not last:
                raise
        except GodwitError as error:
            if not last:
                raise
            problem = error
    return packets, capture_counts(last)[1], problem


# -- flow -------------------------------------------------------------------------------------------------------------


def flow(
    capture: Annotated[Path, typer.Argument(metavar="CAPTURE", readable=False, help="File of pcapng or pcap.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            readable=False,
            help="File to write, .svg, .html or .txt.",
            show_default="text on standard output",
        ),
    ] = None,
    address: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST[:PORT]", help="Only packets from or to this address; may be repeated.", show_default="all"
        ),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="Largest number of packets.")] = 500,
    key_log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            readable=False,
            help="File that GODWIT_KEY_LOG named for the broker or a client: show the frames of sealed packets.",
            show_default="none",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Draw the packets of a capture as a sequence diagram, with one lane for each address.

    It marks packets that were lost, sent again, duplicated or damaged, and what each acknowledgement covers. Packets
    of other protocols are left out. Captures of godwit, tcpdump and Wireshark can be read; of a damaged one, the
    packets before the damage are shown.
    """
    from godwit.capture.conversation import CaptureReader, read_reports
    from godwit.capture.flow import as_html, as_svg, as_text, make_diagram
    from godwit.capture.pcapng import CapturedDatagram, CaptureError, read_capture
    from godwit.wire.packet import VERSION

    if output is not None:
        if output.suffix.lower() not in FORMS:
            raise UsageError(f"{output} has no known form; name a file that ends in {', '.join(FORMS)}")
        check_free(output, force=force)
    wanted = [_parse_address(text) for text in address or ()]

    def is_wanted(one: CapturedDatagram) -> bool:
        is_ours = bool(one.data) and one.data[0] >> 4 == VERSION
        return is_ours and (not wanted or any(_matches(end, wanted) for end in (one.source, one.destination)))

    datagrams: list[CapturedDatagram] = []
    try:
        datagrams.extend(one for one in read_capture(_read(capture)) if is_wanted(one))
    except CaptureError as error:
        if not datagrams:
            raise GodwitError(f"{safe(str(capture))}: {error}") from error
        typer.echo(f"{safe(str(capture))}: {error}; the packets before are shown", err=True)
    reader = CaptureReader(None if key_log is None else _read_keys(key_log))
    reports = read_reports(datagrams, reader)
    if not reports:
        raise GodwitError(f"{safe(str(capture))} has no such packets of the native protocol; check it and --address")
    if key_log is not None and not reader.opened:
        typer.echo(
            f"{safe(str(key_log))} opens no packet: it must be of these connections, and the capture must have their "
            "handshakes",
            err=True,
        )
    diagram = make_diagram(reports, limit)
    if output is None:
        typer.echo(as_text(diagram), nl=False)
        return
    form = output.suffix.lower()
    if form == ".html":
        text = as_html(diagram, f"Packets of {capture.name}")
    else:
        text = as_svg(diagram) if form == ".svg" else as_text(diagram)
    with new_file(output, force=force) as part:
        part.write_text(text, encoding="utf-8")
    typer.echo(f"{safe(str(output))}: {count(len(diagram.rows), 'packet')}", err=True)


def _read_keys(path: Path) -> KeyLog:
    from godwit.capture.key_log import KeyLog
    from godwit.net.tls import ordered_suites

    keys = KeyLog(_read(path).decode("utf-8", "replace"), ordered_suites())
    if not keys:
        raise GodwitError(f"{safe(str(path))} has no secrets; name the file that GODWIT_KEY_LOG named")
    return keys


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_CAPTURE_BYTES:
            raise GodwitError(f"{safe(str(path))} is larger than 1 GiB; cut it, as with editcap or tshark -Y")
        return path.read_bytes()
    except OSError as error:
        raise GodwitError(f"cannot read {safe(str(path))}: {error.strerror}; check the path") from error


def _parse_address(text: str) -> tuple[str, int | None]:
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        return text.strip("[]"), None
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"--address {text} is not HOST or HOST:PORT; write it as 192.0.2.7 or 192.0.2.7:40001")
    return host.strip("[]"), int(port)


def _matches(end: tuple[str, int], wanted: list[tuple[str, int | None]]) -> bool:
    return any(end[0] == host and port in (None, end[1]) for host, port in wanted)


# -- dissector --------------------------------------------------------------------------------------------------------


@dissector_app.callback(epilog="Example: godwit dissector install")
def dissector_group() -> None:
    """Install the dissector for Wireshark, or print its path."""


@dissector_app.command("path", epilog="Example: tshark -X lua_script:$(godwit dissector path) -r capture.pcapng")
def dissector_path() -> None:
    """Print the path of the dissector, a program in Lua for Wireshark and tshark."""
    typer.echo(str(_dissector()))


@dissector_app.command("install", epilog="Example: godwit dissector install")
def install_dissector(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="DIR",
            readable=False,
            help="Folder of plugins.",
            show_default="your folder of Wireshark's plugins",
        ),
    ] = None,
) -> None:
    """Copy the dissector to Wireshark's plugins. An older version of it is replaced.

    Wireshark and tshark then show packets on port 50000, and on any port if their checksum is right.
    """
    target = (folder or plugins_folder(os.environ, Path.home())) / DISSECTOR
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GodwitError(f"cannot create {safe(str(target.parent))}: {error.strerror}; choose --folder") from error
    with new_file(target, force=True) as part:
        shutil.copyfile(_dissector(), part)
    typer.echo(f"installed {safe(str(target))}; restart Wireshark, or reload its Lua plugins")


def plugins_folder(environment: Mapping[str, str], home: Path) -> Path:
    """Return the user's folder of Wireshark's plugins on this system."""
    if sys.platform == "win32":
        return Path(environment.get("APPDATA", home)) / "Wireshark" / "plugins"
    return home / ".local" / "lib" / "wireshark" / "plugins"


def _dissector() -> Path:
    return Path(str(files("godwit.capture") / DISSECTOR))
