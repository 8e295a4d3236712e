"""What cannot work is refused at start: one sentence that names the flag, before a model loads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eval.tiny_model import TinyModel, write_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RR = ("--radix-eviction-policy", "rr")
CONFIG = "--radix-eviction-policy-config"
LOADING = ("Load weight begin", "Loading safetensors", "Init torch distributed")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny-model")
    write_tiny_model(directory, TinyModel())
    return directory


@pytest.fixture(scope="module")
def launch(repository: Path, model: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """Launch with these arguments: the exit code and what was written."""
    command = [sys.executable, "-m", "tests.support.launches"]
    with subprocess.Popen(
        command, cwd=repository, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def run(*arguments: str, directory: Path = model, **case: Any) -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            base = ("--device", "cpu", "--load-format", "dummy", "--model-path", str(directory))
            process.stdin.write(json.dumps({"arguments": [*base, *arguments], **case}) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield run
        process.stdin.close()


def assert_refused(result: dict[str, Any], *names: str) -> str:
    """The launch ended with one sentence of ours that holds these names; returns the sentence."""
    assert result["code"] not in (0, None), result["stderr"]
    assert not any(sign in result["stderr"] for sign in LOADING)
    assert "Traceback" not in result["stderr"]
    sentence = result["stderr"].splitlines()[-1]
    assert sentence.startswith("agentcache: ")
    assert sentence.endswith(".")
    for name in names:
        assert name in sentence
    return sentence


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((CONFIG, '{"chunk": 3}'), (CONFIG, "'chunk'", "chunk_tokens, visit")),
        (
            (CONFIG, '{"chunk_tokens": 32}', "--page-size", "64"),
            (CONFIG, "'chunk_tokens'", "--page-size 64", "32"),
        ),
        ((CONFIG, '{"chunk_tokens": -1}'), (CONFIG, "'chunk_tokens'", "-1")),
        ((CONFIG, '{"chunk_tokens": "many"}'), (CONFIG, "'chunk_tokens'", "'many'")),
        ((CONFIG, '{"visit": "leafs"}'), (CONFIG, "'visit'", "chunk, leaf", "'leafs'")),
        ((CONFIG, '{"tiers": "of"}'), (CONFIG, "'tiers'", "'of'")),
        ((CONFIG, '{"max_trajectories": 0}'), (CONFIG, "'max_trajectories'", "0")),
        (("--disable-radix-cache",), ("--disable-radix-cache",)),
        (("--enable-session-radix-cache",), ("--enable-session-radix-cache",)),
        (("--enable-streaming-session",), ("--enable-streaming-session",)),
        (("--radix-cache-backend", "other"), ("--radix-cache-backend other", "agentcache")),
        (("--tokenizer-worker-num", "2"), ("--tokenizer-worker-num",)),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") and len(value) < 5 else "",
)
def test_settings_that_do_not_fit(
    launch: Callable[..., dict[str, Any]], arguments: tuple[str, ...], names: tuple[str, ...]
) -> None:
    assert_refused(launch(*RR, *arguments), *names)


def test_the_backend_with_one_of_sglangs_policies_is_checked_too(
    launch: Callable[..., dict[str, Any]],
) -> None:
    arguments = ("--radix-cache-backend", "agentcache", "--radix-eviction-policy", "lru")
    assert_refused(
        launch(*arguments, "--enable-streaming-session"), "--radix-cache-backend agentcache", "lru"
    )


def test_an_unknown_policy_is_refused_with_ours_among_the_choices(
    launch: Callable[..., dict[str, Any]],
) -> None:
    result = launch("--radix-eviction-policy", "round-robin")
    assert result["code"] == 2
    assert "--radix-eviction-policy" in result["stderr"].splitlines()[-1]
    assert "'rr'" in result["stderr"].splitlines()[-1]


@pytest.mark.parametrize("cache", [(), RR], ids=["SGLang's cache", "ours"])
@pytest.mark.parametrize("policy", ["prefix-aware", "prefix-aware-greedy"])
def test_schedule_policies_that_do_not_fit(
    launch: Callable[..., dict[str, Any]], policy: str, cache: tuple[str, ...]
) -> None:
    order = (*cache, "--schedule-policy", policy)
    # SGLang allows priority scheduling with these policies, or it would have complained first.
    refused = launch(*order, "--disable-radix-cache", "--enable-priority-scheduling")
    assert_refused(refused, f"--schedule-policy {policy}", "--disable-radix-cache")
    assert_refused(launch(*order, "--agentcache-patience", "-1"), "--agentcache-patience", "'-1'")
    if not cache:
        patience = {"SGLANG_AGENTCACHE_PATIENCE": "long"}
        result = launch(*order, environment=patience, entry="launcher")
        assert_refused(result, "SGLANG_AGENTCACHE_PATIENCE", "'long'")


def test_priority_scheduling_still_refuses_sglangs_other_policies(
    launch: Callable[..., dict[str, Any]],
) -> None:
    result = launch("--schedule-policy", "lpm", "--enable-priority-scheduling")
    assert result["code"] == 1
    assert "schedule_policy must be 'fcfs' or 'lof'" in result["stderr"]


def test_help_and_an_unknown_schedule_policy_name_ours(launch: Callable[..., dict[str, Any]]) -> None:
    result = launch("--schedule-policy", "prefix")
    assert result["code"] == 2
    assert "'prefix-aware', 'prefix-aware-greedy'" in result["stderr"].splitlines()[-1]


def test_another_sglang(launch: Callable[..., dict[str, Any]]) -> None:
    assert_refused(launch(*RR, sglang_version="0.5.22"), "sglang 0.5.22", "0.5.23")


def test_another_sglang_under_the_plugin(launch: Callable[..., dict[str, Any]]) -> None:
    assert_refused(launch(*RR, sglang_version="0.6.0", entry="plugin"), "sglang 0.6.0", "0.5.23")
    # A server that does not ask for us only gets a line in its log.
    result = launch(sglang_version="0.6.0", entry="plugin")
    assert result["code"] == 0
    assert "agentcache: inactive: sglang 0.6.0" in result["stderr"]


def test_a_plugin_list_without_us(launch: Callable[..., dict[str, Any]]) -> None:
    assert_refused(
        launch(*RR, environment={"SGLANG_PLUGINS": "cpu_shim"}), "SGLANG_PLUGINS=cpu_shim", "agentcache"
    )


def write_config(directory: Path, **config: Any) -> Path:
    """A model directory that goes as far as SGLang's `ModelConfig`."""
    write_tiny_model(directory, TinyModel())
    base = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**base, **config}))
    return directory


def test_a_model_with_sliding_window_layers(launch: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    gpt_oss = write_config(
        tmp_path,
        architectures=["GptOssForCausalLM"],
        model_type="gpt_oss",
        sliding_window=128,
        layer_types=["sliding_attention", "full_attention"],
        num_local_experts=2,
        num_experts_per_tok=1,
    )
    assert_refused(launch(*RR, directory=gpt_oss), "sliding-window")


def test_a_model_with_recurrent_layers(launch: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    qwen3_next = write_config(
        tmp_path,
        architectures=["Qwen3NextForCausalLM"],
        model_type="qwen3_next",
        layer_types=["linear_attention", "full_attention"],
        full_attention_interval=2,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        linear_conv_kernel_dim=4,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
    )
    # What SGLang itself demands for such a model without a GPU.
    possible = ("--mamba-radix-cache-strategy", "no_buffer", "--disable-overlap-schedule")
    assert_refused(launch(*RR, *possible, directory=qwen3_next), "recurrent state")


def test_the_same_over_the_command_line(model: Path) -> None:
    """The one test here that pays for a process of its own."""
    command = [
        sys.executable,
        "-m",
        "sglang_agentcache.launch_server",
        "--device",
        "cpu",
        "--model-path",
        str(model),
    ]
    done = subprocess.run(
        [*command, *RR, CONFIG, '{"chunk": 3}'], capture_output=True, text=True, timeout=300
    )
    assert_refused({"code": done.returncode, "stderr": done.stderr}, CONFIG, "'chunk'")
