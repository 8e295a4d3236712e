"""``eval.tiny_model`` as its users see it: the files, read back by transformers."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from eval.__main__ import main
from eval.tiny_model import USED_TOKENS, TinyModel, write_tiny_model

TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "find <text> & more",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
    },
}


def call(query: str | dict[str, str]) -> dict[str, Any]:
    arguments = query if isinstance(query, str) else dict(query)
    return {"id": "c", "type": "function", "function": {"name": "search", "arguments": arguments}}


CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where?"},
    {"role": "assistant", "content": None, "tool_calls": [call({"query": "a"}), call('{"query": "b"}')]},
    {"role": "tool", "tool_call_id": "c", "content": "found a"},
    {"role": "tool", "tool_call_id": "c", "content": "found b"},
    {"role": "assistant", "content": "Once more.", "tool_calls": [call({"query": "ü"})]},
    {"role": "tool", "tool_call_id": "c", "content": ""},
    {"role": "assistant", "content": "There."},
    {"role": "user", "content": "Thanks."},
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_tiny_model(directory, TinyModel(), weights=True)
    return directory


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Any:
    return AutoTokenizer.from_pretrained(directory)


def render(tokenizer: Any, messages: list[dict[str, Any]], **kwargs: Any) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


@pytest.mark.parametrize("text", ["plain", " two  spaces\n\ttab", "ü € 漢 🙂", "".join(map(chr, range(256)))])
def test_one_token_is_one_byte_and_text_survives(tokenizer: Any, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text


def test_special_tokens_are_single_and_agree_with_the_configuration(directory: Path, tokenizer: Any) -> None:
    config = AutoConfig.from_pretrained(directory)
    assert tokenizer.encode("<|im_end|>") == [config.eos_token_id] == [tokenizer.eos_token_id]
    assert tokenizer.encode("<|endoftext|>") == [config.pad_token_id] == [tokenizer.pad_token_id]
    assert len(tokenizer) == USED_TOKENS


def test_tools_stand_in_the_system_turn(tokenizer: Any) -> None:
    text = render(tokenizer, CONVERSATION[:2], tools=[TOOL])
    system, user = text.split("<|im_end|>\n")[:2]
    assert system.startswith("<|im_start|>system\nBe brief.\n")
    listed = system.split("<tools>\n")[1].split("\n</tools>")[0]
    assert json.loads(listed) == TOOL
    assert user == "<|im_start|>user\nWhere?"


def test_tools_without_a_system_message_get_a_system_turn(tokenizer: Any) -> None:
    text = render(tokenizer, CONVERSATION[1:2], tools=[TOOL])
    assert text.startswith("<|im_start|>system\n# Tools")
    assert text.count("<|im_start|>") == 2


def test_tool_calls_are_json_blocks_and_results_user_turns(tokenizer: Any) -> None:
    text = render(tokenizer, CONVERSATION, tools=[TOOL])
    turns = text.split("<|im_start|>")[3:]
    blocks = [block.split("\n</tool_call>")[0] for block in turns[0].split("<tool_call>\n")[1:]]
    assert [json.loads(block) for block in blocks] == [
        {"name": "search", "arguments": {"query": "a"}},
        {"name": "search", "arguments": {"query": "b"}},
    ]
    assert turns[0].startswith("assistant\n<tool_call>")
    assert turns[1] == "user\n<tool_response>\nfound a\n</tool_response><|im_end|>\n"
    assert turns[3].startswith(
        'assistant\nOnce more.\n<tool_call>\n{"name": "search", "arguments": {"query": "ü"'
    )


def test_sglang_reads_the_tool_calls_back(tokenizer: Any) -> None:
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    turn = render(tokenizer, CONVERSATION[2:3])
    turn = turn.removeprefix("<|im_start|>assistant\n").removesuffix("<|im_end|>\n")
    rest, calls = FunctionCallParser([Tool(**TOOL)], "qwen").parse_non_stream(turn)
    assert rest.strip() == ""
    assert [(item.name, json.loads(item.parameters)) for item in calls] == [
        ("search", {"query": "a"}),
        ("search", {"query": "b"}),
    ]


@pytest.mark.parametrize("tools", [None, [TOOL]])
@pytest.mark.parametrize("start", [0, 1])
def test_history_is_a_prefix_of_its_continuation(tokenizer: Any, tools: Any, start: int) -> None:
    """An agent's next request extends the last one: the request, then the answer as it was generated."""
    whole = render(tokenizer, CONVERSATION[start:], tools=tools)
    for end in range(start + 1, len(CONVERSATION)):
        history = CONVERSATION[start:end]
        assert whole.startswith(render(tokenizer, history, tools=tools))
        if CONVERSATION[end]["role"] == "assistant":
            assert whole.startswith(render(tokenizer, history, tools=tools, add_generation_prompt=True))


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_transformers_loads_and_generates_text(tmp_path: Path, architecture: str) -> None:
    write_tiny_model(tmp_path, TinyModel(architecture=architecture, layers=3, heads=8), weights=True)
    model, loading = AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True, dtype=torch.float32
    )
    assert not any(loading.values()), loading
    assert model.config.num_hidden_layers == 3
    prompts = torch.tensor([list(b"abcdefgh"), list(b"stuvwxyz")])
    mask = torch.ones_like(prompts)
    output = model.generate(prompts, attention_mask=mask, max_new_tokens=32, do_sample=False)
    assert output.max() < USED_TOKENS
    assert output[0, 8:].tolist() != output[1, 8:].tolist()


def test_same_seed_same_bytes(tmp_path: Path, directory: Path) -> None:
    write_tiny_model(tmp_path / "same", TinyModel(), weights=True)
    write_tiny_model(tmp_path / "other", TinyModel(seed=1), weights=True)
    first, other = digests(directory), digests(tmp_path / "other")
    assert digests(tmp_path / "same") == first
    assert {name for name in first if other[name] != first[name]} == {"model.safetensors"}


def test_command_passes_every_flag_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape_flags = "--arch llama --layers 1 --hidden 32 --heads 6 --kv-heads 3 --head-dim 16 --max-len 999"
    flags = [*shape_flags.split(), "--seed", "5", "--weights"]
    assert main(["tiny-model", str(tmp_path / "new" / "model"), *flags]) == 0
    config = json.loads((tmp_path / "new" / "model" / "config.json").read_text())
    shape = TinyModel("llama", layers=1, hidden=32, heads=6, kv_heads=3, head_dim=16, max_len=999, seed=5)
    assert config == shape.config()
    weights = load_file(tmp_path / "new" / "model" / "model.safetensors")
    assert weights["model.layers.0.self_attn.k_proj.weight"].shape == (3 * 16, 32)
    assert "model.safetensors" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--layers 0", "layers must be at least 1, got 0"),
        ("--heads 4 --kv-heads 3", "heads (4) must be a multiple of kv_heads (3)"),
        ("--head-dim 33", "head_dim must be even (rotary embedding), got 33"),
        ("--seed -1", "seed must be from 0 to 2**63 - 1, got -1"),
    ],
)
def test_bad_shape_is_one_sentence_and_writes_nothing(tmp_path: Path, flags: str, message: str) -> None:
    with pytest.raises(SystemExit, match=r"^tiny-model: ") as refused:
        main(["tiny-model", str(tmp_path / "model"), *flags.split()])
    assert message in str(refused.value)
    assert not (tmp_path / "model").exists()


def test_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match=r"^tiny-model: .*file"):
        main(["tiny-model", str(tmp_path / "file")])
