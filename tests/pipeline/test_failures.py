"""What is made of Spark's pages of text."""

from __future__ import annotations

import pytest

from godwit.pipeline.failures import LONGEST_PAUSE_S, MAX_SENTENCE, Pauses, explained

PAGE = """[STREAM_FAILED] Query [id = ab7a, runId = 80ca] terminated with exception: [PYTHON_DATA_SOURCE_ERROR] Failed \
to plan Python data source initialize source: Traceback (most recent call last):
  File "streams.py", line 46, in prepareForTriggerAvailableNow
    infos, _ = self._look()
godwit.spark.{module}.{name}: {sentence}

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
UnboundLocalError: cannot access local variable 'reader' where it is not associated with a value
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = ab7a]
"""


@pytest.mark.parametrize(
    ("module", "name", "is_final"),
    [
        ("options", "OptionError", True),
        ("archive", "DataLossError", True),
        ("archive", "RefusedError", True),
        ("archive", "UnreachableError", False),
        ("archive", "ArchiveError", False),
    ],
)
def test_our_own_sentence_is_found(module: str, name: str, is_final: bool) -> None:
    found = explained(PAGE.format(module=module, name=name, sentence="it is so: do that."))
    assert (found.sentence, found.is_final) == ("it is so: do that", is_final)


def test_the_cause_counts_not_what_came_of_it() -> None:
    text = PAGE.format(module="archive", name="DataLossError", sentence="gone") + "godwit.x.OtherError: later\n"
    assert explained(text).sentence == "gone"


def test_errors_of_others_are_told_and_tried_again() -> None:
    found = explained(
        "[STREAM_FAILED] ...\nTraceback:\n  File x\npyarrow.lib.ArrowInvalid: no\nValueError: bad thing\n"
    )
    assert (found.sentence, found.is_final) == ("ValueError: bad thing", False)
    assert explained("[SOMETHING] in Java\n\tat org.apache").sentence == "[SOMETHING] in Java"
    assert explained("").sentence == "no reason given"
    assert len(explained("x" * 5000).sentence) == MAX_SENTENCE


def test_pauses_grow_and_begin_anew() -> None:
    pauses = Pauses()
    assert [pauses.next_s() for _ in range(9)] == [
        1,
        2,
        4,
        8,
        16,
        32,
        LONGEST_PAUSE_S,
        LONGEST_PAUSE_S,
        LONGEST_PAUSE_S,
    ]
    pauses.reset()
    assert pauses.next_s() == 1
