"""Goodput counts new tokens once, while the loop is full."""

from eval.records import RequestRecord
from eval.sim.sweep import goodput


def record(turn: int, sent: float, latency: float, prompt: int, history: int, output: int) -> RequestRecord:
    return RequestRecord(
        trajectory_id="t",
        source="test",
        turn=turn,
        kind="tool",
        tool_name=None,
        sent_s=sent,
        gap_s=0.0,
        prompt_tokens=prompt,
        history_tokens=history,
        output_tokens=output,
        ttft_s=0.1,
        latency_s=latency,
    )


def test_only_new_tokens_answered_before_the_last_trajectory_started():
    served = [
        record(0, 0.0, 1.0, 100, 0, 10),
        record(1, 5.0, 1.0, 150, 110, 20),
        record(0, 10.0, 1.0, 70, 0, 30),
        record(1, 600.0, 1.0, 900, 100, 40),
    ]
    assert goodput(served) == (110 + 60) / 10


def test_no_loaded_time_no_goodput():
    assert goodput([]) is None
    assert goodput([record(0, 0.0, 1.0, 100, 0, 10)]) is None
