"""For spark.readStream: how far the next micro-batch goes, and what is lost when a log is not what it was."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from godwit.spark.archive import Archive, DataLossError, UnreachableError
from godwit.spark.offsets import Epochs, Offsets, Position, Range, epochs_below, same_below, shares, to_epochs
from godwit.spark.options import ReadOptions
from godwit.spark.reading import Reading, known_gaps


class StreamReader(Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark keeps one on the driver, and copies of it on the executors, which only read."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...], parallelism: int) -> None:
        super().__init__(options, columns, parallelism)
        self._places: dict[str, Archive] = {}
        self._ends: dict[str, int] = {}
        """As last heard."""
        self._target: dict[str, int] | None = None
        """Where a query that takes what is available now stops."""
        self._missed_since: dict[str, float] = {}
        """Addresses of archives that do not answer, and since when."""

    # -- where it begins and ends -------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # this and the next are Spark's names
        infos, places = self._look()
        if isinstance(self._options.starting, dict):
            self._check_logs(list(self._options.starting), infos, "startingOffsets")
        offsets = {log: self._begin(info, places[log]) for log, info in infos.items()}
        gaps = {log: known_gaps(info) for log, info in infos.items() if known_gaps(info)}
        return Position(offsets, gaps, {}, _epochs(offsets, infos, {})).to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Bytes are looked after in latestOffset: Spark knows one limit only.
        return ReadAllAvailable() if self._options.max_rows is None else ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        infos, _ = self._look()
        self._target = {log: int(info["next_offset"]) for log, info in infos.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        infos = self._look_briefly()
        position = self._joined(Position.from_dict(start), infos)
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        offsets = position.offsets | self._ends_within(position.offsets, infos, max_rows)
        begins = {log: at for log, at in position.begins.items() if offsets[log] > at}
        # A log that is new and brings nothing yet joins later: else a batch without rows would be made for it.
        offsets = {log: at for log, at in offsets.items() if log in start or log in begins}
        if offsets == _plain(start):
            return start
        return Position(offsets, position.gaps, begins, _epochs(offsets, infos, position.epochs)).to_dict()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return dict(self._ends) or None

    def _look_briefly(self) -> dict[str, dict[str, Any]]:
        """What the archives have. One that is away is not waited for, as Spark asks again, but not for ever either."""
        infos = {}
        for archive in self._archives:
            try:
                info = archive.ask("info", {}, patience_s=0)
            except UnreachableError as error:
                since = self._missed_since.setdefault(archive.address, time.monotonic())
                if time.monotonic() - since > self._options.place.timeout_s:
                    raise error
                continue
            self._missed_since.pop(archive.address, None)
            infos[info["log_id"]] = info
            self._places[info["log_id"]] = archive
            self._ends[info["log_id"]] = int(info["next_offset"])
        return infos

    def _joined(self, position: Position, infos: dict[str, dict[str, Any]]) -> Position:
        """With logs that are new. Those that are gone, which is a loss, keep their place: they may come back."""
        offsets, gaps, begins = dict(position.offsets), dict(position.gaps), {}
        if not self._missed_since:  # else it may be the log of an archive that is away
            for log in [log for log in offsets if log not in infos]:
                self._log_is_gone(log, offsets[log], infos)
        for log, info in infos.items():
            if log not in offsets:  # of a broker that was added, or its new one: all of it is news
                offsets[log] = begins[log] = int(info["first_offset"])
                gaps[log] = known_gaps(info)
            else:
                self._check_history(log, offsets[log], position.epochs.get(log), info)
        gaps = {log: at for log, at in gaps.items() if at and log in offsets}
        return Position(offsets, gaps, begins, position.epochs)

    def _log_is_gone(self, log: str, at: int, infos: dict[str, dict[str, Any]]) -> None:
        if self._options.fails_on_data_loss:
            raise DataLossError(
                f"the query has read log {log} up to offset {at}, and none of the archives has that log now (they have "
                f"{', '.join(infos)}): the broker's data folder was replaced, or an archive was left out. To go on "
                "without it set failOnDataLoss to false"
            )

    def _check_history(self, log: str, at: int, known: Epochs | None, info: dict[str, Any]) -> None:
        """Whatever failOnDataLoss says: other messages would come with offsets that stand for messages already."""
        end = int(info["next_offset"])
        same = same_below(known, to_epochs(info["epochs"]), end) if known and "epochs" in info else end
        if same < at:
            now = f"it ends at {end} now" if end < at else f"from {same} on it has other messages now"
            raise DataLossError(
                f"the query has read log {log} up to offset {at}, and {now}: an older copy was put "
                "back, and its new messages have offsets that others had. Begin with a new checkpoint and new tables"
            )

    def _end_for(self, log: str, infos: dict[str, dict[str, Any]]) -> int:
        end = int(infos[log]["next_offset"])
        return end if self._target is None else min(end, self._target.get(log, 0))

    def _ends_within(
        self, begins: dict[str, int], infos: dict[str, dict[str, Any]], max_rows: int | None
    ) -> dict[str, int]:
        """How far the next batch goes: limits are shared between the logs in proportion to their lag."""
        ends = {log: max(at, self._end_for(log, infos)) for log, at in begins.items() if log in infos}
        lags = {log: end - begins[log] for log, end in ends.items() if end > begins[log]}
        max_bytes = self._options.max_bytes
        if not lags or (max_rows is None and max_bytes is None):
            return ends
        rows = lags if max_rows is None else shares(max_rows, lags)
        for log, lag in lags.items():
            request: dict[str, Any] = {"start": begins[log], "end": ends[log], "filters": list(self._options.topics)}
            if max_rows is not None:
                request["max_rows"] = rows.get(log, 0)
            if max_bytes is not None:
                request["max_bytes"] = max(1, max_bytes * lag // sum(lags.values()))
            ends[log] = int(self._places[log].ask("measure", request)["offset"]) if rows.get(log) else begins[log]
        return ends

    # -- what it reads ------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begins, ends = Position.from_dict(start), Position.from_dict(end)
        ranges = []
        for log, stop in ends.offsets.items():
            begin = begins.offsets.get(log, ends.begins.get(log, stop))
            if begin < stop:
                ranges.append(Range(log, begin, stop))
        self._find([one.log for one in ranges])
        lost = [one.log for one in ranges if one.log not in self._places]
        if lost and self._options.fails_on_data_loss:
            raise DataLossError(f"the batch is of log {lost[0]}, which none of the archives has now")
        present = [one for one in ranges if one.log in self._places]
        return self._pieces(present, self._places, ends.gaps, ends.epochs)

    def _find(self, logs: Sequence[str]) -> None:
        """After a restart Spark asks for the last batch first. An archive that it does not need is not waited for."""
        if not self._places.keys() >= set(logs):
            self._look_briefly()
        if not self._places.keys() >= set(logs):
            _, self._places = self._look()

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is to be told: the position is in Spark's checkpoint."""

    def stop(self) -> None:
        """Connections end with the process."""


def _epochs(offsets: Offsets, infos: dict[str, dict[str, Any]], known: dict[str, Epochs]) -> dict[str, Epochs]:
    """Return those of what stands below the offsets, or those known before of a log whose archive does not answer."""
    found = {
        log: epochs_below(to_epochs(infos[log].get("epochs", ())), at) if log in infos else known.get(log, [])
        for log, at in offsets.items()
    }
    return {log: epochs for log, epochs in found.items() if epochs}


def _plain(start: dict[str, Any]) -> dict[str, int]:
    return Position.from_dict(start).offsets
