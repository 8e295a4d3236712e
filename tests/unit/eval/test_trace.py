import gzip
import json

import pytest

from eval.trace import TraceError, Trajectory, Turn, parse_line, read_traces, write_traces


def turn(**changes: object) -> dict[str, object]:
    return {"kind": "tool", "prompt_tokens": 50, "new_input_tokens": 10, "output_tokens": 5} | changes


def line(*turns: dict[str, object], **changes: object) -> str:
    first = {"kind": "user", "prompt_tokens": 40, "new_input_tokens": 40, "output_tokens": 8}
    item = {"trajectory_id": "t", "session_group": "g", "source": "s", "turns": [first, *turns]}
    return json.dumps(item | changes)


def test_reads_a_line_and_ignores_unknown_keys() -> None:
    item = parse_line(line(turn(gap_s=1, tools=[["a", 0.5], ["b", None]], later="x"), colour="red"), "f", 1)
    assert item.turns[1].gap_s == 1.0
    assert item.turns[1].tools == [("a", 0.5), ("b", None)]
    assert item.turns[1].kept_tokens == 40
    assert item.peak_tokens == 55


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (line(turn(kind="wait")), r"turns\[1\].kind: allowed are tool, user; got 'wait'"),
        (line(turn(prompt_tokens=0)), r"turns\[1\].prompt_tokens: .*>= 1"),
        (line(turn(gap_s=-1)), r"turns\[1\].gap_s: .*>= 0"),
        (line(turn(gap_s="2 s")), r"turns\[1\].gap_s: Expected .*got `str`"),
        (line(turn(new_input_tokens=51)), r"turns\[1\].new_input_tokens: at most prompt_tokens \(50\)"),
        (line(turn(new_input_tokens=1)), r"turns\[1\].new_input_tokens: keeps 49 .* of 48; .* least 2"),
        (line(n_turns=3), "n_turns: is 3, but there are 1 turns"),
        (line(shared_prefix_tokens=9), "shared_prefix_id: required"),
        (line(turns=[]), "turns: a trajectory has at least one turn"),
        ('{"trajectory_id": "t"}', "missing required field `session_group`"),
        ('{"trajectory_id": ', "truncated"),
        ("7", "Expected `object`"),
    ],
)
def test_a_bad_line_is_named(text: str, problem: str) -> None:
    with pytest.raises(TraceError, match=f"^some.jsonl:12: .*{problem}"):
        parse_line(text, "some.jsonl", 12)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_round_trip_and_same_bytes(tmp_path, name: str) -> None:
    items = [parse_line(line(turn(tool_name="grep", tool_args="{}")), "f", 1), parse_line(line(), "f", 2)]
    paths = [tmp_path / "one" / name, tmp_path / "two" / name]
    for path in paths:
        path.parent.mkdir()
        assert write_traces(path, items) == 2
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert list(read_traces(*paths)) == items * 2


def test_error_gives_file_and_line(tmp_path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{line()}\n\n{line(turn(kind='x'))}\n")
    stream = read_traces(path)
    assert next(stream).trajectory_id == "t"
    with pytest.raises(TraceError, match=r"a\.jsonl:3: turns\[1\]\.kind"):
        next(stream)


def test_cut_gzip_is_an_error_after_its_whole_lines(tmp_path) -> None:
    path = tmp_path / "a.jsonl.gz"
    data = gzip.compress("".join(line(trajectory_id=str(i)) + "\n" for i in range(2000)).encode())
    path.write_bytes(data[: len(data) // 2])
    seen = []
    with pytest.raises(TraceError, match="gzip data is damaged"):
        seen.extend(item.trajectory_id for item in read_traces(path))


def test_writer_refuses_what_the_reader_would(tmp_path) -> None:
    bad = Turn(kind="other", prompt_tokens=1, new_input_tokens=1, output_tokens=1)
    item = Trajectory(trajectory_id="t", session_group="g", source="s", turns=[bad])
    with pytest.raises(ValueError, match="kind: allowed are tool, user"):
        write_traces(tmp_path / "a.jsonl", [item])
