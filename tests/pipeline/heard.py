"""What an observer of a run is told."""

from __future__ import annotations

from godwit.pipeline.watching import Batch


class Heard:
    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.failures: list[tuple[str, str, float]] = []

    def on_batch(self, batch: Batch) -> None:
        self.batches.append(batch)

    def on_failure(self, query: str, sentence: str, pause_s: float) -> None:
        self.failures.append((query, sentence, pause_s))
