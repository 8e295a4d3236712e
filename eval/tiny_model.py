"""Write a tiny model directory: configuration, byte-level tokenizer, chat template, optional seeded weights.

One token is one byte, so that token counts can be set exactly, and nothing is downloaded. Without
``--weights`` start the server with ``--load-format dummy``.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    import torch

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
USED_TOKENS = 256 + len(SPECIAL_TOKENS)
VOCABULARY = 512  # a multiple of 64, as SGLang pads it; ids from USED_TOKENS on stand for no text

ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}

# Turns and tool calls in the form Qwen models use, which SGLang's "qwen" tool-call parser reads back. The
# rendering of a conversation is a prefix of its continuation's, as the history of an agent has to be.
CHAT_TEMPLATE = """\
{%- macro system_turn(text) -%}
{{- '<|im_start|>system\\n' + text }}
{%- if tools %}
    {{- '\\n\\n' if text else '' }}
    {{- '# Tools\\n\\nFunctions you may call, one JSON signature a line:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools>\\n\\nTo call one, answer with a JSON object inside these tags:' }}
    {{- '\\n<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endmacro %}
{%- if tools and (not messages or messages[0].role != 'system') %}
    {{- system_turn('') }}
{%- endif %}
{%- for message in messages %}
    {%- set text = message.content or '' %}
    {%- if message.role == 'system' and loop.first %}
        {{- system_turn(text) }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + text + '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + text }}
        {%- for call in message.tool_calls or [] %}
            {%- set function = call.function or call %}
            {%- set arguments = function.arguments %}
            {{- '\\n' if text or not loop.first else '' }}
            {{- '<tool_call>\\n{"name": ' + (function.name | tojson) + ', "arguments": ' }}
            {{- arguments if arguments is string else (arguments | tojson) }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


@dataclass(frozen=True)
class TinyModel:
    """The shape of a tiny model. Lengths are in tokens; the weights are bfloat16.

    Raises:
        ValueError: a field is out of range; the message names it and says what is allowed.
    """

    architecture: str = "qwen3"
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    max_len: int = 32_768
    seed: int = 0

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            raise ValueError(f"arch must be one of {', '.join(ARCHITECTURES)}, got {self.architecture!r}")
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "max_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even (rotary embedding), got {self.head_dim}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be from 0 to 2**63 - 1, got {self.seed}")

    @property
    def intermediate(self) -> int:
        """Width of the feed-forward layer."""
        return 4 * self.hidden

    def config(self) -> dict[str, Any]:
        """The contents of ``config.json``."""
        return {
            "architectures": [ARCHITECTURES[self.architecture]],
            "model_type": self.architecture,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": self.max_len,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "attention_bias": False,
            "bos_token_id": None,
            "eos_token_id": _token_id(TURN_END),
            "pad_token_id": _token_id(END_OF_TEXT),
            "torch_dtype": "bfloat16",
        }


def write_tiny_model(directory: Path, model: TinyModel, *, weights: bool = False) -> None:
    """Write ``model`` to ``directory`` (made if missing, same-named files replaced).

    Args:
        directory: Gets ``config.json``, ``generation_config.json``, ``tokenizer.json``,
            ``tokenizer_config.json`` and, with ``weights``, ``model.safetensors``. The same ``model`` gives
            the same bytes.
        model: The shape and the seed.
        weights: Also write random weights (imports torch).

    Raises:
        OSError: ``directory`` cannot be made or written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _tokenizer().save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": model.max_len,
            "bos_token": None,
            "add_bos_token": False,
            "eos_token": TURN_END,
            "pad_token": END_OF_TEXT,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    _write_json(directory / "config.json", model.config())
    _write_json(
        directory / "generation_config.json",
        {"eos_token_id": _token_id(TURN_END), "pad_token_id": _token_id(END_OF_TEXT), "do_sample": False},
    )
    if weights:
        from safetensors.torch import save_file

        save_file(_random_weights(model), directory / "model.safetensors", metadata={"format": "pt"})


def _token_id(special_token: str) -> int:
    return 256 + SPECIAL_TOKENS.index(special_token)


def _tokenizer() -> Tokenizer:
    """Byte-level BPE without merges: 256 byte tokens, then the special ones. Lossless."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    return tokenizer


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _random_weights(model: TinyModel) -> "dict[str, torch.Tensor]":
    """Seeded weights under the names of the Hugging Face checkpoints.

    The embedding is wider than the rest, so that the output depends on the input. The output rows of unused
    token ids are zero: practically always some used token scores above that, and what is generated is text.
    """
    import torch

    generator = torch.Generator().manual_seed(model.seed)

    def normal(*shape: int, std: float = 0.2) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * std).to(torch.bfloat16)

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, dtype=torch.bfloat16)

    hidden, intermediate, head_dim = model.hidden, model.intermediate, model.head_dim
    lm_head = normal(VOCABULARY, hidden)
    lm_head[USED_TOKENS:] = 0
    weights = {
        "model.embed_tokens.weight": normal(VOCABULARY, hidden, std=1.0),
        "lm_head.weight": lm_head,
        "model.norm.weight": ones(hidden),
    }
    for layer in range(model.layers):
        block = {
            "self_attn.q_proj": normal(model.heads * head_dim, hidden),
            "self_attn.k_proj": normal(model.kv_heads * head_dim, hidden),
            "self_attn.v_proj": normal(model.kv_heads * head_dim, hidden),
            "self_attn.o_proj": normal(hidden, model.heads * head_dim),
            "mlp.gate_proj": normal(intermediate, hidden),
            "mlp.up_proj": normal(intermediate, hidden),
            "mlp.down_proj": normal(hidden, intermediate),
            "input_layernorm": ones(hidden),
            "post_attention_layernorm": ones(hidden),
        }
        if model.architecture == "qwen3":
            block["self_attn.q_norm"] = ones(head_dim)
            block["self_attn.k_norm"] = ones(head_dim)
        weights |= {f"model.layers.{layer}.{name}.weight": tensor for name, tensor in block.items()}
    return weights


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    default = TinyModel()
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the model is written")
    parser.add_argument("--arch", choices=list(ARCHITECTURES), default=default.architecture)
    parser.add_argument("--layers", type=int, default=default.layers)
    parser.add_argument("--hidden", type=int, default=default.hidden, help="hidden size")
    parser.add_argument("--heads", type=int, default=default.heads, help="query heads")
    parser.add_argument("--kv-heads", type=int, default=default.kv_heads, help="key/value heads")
    parser.add_argument("--head-dim", type=int, default=default.head_dim)
    parser.add_argument("--max-len", type=int, default=default.max_len, help="longest context, in tokens")
    parser.add_argument("--weights", action="store_true", help="also write seeded random weights")
    parser.add_argument("--seed", type=int, default=default.seed, help="seed of the weights")


def main(args: argparse.Namespace) -> int:
    """Run the command."""
    try:
        model = TinyModel(
            architecture=args.arch,
            layers=args.layers,
            hidden=args.hidden,
            heads=args.heads,
            kv_heads=args.kv_heads,
            head_dim=args.head_dim,
            max_len=args.max_len,
            seed=args.seed,
        )
        write_tiny_model(args.directory, model, weights=args.weights)
    except (ValueError, OSError) as error:
        raise SystemExit(f"tiny-model: {error}") from None
    print(f"wrote {args.directory}: {', '.join(sorted(path.name for path in args.directory.iterdir()))}")
    return 0
