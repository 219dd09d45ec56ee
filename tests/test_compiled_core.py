"""The compiled core: its use, its sources and its build."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import hatch_build
import pytest

from godwit import compiled_core
from godwit.compiled_core import PACKAGES, c_files, is_compiled, source_digest, source_files
from tests.cli.real import environment

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "godwit"
SHOW = """
from godwit.compiled_core import describe_form
from godwit.wire import batch
print(describe_form(), batch.__file__)
"""


def fake_core(folder: Path, digest: str, python: str = sys.implementation.cache_tag or "") -> str:
    """Make a compiled core without modules that claims a digest. Return the PYTHONPATH that finds it first."""
    core = folder / "godwit_core"
    core.mkdir()
    (core / "__init__.py").write_text(f"DIGEST = {digest!r}\nPYTHON = {python!r}\nMODULES = {{'godwit.none': ''}}\n")
    return str(folder)


def show(**variables: str) -> subprocess.CompletedProcess[str]:
    """Return in which form another process runs, and the file of one of its modules."""
    variables = {"GODWIT_CORE": "", **variables}
    command = [sys.executable, "-c", SHOW]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment(**variables))


def test_a_core_made_of_other_sources_is_not_used(tmp_path: Path) -> None:
    path = fake_core(tmp_path, "0" * 32)
    text = "the compiled core was made of other sources"
    assert show(PYTHONPATH=path).stdout == f"interpreted ({text}) {PACKAGE / 'wire' / 'batch.py'}\n"
    demanded = show(PYTHONPATH=path, GODWIT_CORE="compiled")
    assert demanded.returncode == 1
    assert f"ImportError: GODWIT_CORE is compiled, but {text}" in demanded.stderr


def test_a_core_for_another_python_is_not_used(tmp_path: Path) -> None:
    path = fake_core(tmp_path, source_digest(PACKAGE), "cpython-27")
    assert show(PYTHONPATH=path).stdout.startswith("interpreted (the compiled core is for another Python) ")


def test_a_core_made_of_these_sources_is_used(tmp_path: Path) -> None:
    path = fake_core(tmp_path, source_digest(PACKAGE))
    assert show(PYTHONPATH=path).stdout.startswith("compiled ")


def test_the_variable_chooses_the_sources(tmp_path: Path) -> None:
    path = fake_core(tmp_path, source_digest(PACKAGE))
    shown = show(PYTHONPATH=path, GODWIT_CORE="interpreted").stdout
    assert shown == f"interpreted (GODWIT_CORE is interpreted) {PACKAGE / 'wire' / 'batch.py'}\n"
    assert "GODWIT_CORE is 'fast'; it can be interpreted or compiled" in show(GODWIT_CORE="fast").stderr


def test_an_edited_source_changes_the_digest(tmp_path: Path) -> None:
    sources = [*source_files(PACKAGE), *c_files(PACKAGE)]
    copies = [tmp_path / path.relative_to(PACKAGE) for path in sources]
    for path, copy in zip(sources, copies, strict=True):
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    before = source_digest(tmp_path)
    assert before == source_digest(PACKAGE)
    for copy in (copies[len(copies) // 2], copies[-1]):
        was = copy.read_bytes()
        copy.write_bytes(was + b" ")
        assert source_digest(tmp_path) != before
        copy.write_bytes(was)


def test_modules_written_in_c_are_used() -> None:
    from godwit.wire import bulk

    assert (PACKAGE / "wire" / "bulk.c") in c_files(PACKAGE)
    ending = ".py"
    if is_compiled("godwit.wire.batch"):
        assert is_compiled("godwit.wire.bulk")
        ending = sysconfig.get_config_var("EXT_SUFFIX")
    assert bulk.__file__.endswith(ending)


def test_the_digest_covers_all_that_compiled_modules_import() -> None:
    """Constants of an imported module are part of the compiled code, so its source must be part of the digest."""
    covered = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in source_files(PACKAGE)}
    for folder in PACKAGES:
        for path in (PACKAGE / folder).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("godwit."):
                    names = {f"{node.module}.{alias.name}" for alias in node.names}
                    assert node.module in covered or names <= covered, f"{path}: {ast.unparse(node)}"


def test_the_compiler_reads_every_line_where_it_is_in_the_source(tmp_path: Path) -> None:
    assert hatch_build.write_tree(tmp_path)
    for path in filter(hatch_build.is_compiled_source, source_files(PACKAGE)):
        source, seen = path, tmp_path / path.relative_to(PACKAGE.parent)
        assert functions(seen) == functions(source)
        structs = [one for one in classes(source) if "msgspec.Struct" in map(ast.unparse, one.bases)]
        assert not {one.name for one in structs} & {one.name for one in classes(seen)}, "mypyc loses their options"


def functions(path: Path) -> list[tuple[str, int]]:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return [(node.name, node.lineno) for node in body if isinstance(node, ast.FunctionDef)]


def classes(path: Path) -> list[ast.ClassDef]:
    return [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]


def test_without_a_compiler_the_wheel_has_the_sources_alone(tmp_path: Path) -> None:
    build(tmp_path, CC=str(tmp_path / "no-compiler"), GODWIT_CORE="", GODWIT_CORE_BUILD=str(tmp_path / "core"))
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as opened:
        assert not [name for name in opened.namelist() if name.startswith("godwit_core")]


def test_a_wheel_carries_the_compiled_core(tmp_path: Path) -> None:
    kept = os.environ.get("GODWIT_CORE_BUILD", "")
    if not is_compiled("godwit.wire.batch") or not (Path(kept) / "godwit_core").exists():
        pytest.skip("compiling takes minutes, and the compiled core is not installed")
    build(tmp_path, GODWIT_CORE="compiled")
    (wheel,) = tmp_path.glob("*.whl")
    assert not wheel.name.endswith("-any.whl")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tmp_path / "installed")
    shown = show(PYTHONPATH=str(tmp_path / "installed"), GODWIT_CORE="compiled").stdout
    assert shown.startswith(f"compiled {tmp_path / 'installed' / 'godwit_core'}")


def test_tests_that_need_the_interpreted_core_are_listed(tmp_path: Path) -> None:
    """`make test` runs them in that form, after the compiled one has skipped them."""
    if not is_compiled("godwit.client.protocol"):
        pytest.skip("the core is interpreted here")
    name = "tests/net/test_failover.py::test_a_report_of_the_network_is_a_hint"
    listed = tmp_path / "listed.txt"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--replacing={listed}", name]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert listed.read_text() == f"{name}\n"


def build(folder: Path, **variables: str) -> None:
    """Build a wheel into a folder."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=True, capture_output=True)


def test_classes_of_a_compiled_module_are_as_in_its_source() -> None:
    """A struct is defined in the namespace of its module, whichever form that has."""
    from godwit.wire import batch

    assert batch.Entry.__module__ == "godwit.wire.batch"
    assert batch.Entry.__qualname__ == "Entry"
    assert batch.Entry.__struct_config__.frozen
    assert compiled_core.describe_form().startswith(("compiled", "interpreted ("))
