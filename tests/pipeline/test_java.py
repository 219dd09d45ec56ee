"""Which Java is taken, and what is said where there is none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from godwit.pipeline.java import OLDEST, Java, find_java, install_command, missing_text, version_in


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("command not found", None),
    ],
)
def test_versions(text: str, version: int | None) -> None:
    assert version_in(text) == version


def fake(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return folder


def test_the_first_that_is_new_enough_is_taken(tmp_path: Path) -> None:
    old, system = fake(tmp_path / "old", "11.0.2"), tmp_path / "jvm"
    good = fake(tmp_path / "good", "17.0.1")
    newest = fake(system / "java-21", "21.0.1")
    nothing = {"PATH": str(tmp_path)}
    assert find_java({"JAVA_HOME": str(good), **nothing}, system) == Java(good, 17)
    assert find_java({"JAVA_HOME": str(old), **nothing}, system) == Java(newest, 21)
    assert find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")}, system) == Java(good, 17)
    assert find_java({"JAVA_HOME": str(tmp_path / "gone"), **nothing}, tmp_path / "none") is None
    broken = fake(tmp_path / "broken", "17")
    (broken / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    assert find_java({"JAVA_HOME": str(broken), **nothing}, tmp_path / "none") is None


def test_where_there_is_none_the_exact_command_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert (install_command(0) or [])[0] == "apt-get"
    assert (install_command(1000) or [])[:2] == ["sudo", "apt-get"]
    assert " ".join(install_command(0) or []) in missing_text(0)
    assert str(OLDEST) in missing_text(0)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert install_command(0) is None
    assert "JAVA_HOME" in missing_text(0)
