"""The archive of a broker, as the configuration describes it: its command, and warnings about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from godwit.broker.effects import Import, Notice
from godwit.net.address import format_address, is_loopback, parse_broker
from godwit.net.archive_process import ArchiveProcess, archive_command, missing_archive_packages
from godwit.net.listener_tls import check_certificate
from godwit.net.service_warnings import archive_not_installed, archive_open_to_all, archive_without_tls
from godwit.server.configuration import ArchiveSection, Configuration
from godwit.store.folder import DataFolder
from godwit.transport.events import Address

MAX_PORT: Final = 65_535


class Notices(Protocol):
    """The destination of event lines: godwit.net.notices.NoticeWriter, or a test."""

    def write(self, kind: str, text: str, fields: dict[str, Any]) -> None: ...


class BrokerArchive:
    """Keeps the archive of a data folder running."""

    def __init__(
        self,
        folder: DataFolder,
        notices: Notices,
        *,
        import_staged: Callable[[Import], None],
        on_notice: Callable[[Notice], None],
    ) -> None:
        """Make an archive that is not running.

        Args:
            folder: The data folder.
            notices: Receives the lines about its configuration.
            import_staged: Called with the staged messages of a commit; `process.answer` must be called then.
            on_notice: Called with the lines of the process.
        """
        self._folder = folder
        self._notices = notices
        self._is_missing = False
        """Whether a line has reported that its packages are not installed."""
        self.import_staged = import_staged
        """The present receiver of staged messages."""
        self.process = ArchiveProcess(folder.stages_path, import_staged=self._import, on_notice=on_notice)

    def _import(self, event: Import) -> None:
        self.import_staged(event)

    def run(self, configuration: Configuration, addresses: Sequence[Address]) -> bool:
        """Run the archive of the configuration, and no other. Return whether there is one."""
        command = self._command(configuration, addresses)
        section = configuration.archive
        files: list[Path] = []
        if command is not None and section.certificate is not None and section.key is not None:
            files = [section.certificate, section.key]
            if self.process.url:  # a running archive has read its files, and is not given up for unusable ones
                try:
                    check_certificate(*files)
                except OSError as error:
                    text = f"the archive stays as it was: {error}; check {files[0]} and {files[1]}"
                    self._notices.write("warning", text, {})
                    return True
        self.process.run(command, files)
        return command is not None

    def _command(self, configuration: Configuration, addresses: Sequence[Address]) -> Sequence[str] | None:
        section = configuration.archive
        if not section.is_on:
            return None
        if missing := missing_archive_packages():
            if not self._is_missing:  # once, and not each time the configuration is read again
                self._is_missing = True
                is_configured = section != ArchiveSection()
                self._notices.write("warning" if is_configured else "log", archive_not_installed(missing), {})
            return None
        if not configuration.settings.access.is_open and section.token_file is None:
            self._notices.write(
                "warning",
                "there are access rules and no tokens for the archive, so it does not run: "
                'give a token_file under [archive] in the configuration, or say listen = "none" there',
                {},
            )
            return None
        listen = archive_address(configuration.listen[0], addresses[0])
        if section.listen is not None:
            listen = format_address(parse_broker(section.listen))
        if not is_local(listen):
            if section.token_file is None:
                self._notices.write("warning", archive_open_to_all(listen), {})
            elif section.certificate is None:
                self._notices.write("warning", archive_without_tls(listen), {})
        return archive_command(self._folder.log_path, self._folder.stages_path, listen, section)


def archive_address(listen: str, address: Address) -> str:
    """Return where the archive listens by default: on the first listener's host, and its port plus one."""
    host, port = parse_broker(listen)
    after = address[1] + 1 if 0 < port < MAX_PORT else 0
    return f"[{host}]:{after}" if ":" in host else f"{host}:{after}"


def is_local(listen: str) -> bool:
    """Return whether only this machine can reach the address. For names other than localhost it returns False."""
    host, _ = parse_broker(listen)
    try:
        return host == "localhost" or is_loopback((host, 0))
    except ValueError:
        return False
