"""Run a file of the interoperability suite of Eclipse Paho against a broker: FOLDER client_test|client_test5 PORT.

The suite's own command line does not work with current versions of unittest, so its file is imported, and the names
that its `__main__` block assigns are assigned here. Prints one JSON object: for each test an empty text or the error.
"""

from __future__ import annotations

import ast
import importlib
import json
import logging
import os
import signal
import sys
import unittest
from pathlib import Path
from typing import Any

TEST_S = 120
NAMES = {"topic_prefix", "topics", "wildtopics", "nosubscribe_topics"}


class SlowTestError(Exception):
    """A test took too long. Not a TimeoutError, because the suite ignores these."""


def stop(*_: Any) -> None:
    raise SlowTestError(f"not done after {TEST_S} s")


class Outcomes(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().startTest(test)
        self.found[test.id().rpartition(".")[2]] = ""
        signal.alarm(TEST_S)

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        signal.alarm(0)
        super().stopTest(test)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self.found[test.id().rpartition(".")[2]] = f"{err[0].__name__}: {err[1]}"

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self.addFailure(test, err)


def is_wanted(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in NAMES


def main(folder: str, name: str, port: int) -> None:
    sys.path.insert(0, folder)
    os.chdir(folder)
    logging.disable(logging.CRITICAL)
    module: Any = importlib.import_module(name)
    for block in ast.parse(Path(f"{name}.py").read_text()).body:
        wanted = [node for node in block.body if is_wanted(node)] if isinstance(block, ast.If) else []
        exec(compile(ast.Module(list(wanted), []), name, "exec"), module.__dict__)
    module.host, module.port = "127.0.0.1", port
    signal.signal(signal.SIGALRM, stop)
    outcomes = Outcomes()
    unittest.TestLoader().loadTestsFromModule(module).run(outcomes)
    print("\n" + json.dumps(outcomes.found), flush=True)
    os._exit(0)  # threads of its clients may remain


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
