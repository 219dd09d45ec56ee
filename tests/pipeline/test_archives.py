"""What is said before anything is begun, against real archives."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spark.archives import options, served

from godwit.pipeline.archives import look
from godwit.pipeline.problems import PipelineError


def test_logs_and_their_ends(tmp_path: Path) -> None:
    with served(tmp_path) as place:
        place.add(3)
        (log,) = look(options(place))
        assert (log.id, log.next_offset) == (place.log, 3)
        (log,) = look(options(place, topics="home/#"))
        assert log.id == place.log
        with pytest.raises(PipelineError, match="home/#/x"):
            look(options(place, topics="home/#/x"))
        port = log.address.rpartition(":")[2]
        with pytest.raises(PipelineError, match="are of one broker: name one"):
            look({"archive": f"127.0.0.1:{port},localhost:{port}"})


def test_nobody_there_and_wrong_options() -> None:
    with pytest.raises(PipelineError, match=r"127\.0\.0\.1:9 did not answer within 0\.5 s"):
        look({"archive": "127.0.0.1:9"}, patience_s=0.5)
    with pytest.raises(PipelineError, match="tokenFile: cannot read"):
        look({"archive": "127.0.0.1:9", "tokenFile": "nowhere/token"})
