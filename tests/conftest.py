"""Settings that hold for all tests."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import settings
from hypothesis.configuration import set_hypothesis_home_dir

from godwit.compiled_core import describe_form, is_compiled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.net.cluster_nodes import Cluster
    from tests.net.nats_servers import NatsServers

# A shell without job control starts background commands with SIGINT ignored, and their children inherit that: commands
# of the tests would not notice Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hypothesis remembers failing examples in the current folder, which may be a checkout that cannot be written to.
if "HYPOTHESIS_STORAGE_DIRECTORY" not in os.environ and not os.access(Path.cwd(), os.W_OK):
    set_hypothesis_home_dir(Path(tempfile.gettempdir()) / f"godwit-hypothesis-{os.getuid()}")

# A deadline per example measures how busy the machine is, not the code. On a build machine the examples are the same
# in each run, so that a red build is about the change; by hand they are fresh ones, so that they find something new.
# A failing example is printed with the line that replays it (print_blob).
# GODWIT_HYPOTHESIS_PROFILE=soak searches for long.
settings.register_profile("local", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("soak", deadline=None, print_blob=True, max_examples=5_000)
settings.load_profile(os.environ.get("GODWIT_HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "local"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs Java where there is none; where CI is set it fails, so that nothing is left out unnoticed."""
    if item.get_closest_marker("java") is None and "spark" not in getattr(item, "fixturenames", ()):
        return
    if reason := missing_java():
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show in which form the core ran: after an edit it is interpreted, until it is compiled again."""
    terminalreporter.write_line(f"core: {describe_form()}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--replacing", metavar="FILE", help="write a list of tests that need the interpreted core")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with tests that take long and mostly wait, so that no worker ends long after the others."""
    order = {folder: place for place, folder in enumerate(_SLOWEST)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("/")[2].partition("/")[0], len(order)))


_replacing: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect the tests that were skipped because they replace a part of a compiled module."""
    if report.skipped and _REPLACES in str(report.longrepr):
        _replacing.add(report.nodeid.partition("[")[0])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write their names, as arguments of pytest."""
    path = session.config.getoption("--replacing")
    if path and not hasattr(session.config, "workerinput"):
        Path(path).write_text("".join(f"{name}\n" for name in sorted(_replacing)), encoding="utf-8")


def _modules_of(target: object) -> tuple[str, ...]:
    """Return the names of modules that the target of a patch can belong to."""
    if isinstance(target, str):
        return target.rpartition(".")[0], target.rpartition(".")[0].rpartition(".")[0]
    if isinstance(target, ModuleType):
        return (target.__name__,)
    return ((target if isinstance(target, type) else type(target)).__module__,)


_REPLACES: Final = "replaces a part of a compiled module"
_SLOWEST: Final = ("system", "spark", "pipeline", "bench", "docs", "cli", "archive", "net", "sim")
_set_attribute: Final[Callable[..., None]] = pytest.MonkeyPatch.setattr


def _set_attribute_or_skip(self: pytest.MonkeyPatch, target: object, *arguments: Any, **options: Any) -> None:
    """Skip a test that replaces a part of a compiled module, where it has no effect. `make test` runs both forms."""
    if any(is_compiled(module) for module in _modules_of(target)):
        pytest.skip(_REPLACES)
    _set_attribute(self, target, *arguments, **options)


pytest.MonkeyPatch.setattr = _set_attribute_or_skip  # type: ignore[method-assign]


@cache
def missing_java() -> str:
    """Return why there is no Java, and how to get one. If there is one, PySpark is told where."""
    from godwit.pipeline.java import find_java, missing_text

    found = find_java(os.environ)
    if found is None:
        return missing_text(os.getuid())
    os.environ.update(found.variables)
    return ""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session for all tests that need one; it is made when the first of them asks."""
    import godwit.spark
    from tests.spark.session import small_session

    session = small_session()
    godwit.spark.register(session)
    yield session
    session.stop()


@pytest.fixture(autouse=True, scope="session")
def own_state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let brokers without a data folder store their keys in a folder of the tests, and not in the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[NatsServers]:
    """Return three NATS servers that run, as the engine of a cluster."""
    from tests.net.nats_servers import NatsServers

    made = NatsServers(tmp_path)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def cluster(servers: NatsServers, tmp_path: Path) -> Iterator[Cluster]:
    """Return three nodes with these servers, which are not started."""
    from tests.net.cluster_nodes import Cluster

    made = Cluster(tmp_path, servers)
    yield made
    made.stop()
