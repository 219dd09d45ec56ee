"""The benchmark of MQTT: its load generator against a real broker, a session that resumes, and a short real run.

The tests check that all messages arrive, never how fast.
"""

from __future__ import annotations

import socket
import threading
from functools import partial
from pathlib import Path

import pytest

from godwit.errors import GodwitError
from godwit_bench import mqtt, peers
from godwit_bench.mqtt import LOADS, RESUME, compile_generator, generate, mosquitto_version, resume_s, start_godwit
from godwit_bench.processes import ProcessGroup


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> str:
    try:
        return compile_generator(tmp_path_factory.mktemp("generator"))
    except GodwitError as error:
        if "install a C compiler" not in str(error):
            raise
        pytest.skip(str(error))


def test_each_load_arrives(generator: str, tmp_path: Path) -> None:
    with ProcessGroup(tmp_path) as processes:
        port = start_godwit(processes, is_on_disk=False)
        for load in LOADS:
            words = ("many", "20") if load.words[0] == "many" else load.words
            assert generate(generator, port, words, 0.2) > 0, load.name


def test_a_broker_that_closes_the_connection_is_an_error(generator: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            accepted, _ = server.accept()
            accepted.close()

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(GodwitError, match="CONNACK"):
            generate(generator, server.getsockname()[1], LOADS[0].words, 0.1)
        thread.join()


def test_a_session_resumes_with_all_its_messages(tmp_path: Path) -> None:
    assert resume_s(tmp_path, filters=20, messages=100) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(GodwitError, match="install a C compiler"):
        compile_generator(tmp_path)


def test_the_version_of_mosquitto(tmp_path: Path) -> None:
    program = tmp_path / "mosquitto"
    program.write_text("#!/bin/sh\necho 'mosquitto version 2.9.1'\nexit 3\n")
    program.chmod(0o700)
    assert mosquitto_version(str(program)) == "2.9.1"


def test_a_short_run(generator: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if peers.find("mosquitto") is None:
        pytest.skip("mosquitto is not installed")
    monkeypatch.setattr(mqtt, "resume_s", partial(resume_s, filters=5, messages=10))
    report = mqtt.run(
        folder=tmp_path, rounds=1, seconds=0.1, on_round=lambda _: None, on_install=lambda _: None, senders=10
    )
    assert [ratio.name for ratio in report.ratios] == [
        "q0_vs_mosquitto",
        "q1_disk_vs_mosquitto",
        "small_senders_vs_mosquitto",
        "topics_1000_vs_mosquitto",
    ]
    assert all(ratio.value for ratio in report.ratios)
    assert RESUME in [result.name for result in report.results]
    assert all("Mosquitto" in ratio.against for ratio in report.ratios)
