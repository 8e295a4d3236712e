"""Formats that have requests without agents: Mooncake, AIPerf (both ways)."""

import json

import pytest

from eval import workload
from eval.__main__ import main
from eval.trace import Trajectory, Turn, read_traces, write_traces
from tests.unit.eval.importers.logs import mooncake_lines, write_lines


def test_mooncake_conversations_and_shared_prefixes(imported, tmp_path) -> None:
    items = imported("mooncake", write_lines(tmp_path / "m.jsonl", mooncake_lines()))
    first, second, loner = items
    assert [(t.prompt_tokens, t.kept_tokens, t.interval_s, t.gap_s) for t in first.turns] == [
        (1100, 0, None, None),
        (1700, 1024, 3.0, None),
    ]
    assert first.shared_prefix_id == second.shared_prefix_id
    assert first.shared_prefix_tokens == second.shared_prefix_tokens == 512
    assert loner.shared_prefix_id is None
    assert [item.start_s for item in items] == [0.0, 0.5, 3.0]


def test_mooncake_block_size(imported, tmp_path) -> None:
    path = write_lines(tmp_path / "m.jsonl", mooncake_lines())
    assert imported("mooncake", path, "--block-size", "256")[0].shared_prefix_tokens == 256


def test_aiperf_rows_are_deltas_of_their_session(imported, tmp_path) -> None:
    rows = [
        {"session_id": "a", "input_length": 300, "output_length": 40},
        {"session_id": "b", "text_input": "t" * 80, "output_length": 4},
        {"session_id": "a", "delay": 2500, "input_length": 150, "output_length": 20},
        {"input_length": 7},
    ]
    a, b, alone = imported("aiperf", write_lines(tmp_path / "a.jsonl", rows), "--keep-ids")
    assert (a.trajectory_id, b.trajectory_id) == ("a", "b")
    second = a.turns[1]
    assert (second.prompt_tokens, second.new_input_tokens, second.gap_s) == (490, 150, 2.5)
    assert (b.turns[0].prompt_tokens, b.turns[0].prompt_est) == (20, True)
    assert (alone.turns[0].prompt_tokens, alone.turns[0].output_tokens) == (7, 0)


def test_aiperf_whole_prompts(imported, tmp_path) -> None:
    mode = {"session_id": "a", "context_mode": "message_array_with_responses", "output_length": 10}
    message = {"role": "user", "content": "m" * 400}
    rows = [
        mode | {"input_length": 1100, "hash_ids": [1, 2, 3]},
        mode | {"input_length": 1600, "hash_ids": [1, 2, 4, 5]},
        {"session_id": "h", "messages": [message]},
        {"session_id": "h", "messages": [message, message]},
    ]
    ids, history = imported("aiperf", write_lines(tmp_path / "a.jsonl", rows))
    assert [(t.prompt_tokens, t.kept_tokens) for t in ids.turns] == [(1100, 0), (1600, 1024)]
    assert [(t.prompt_tokens, t.kept_tokens) for t in history.turns] == [(100, 0), (200, 100)]


def test_aiperf_output_comes_back_the_same(imported, tmp_path) -> None:
    turns = [Turn(kind="user", prompt_tokens=1500, new_input_tokens=1500, output_tokens=10)]
    turns.append(Turn(kind="tool", prompt_tokens=1600, new_input_tokens=90, output_tokens=5, gap_s=1.5))
    grows = Trajectory(
        trajectory_id="g",
        session_group="g",
        source="s",
        shared_prefix_id="p",
        shared_prefix_tokens=1100,
        turns=turns,
    )
    shrinks = Trajectory(
        trajectory_id="r",
        session_group="r",
        source="s",
        shared_prefix_id="p",
        shared_prefix_tokens=1100,
        turns=[
            *turns,
            Turn(kind="user", prompt_tokens=1400, new_input_tokens=300, output_tokens=5, reset=True),
        ],
    )
    trace, rows = tmp_path / "t.jsonl", tmp_path / "rows.jsonl"
    write_traces(trace, [grows, shrinks])
    assert main(["import", "--format", "trace", str(trace), "--to", "aiperf", "-o", str(rows)]) == 0
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [line["input_length"] for line in lines] == [1500, 90, 1500, 1600, 1400]
    assert [line.get("delay") for line in lines] == [None, 1500.0, None, 1500.0, None]
    assert ["context_mode" in line for line in lines] == [False, False, True, True, True]
    starts = [line["hash_ids"][:2] for line in lines]
    assert starts[0] == starts[2] == starts[3] == starts[4]
    assert all(len(line["hash_ids"]) == -(-line["input_length"] // 512) for line in lines)
    again = imported("aiperf", rows, "--keep-ids")
    assert [t.prompt_tokens for t in again[0].turns] == [1500, 1600]
    assert [t.kept_tokens for t in again[0].turns] == [0, 1510]
    assert [t.kept_tokens for t in again[1].turns] == [0, 1024, 1024]


@pytest.mark.parametrize("profile", sorted(workload.PROFILES))
def test_our_own_format_passes_unchanged(tmp_path, profile: str) -> None:
    trace, out = tmp_path / "t.jsonl", tmp_path / "o.jsonl.gz"
    write_traces(trace, workload.generate(profile, 5, 1))
    assert main(["import", "--format", "trace", str(trace), "-o", str(out)]) == 0
    before, after = list(read_traces(trace)), list(read_traces(out))
    assert [item.turns for item in after] == [item.turns for item in before]
    assert [item.shared_prefix_tokens for item in after] == [item.shared_prefix_tokens for item in before]
