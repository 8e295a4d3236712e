import json
import random
from typing import Any

import pytest

from sglang_agentcache.disagg.messages import MAX_MESSAGES, MAX_ROOM, Ended, parse_batch
from sglang_agentcache.predictor.tool_calls import ToolCall
from sglang_agentcache.serving.hints import HintError

FULL = Ended(
    room=MAX_ROOM,
    output_tokens=7,
    aborted=False,
    final=True,
    tool_calls=(ToolCall("make", '{"n": 1}'), ToolCall("ls")),
    extra_key="lora",
    cache_salt="tenant",
    age_s=1.5,
)


@pytest.mark.parametrize("ended", [FULL, Ended(0, 0), Ended(1, 2, aborted=True), Ended(1, 2, tool_calls=())])
def test_what_is_packed_is_read_back(ended: Ended) -> None:
    body = json.loads(json.dumps({"ended": [ended.pack()]}))
    assert parse_batch(body) == [ended]


def test_an_age_stays_in_its_bounds() -> None:
    assert FULL.aged(-1.0).age_s == 0.0
    assert parse_batch({"ended": [FULL.aged(1e9).pack()]})[0].age_s == 3600.0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"room": None}, "ended[0].room"),
        ({"room": True}, "ended[0].room"),
        ({"room": -1}, "ended[0].room"),
        ({"room": MAX_ROOM + 1}, "ended[0].room"),
        ({"output_tokens": 1.5}, "ended[0].output_tokens"),
        ({"aborted": 1}, "ended[0].aborted"),
        ({"final": None}, "ended[0].final"),
        ({"tool_calls": [{"arguments": "x"}]}, "ended[0].tool_calls[0].name"),
        ({"tool_calls": {}}, "ended[0].tool_calls"),
        ({"cache_salt": 3}, "ended[0].cache_salt"),
        ({"age_s": float("nan")}, "ended[0].age_s"),
        ({"age_s": -1}, "ended[0].age_s"),
        ({"trajectory": "x"}, "ended[0].trajectory"),
    ],
)
def test_a_malformed_message_is_refused_by_its_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(HintError) as refused:
        parse_batch({"ended": [FULL.pack() | change]})
    assert refused.value.field == field


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"ended": {}},
        {"ended": [], "more": 1},
        {"ended": [3]},
        {"ended": [{}] * (MAX_MESSAGES + 1)},
    ],
)
def test_a_malformed_batch_is_refused(body: object) -> None:
    with pytest.raises(HintError):
        parse_batch(body)


def test_any_json_is_read_or_refused() -> None:
    rng = random.Random(1)
    values = [None, True, 0, -1, 1 << 70, 0.5, "", "x" * 300, [], {}, [{}], {"name": "x"}]
    for _ in range(2_000):
        item = FULL.pack()
        for name in rng.sample(sorted(item), rng.randint(1, 4)):
            item[name] = rng.choice(values)
        try:
            (read,) = parse_batch({"ended": [item]})
        except HintError:
            continue
        assert parse_batch({"ended": [read.pack()]}) == [read]
