"""Bulk transfers: what is measured, and that failures show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from godwit.impairment import LinkSettings
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Train
from godwit_sim.transfer import Transfer, TransferPlan

LINE = LinkSettings(delay_s=0.01, bandwidth_bits_per_s=10e6, queue_packets=50)
PLAN = TransferPlan(up=LINE, down=LINE, each_bytes=200_000)


def test_a_clean_transfer() -> None:
    result = Transfer(PLAN, 1).run()
    assert result.complete
    assert result.violation is None
    assert result.payload_bytes == 200_000
    assert result.repeated_share == pytest.approx(0.0, abs=0.02)
    assert 0.02 < result.first_data_s < 0.1  # after the handshake's two round trips
    (progress,) = result.transfers
    assert progress.finished_s == result.last_data_s
    assert progress.warm_s is not None
    assert progress.warm_s < result.last_data_s
    assert 200_000 < result.unique_line_bytes < 230_000
    assert 1e6 < result.goodput_bits_per_s < 10e6


def test_loss_is_repeated() -> None:
    line = replace(LINE, loss=0.1)
    result = Transfer(replace(PLAN, up=line, down=line), 1).run()
    assert result.complete
    assert 0.05 < result.repeated_share < 0.4


def test_several_clients_and_address_changes() -> None:
    result = Transfer(replace(PLAN, starts_s=(0.0, 0.1, 0.2), rebinds_s=(0.3,)), 1).run()
    assert result.complete
    assert [transfer.received_bytes for transfer in result.transfers] == [200_000] * 3


def test_what_does_not_complete_says_so() -> None:
    result = Transfer(replace(PLAN, up=replace(LINE, outages=((0.1, 1e9),)), until_s=100.0), 1).run()
    assert not result.complete
    assert "timeout" in (result.transfers[0].closed or "")
    assert result.payload_bytes < 200_000


def test_an_exception_in_the_transport_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Endpoint, train: Train, now: float) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(Endpoint, "receive", fail)
    assert Transfer(PLAN, 1).run().violation == "ZeroDivisionError escaped: on purpose"


def test_one_seed_one_result() -> None:
    line = replace(LINE, loss=0.05, reordering=0.05)
    plan = replace(PLAN, up=line, down=line)
    one, again, other = (Transfer(plan, seed).run() for seed in (3, 3, 4))
    assert one.last_data_s == again.last_data_s
    assert one.last_data_s != other.last_data_s
