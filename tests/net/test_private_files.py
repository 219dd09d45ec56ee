"""Permissions of the data folder, keys and secrets: repaired, or refused with a sentence."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.net.running import Notices, configuration, run

from godwit.cli.broker import load_file
from godwit.errors import ConfigurationError
from godwit.net.private_files import protect_files, protect_folder
from godwit.net.service import Service

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such permissions")

CONFIG = """
[archive]
token_file = "tokens"
[[access.client]]
name = "a"
secret_file = "a.secret"
[[access.rule]]
clients = ["a"]
allow = ["publish"]
topics = ["#"]
"""


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def secret_file(path: Path, mode: int) -> Path:
    path.write_text("a long and random secret\n")
    path.chmod(mode)
    return path


def refuse_changes(monkeypatch: pytest.MonkeyPatch, error: OSError | None) -> None:
    """A file of another user, or (None) a file system without permissions."""

    def chmod(path: Path, mode: int) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(Path, "chmod", chmod)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o777])
def test_rights_of_others_are_removed(tmp_path: Path, mode: int) -> None:
    path = secret_file(tmp_path / "s", mode)
    (text,) = protect_files([path, path])
    assert text.startswith(f"other users could read or change {path} (mode {mode:o}), which has secrets")
    assert mode_of(path) == mode & 0o700
    assert protect_files([path]) == []


@pytest.mark.parametrize("error", [PermissionError(1, "not permitted"), None], ids=["refused", "ignored"])
def test_rights_that_cannot_be_removed_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError | None
) -> None:
    path = secret_file(tmp_path / "s", 0o644)
    folder = tmp_path / "data"
    folder.mkdir(0o755)
    refuse_changes(monkeypatch, error)
    with pytest.raises(ConfigurationError, match=r"other users can read or change .*chmod o= .*replace the secrets"):
        protect_files([path])
    with pytest.raises(ConfigurationError, match=r"other users can read the data folder .*chmod go= "):
        protect_folder(folder)


def test_a_group_may_read_a_file_of_another_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = secret_file(tmp_path / "s", 0o640)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert protect_files([path]) == []
    assert mode_of(path) == 0o640


def test_missing_files_and_pipes_are_left_alone(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o666)
    assert protect_files([tmp_path / "missing", pipe]) == []
    assert protect_folder(tmp_path / "missing") == []


def test_a_shared_folder_is_refused_and_not_changed(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    with pytest.raises(ConfigurationError, match="give the broker a folder of its own"):
        protect_folder(folder)
    assert mode_of(folder) == 0o1777


def test_a_broker_repairs_its_files_at_the_start_and_on_reload(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(CONFIG)
    token, secret = secret_file(tmp_path / "tokens", 0o644), secret_file(tmp_path / "a.secret", 0o604)
    data = tmp_path / "data"
    data.mkdir(0o750)
    loaded = replace(load_file(config, ["127.0.0.1:0"]), data=data)
    assert set(loaded.private_files) == {token, secret}

    async def test() -> None:
        notices = Notices()
        async with Service(replace(loaded, archive=replace(loaded.archive, is_on=False)), notices=notices) as broker:
            found = [text for text in notices.texts("warning") if text.startswith("other users could")]
            assert len(found) == 3
            assert [mode_of(path) for path in (token, secret, data)] == [0o600, 0o600, 0o700]
            secret.chmod(0o644)
            broker.try_reload(lambda: broker.configuration)
            assert mode_of(secret) == 0o600

    run(test)


def test_a_configuration_with_secrets_is_private_too(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(CONFIG.replace('secret_file = "a.secret"', 'secret = "a long and random secret"'))
    assert config in load_file(config, []).private_files
    config.write_text('listen = ["127.0.0.1:0"]\n')
    assert load_file(config, []).private_files == ()


def test_a_broker_does_not_start_with_a_secret_that_others_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = secret_file(tmp_path / "s", 0o644)
    refuse_changes(monkeypatch, PermissionError(1, "not permitted"))

    async def test() -> None:
        with pytest.raises(ConfigurationError, match="other users can read or change"):
            await Service(replace(configuration(), private_files=(path,))).start()

    run(test)
