"""Print what several runs of pytest did together, and what they skipped and why.

    python tests/summary.py RESULTS...      the files that --junitxml wrote

A file that is missing belongs to a run that did not come to its end. Standard library alone.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree


def summary(paths: Sequence[Path]) -> list[str]:
    """Return the lines to print."""
    outcomes: Counter[str] = Counter(passed=0, failed=0, skipped=0)
    reasons: Counter[str] = Counter()
    unfinished = []
    for path in paths:
        try:
            cases = ElementTree.parse(path).iter("testcase")
        except (OSError, ElementTree.ParseError):
            unfinished.append(path.stem)
            continue
        for case in cases:
            outcome, reason = _outcome(case)
            outcomes[outcome] += 1
            if outcome == "skipped":
                reasons[" ".join(reason.split())] += 1
    lines = ["tests: " + ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.items())]
    lines += [f"  skipped {count:,}: {reason}" for reason, count in reasons.most_common()]
    if unfinished:
        lines.append(f"  without a result, because a run did not come to its end: {', '.join(unfinished)}")
    lines.append("  tests marked soak are not run here, but by make soak")
    return lines


def _outcome(case: ElementTree.Element) -> tuple[str, str]:
    """Return what became of a test, and the reason."""
    for kind, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        if (found := case.find(kind)) is not None:
            return outcome, found.get("message") or "no reason given"
    return "passed", ""


if __name__ == "__main__":
    for line in summary([Path(name) for name in sys.argv[1:]]):
        print(line)
