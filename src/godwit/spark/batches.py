"""For spark.read: what the logs have now, or a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from godwit.spark.archive import Archive, DataLossError
from godwit.spark.offsets import Range, to_epochs
from godwit.spark.reading import Reading, known_gaps


class BatchReader(Reading, DataSourceReader):
    """Spark asks for its partitions once."""

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        infos, places = self._look()
        for name, given in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
            if isinstance(given, dict):
                self._check_logs(list(given), infos, name)
        ranges, gaps = [], {}
        for log, info in infos.items():
            begin, end = self._begin(info, places[log]), self._end(info, places[log])
            gaps[log] = known_gaps(info)
            if begin < end:
                ranges.append(Range(log, begin, end))
        return self._pieces(
            ranges, places, gaps, {log: to_epochs(info.get("epochs", ())) for log, info in infos.items()}
        )

    def _end(self, info: dict[str, Any], archive: Archive) -> int:
        options = self._options
        end = int(info["next_offset"])
        if options.ending_time_us is not None:
            return min(end, int(archive.ask("offset_for_time", {"time_us": options.ending_time_us})["offset"]))
        if isinstance(options.ending, dict):
            asked = options.ending.get(info["log_id"], end)
            if asked > end and options.fails_on_data_loss:
                raise DataLossError(f"endingOffsets is {asked} for log {info['log_id']}, which ends at {end}")
            return min(asked, end)
        return end
