# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Command that converts a causal language model into an any-order model with the same left-to-right predictions.

    python training/convert_causal_lm.py SOURCE OUTPUT_DIR [--max_length N] [--target_injection KIND]
        [--start_token TOKEN]

SOURCE is a folder or Hub name of a Llama, Mistral, Qwen2, Qwen3, SmolLM3, OLMo or GPT-2, or of another model with the
layers of a Llama. The converted model has the weights of SOURCE. (The names of the weights stay the same, except those
of a GPT-2.) Left to right, it predicts what SOURCE predicts for a text that begins with the start token. By default,
the start token is the beginning-of-text token of SOURCE, or end-of-text if SOURCE has no beginning-of-text token. Other
orders are learned by further training. Models that were converted with `--target_injection none` can be exported again
(see `export_causal_lm.py`).

Target injection:

* `none` (default for models with rotary positions): only the rotary positions tell a row its target.
* `adaln`: the target also modulates every layer. At first, the modulations have no effect: shifts and scales are 0, and
  gates are 1.
* A GPT-2 has learned positions. Its target injection must therefore be `adaln` (the default), `input`, `shared` or
  `per_layer`.
"""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import metadata_load
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)
from transformers.utils import cached_file
from yaml import YAMLError

from common.commands import Parser, one_line_errors
from common.files import check_empty_folder
from common.models import load_pretrained, read_any_config, save_model
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from modeling_aogpt.modeling_aogpt import TargetModulation
from modeling_aogpt.tokenization import load_tokenizer

INJECTIONS = ("none", "adaln", "input", "shared", "per_layer")

# Settings that have the same name and meaning in Transformers and in this package.
COMMON_SETTINGS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "hidden_act",
    "initializer_range",
    "tie_word_embeddings",
)

# Settings that this package does not support, and the values at which they have no effect.
UNSUPPORTED = {
    "quantization_config": None,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
    "clip_qkv": None,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "num_experts": None,
    "num_local_experts": None,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
    "scale_attn_weights": True,
}

# Names of the weights of a model with the layers of a Llama.
LLAMA_WEIGHT = re.compile(
    r"(model\.(embed_tokens|norm|layers\.\d+\.(input_layernorm|post_attention_layernorm|mlp\.(gate|up|down)_proj"
    r"|self_attn\.([qkvo]_proj|[qk]_norm)))|lm_head)\.(weight|bias)"
)

# Name of each module of a layer in GPT-2, and its names in this package. In GPT-2, weights of projections are
# transposed, and one projection computes queries, keys and values.
GPT2_LAYER = {
    "ln_1": ["input_layernorm"],
    "attn.c_attn": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "attn.c_proj": ["self_attn.o_proj"],
    "ln_2": ["post_attention_layernorm"],
    "mlp.c_fc": ["mlp.up_proj"],
    "mlp.c_proj": ["mlp.down_proj"],
}

NUM_CHECKED_TOKENS = 64


def convert_config(
    source: PreTrainedConfig,
    names: set[str],
    start_token_id: int,
    target_injection: str | None = None,
    max_length: int | None = None,
) -> AOGPTConfig:
    """
    Return the configuration of the any-order model.

    Args:
        source (`PreTrainedConfig`): Configuration of the causal language model.
        names (`set` of `str`): Names of the weights of the source. They show which biases and norms it has.
        start_token_id (`int`): Token that begins every sequence.
        target_injection (`str`, *optional*): See [`AOGPTConfig`]; defaults to `"none"`, or to `"adaln"` for a GPT-2.
        max_length (`int`, *optional*): Length of the longest sequence; defaults to that of the source.

    Raises:
        ValueError: If a setting or a weight of the source is not supported.
    """
    settings = convert_settings(source, names, max_length)
    is_gpt2 = isinstance(source, GPT2Config)
    target_injection = target_injection or ("adaln" if is_gpt2 else "none")
    allowed = INJECTIONS[1:] if is_gpt2 else INJECTIONS[:2]
    if target_injection not in allowed:
        raise ValueError(
            f"For this model, `target_injection` must be one of {', '.join(allowed)}, but is {target_injection!r}."
        )
    return AOGPTConfig(
        **settings,
        target_injection=target_injection,
        start_token_id=start_token_id,
        source_config=json.loads(source.to_json_string()),
    )


def convert_settings(source: PreTrainedConfig, names: set[str], max_length: int | None) -> dict[str, Any]:
    """Return the settings that a decoder and an encoder with the layers of the source have (see [`convert_config`])."""
    for name, value in UNSUPPORTED.items():
        if getattr(source, name, value) != value:
            raise ValueError(
                f"A model with `{name}={getattr(source, name)!r}` cannot be converted. Convert a model with "
                f"`{name}={value!r}`."
            )
    is_gpt2 = isinstance(source, GPT2Config)
    if not is_gpt2:
        _check_layers(source, names)
    longest = source.max_position_embeddings
    max_length = longest if max_length is None else max_length
    if not 1 <= max_length <= longest:
        raise ValueError(f"`max_length` must be between 1 and {longest} (the limit of SOURCE), but is {max_length}.")
    settings = {name: getattr(source, name) for name in COMMON_SETTINGS if hasattr(source, name)}
    settings |= {
        "max_position_embeddings": max_length,
        "lm_head_bias": "lm_head.bias" in names,
        "bos_token_id": source.bos_token_id,
        "eos_token_id": source.eos_token_id,
        "pad_token_id": source.pad_token_id,
    }
    if is_gpt2:
        settings |= {
            "intermediate_size": source.n_inner,
            "hidden_act": source.activation_function,
            "norm": "layernorm",
            "norm_eps": source.layer_norm_epsilon,
            "qk_norm": False,
        }
    else:
        settings |= _rotary_settings(source, names, max_length)
    return settings


def weight_names(config: PreTrainedConfig) -> set[str]:
    """Return the names of the weights of a causal language model, without making or loading the weights."""
    with torch.device("meta"):
        return set(AutoModelForCausalLM.from_config(config).state_dict())


def _check_layers(source: PreTrainedConfig, names: set[str]) -> None:
    """Raise a `ValueError` unless the source has a Llama's settings, and `names` are names of a Llama's weights."""
    settings = ["max_position_embeddings", "rope_parameters", *["rms_norm_eps"] * ("model.norm.weight" in names)]
    missing = [name for name in settings if not hasattr(source, name)]
    unknown = sorted(name for name in names if not LLAMA_WEIGHT.fullmatch(name))
    if missing or unknown:
        raise _unsupported_layers(source, f"missing settings: {missing}, unknown weights: {unknown[:3]}")


def _unsupported_layers(source: PreTrainedConfig, difference: str) -> ValueError:
    return ValueError(
        f"A model of type {source.model_type!r} cannot be converted, because its layers are not those of a Llama "
        f"({difference}). Use a Llama, Mistral, Qwen2, Qwen3, SmolLM3, OLMo or GPT-2, or another model with the layers "
        "of a Llama."
    )


def _rotary_settings(source: PreTrainedConfig, names: set[str], max_length: int) -> dict[str, Any]:
    """Return the settings of a model with the layers of a Llama. The `names` of its weights show which parts it has."""
    window = getattr(source, "sliding_window", None)
    layer_types = getattr(source, "layer_types", None) or []
    uses_window = not layer_types or any(kind != "full_attention" for kind in layer_types)
    if window is not None and window < max_length and uses_window:
        raise ValueError(
            f"SOURCE has a sliding window: a token attends only to the last {window} tokens. It cannot be converted "
            f"for sequences of {max_length} tokens. Set `--max_length` to {window} or less."
        )
    original = source.rope_parameters.get("original_max_position_embeddings", max_length)
    if source.rope_parameters.get("llama_4_scaling_beta") and max_length > original:
        raise ValueError(
            f"SOURCE scales attention queries after the first {original} tokens (llama_4_scaling_beta). It cannot be "
            f"converted for sequences of {max_length} tokens. Set `--max_length` to {original} or less."
        )
    layer = "model.layers.0."
    has_norm_weight = f"{layer}input_layernorm.weight" in names
    has_rope = getattr(source, "no_rope_layers", None) or []  # despite its name, 1 marks a layer with rotary positions
    return {
        "position_encoding": "rotary",
        "rope_parameters": dict(source.rope_parameters),
        "no_rope_layers": [index for index, is_rotary in enumerate(has_rope) if not is_rotary] or None,
        "head_dim": getattr(source, "head_dim", None),
        "gated_mlp": f"{layer}mlp.gate_proj.weight" in names,
        "attention_bias": f"{layer}self_attn.q_proj.bias" in names,
        "attention_output_bias": f"{layer}self_attn.o_proj.bias" in names,
        "mlp_bias": f"{layer}mlp.up_proj.bias" in names,
        "qk_norm": f"{layer}self_attn.q_norm.weight" in names,
        "norm": "rmsnorm" if has_norm_weight else "layernorm",
        "norm_weight": has_norm_weight,
        "norm_bias": f"{layer}input_layernorm.bias" in names,
        "norm_eps": source.rms_norm_eps if has_norm_weight else 1e-5,  # OLMo has no setting for it
    }


@torch.no_grad()
def convert_model(
    source: PreTrainedModel,
    start_token_id: int,
    target_injection: str | None = None,
    max_length: int | None = None,
) -> AOGPTForAnyOrderLM:
    """
    Convert a causal language model into an any-order model, as described at the top of this file.

    Both models use the same memory for their weights (except for a GPT-2, whose weights are transposed), so training
    one of them changes the other.

    Args:
        source (`PreTrainedModel`): The causal language model.
        start_token_id (`int`): Token that begins every sequence.
        target_injection (`str`, *optional*): See [`AOGPTConfig`]; defaults to `"none"`, or to `"adaln"` for a GPT-2.
        max_length (`int`, *optional*): Length of the longest sequence; defaults to that of the source.

    Raises:
        ValueError: If a setting or a weight of the source is not supported, or if the predictions of the two models
            differ.
    """
    config = convert_config(source.config, set(source.state_dict()), start_token_id, target_injection, max_length)
    model = _load_weights(source, config)
    _neutralize_targets(model)
    check_predictions(model, source)
    return model


def _load_weights(source: PreTrainedModel, config: AOGPTConfig) -> AOGPTForAnyOrderLM:
    """Return the any-order model with the weights of the source, without a copy of them where possible."""
    weights = source.state_dict()
    tensors = dict(_gpt2_tensors(weights, config)) if isinstance(source.config, GPT2Config) else weights
    set_seed(0)  # target embeddings are random
    model, report = AOGPTForAnyOrderLM.from_pretrained(
        None, config=config, state_dict=tensors, dtype=source.dtype, output_loading_info=True
    )
    missing = sorted(name for name in report["missing_keys"] if not re.search("modulation|target_embeddings", name))
    if unknown := sorted(report["unexpected_keys"]) + missing:
        raise _unsupported_layers(source.config, f"missing or unknown weights: {unknown[:3]}")
    model.config._name_or_path = ""  # Transformers sets "None"
    return model.to(source.device)


def _gpt2_tensors(weights: dict[str, torch.Tensor], config: AOGPTConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """
    Yield the weights of a GPT-2 under the names of this package.

    In the any-order model, the start token has position embedding 0, and the token at position p has position embedding
    p + 1. For the same length, the model therefore needs one more position embedding than a GPT-2. The additional one
    is a copy of the last one.
    """
    positions = weights["transformer.wpe.weight"][: config.max_position_embeddings]
    yield "model.position_embeddings.weight", torch.cat((positions, positions[-1:]))
    yield "model.embed_tokens.weight", weights["transformer.wte.weight"]
    yield "lm_head.weight", weights["lm_head.weight"]
    for kind in ("weight", "bias"):
        yield f"model.norm.{kind}", weights[f"transformer.ln_f.{kind}"]
        for layer in range(config.num_hidden_layers):
            for old, names in GPT2_LAYER.items():
                tensor = weights[f"transformer.h.{layer}.{old}.{kind}"]
                parts = tensor.t().chunk(len(names))  # a bias has one dimension, and `t` returns it unchanged
                for name, part in zip(names, parts, strict=True):
                    yield f"model.layers.{layer}.{name}.{kind}", part.clone(memory_format=torch.contiguous_format)


def _neutralize_targets(model: AOGPTForAnyOrderLM) -> None:
    """Set the target injection so that it has no effect at first, but gets a gradient from the first step on."""
    for name, module in model.named_modules():
        if isinstance(module, TargetModulation):
            module.proj.weight.zero_()
            module.proj.bias.zero_()
            # The vectors are shift, scale, gate, shift, scale, gate.
            gates = module.proj.bias.view(module.num_vectors, -1)[2::3]
            gates.fill_(1.0)
        elif name.endswith("target_embeddings") and model.config.target_injection != "adaln":
            module.weight.zero_()


@contextmanager
def float32_weights(*models: PreTrainedModel) -> Iterator[None]:
    """Convert 16-bit weights to float32 within a `with` statement. Buffers such as rotary frequencies do not change."""
    dtypes = {weight: weight.dtype for model in models for weight in model.parameters()}
    _cast({weight: torch.promote_types(dtype, torch.float32) for weight, dtype in dtypes.items()})
    try:
        yield
    finally:
        _cast(dtypes)


def _cast(dtypes: dict[nn.Parameter, torch.dtype]) -> None:
    """Cast each weight to its dtype. Weights that share memory still share it."""
    groups = defaultdict(list)
    for weight in dtypes:
        groups[weight.data_ptr(), weight.shape].append(weight)
    for group in groups.values():
        data = group[0].data.to(dtypes[group[0]])
        for weight in group:
            weight.data = data


@torch.no_grad()
def check_predictions(model: AOGPTForAnyOrderLM, causal: PreTrainedModel) -> None:
    """Raise a `ValueError` unless the left-to-right predictions of both models are the same on random tokens."""
    config = model.config
    length = min(NUM_CHECKED_TOKENS, config.max_position_embeddings)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(config.num_valid_tokens, (1, length), generator=generator).to(causal.device)
    start = torch.full_like(ids[:, :1], config.start_token_id)
    with float32_weights(model.to(causal.device), causal):  # rounding to 16 bits would hide differences
        expected = causal(torch.cat((start, ids[:, :-1]), dim=1), use_cache=False).logits
        logits = model(ids).logits
    if (difference := find_difference(logits, expected)) is not None:
        raise ValueError(
            f"The left-to-right logits of the {causal.config.model_type} and of the any-order model differ by "
            f"{difference:.2g}, because the {causal.config.model_type} has features that this package does not "
            "support. Use a model of another type."
        )


def find_difference(logits: torch.Tensor, expected: torch.Tensor) -> torch.Tensor | None:
    """Return the largest difference between logits, or None if it can be a rounding error in float32."""
    # Transformers computes norms and rotations in float32, even in a model with float64 weights.
    tolerance = 100 * torch.finfo(torch.float32).eps ** 0.75 * expected.abs().max()
    difference = (logits - expected).abs().max()
    return None if difference <= tolerance else difference


def find_start_token(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, token: str | None) -> int:
    """
    Return the id of the start token.

    It is `token` if given, or else beginning-of-text, or else end-of-text.

    Raises:
        ValueError: If `token` is not in the vocabulary; or if it is None, and the model has neither a beginning-of-text
            nor an end-of-text token.
    """
    if token is not None:
        if token not in tokenizer.get_vocab():
            raise ValueError(f"`start_token` must be in the vocabulary of the tokenizer, but is {token!r}.")
        return tokenizer.get_vocab()[token]
    eos = config.eos_token_id[0] if isinstance(config.eos_token_id, list) else config.eos_token_id
    for token_id in (tokenizer.bos_token_id, config.bos_token_id, tokenizer.eos_token_id, eos):
        if token_id is not None:
            return token_id
    raise ValueError(
        "The model has neither a beginning-of-text nor an end-of-text token. Set `--start_token` to a token of its "
        "tokenizer."
    )


def find_end_tokens(ids: int | list[int] | None, tokenizer: PreTrainedTokenizerBase) -> int | list[int]:
    """
    Return the ids at which generation stops: that of the tokenizer, and `ids`, those of the source.

    The id of the tokenizer is the first. It separates and pads the documents in training.
    """
    ids = ids if isinstance(ids, list) else [ids]
    first, *others = dict.fromkeys([tokenizer.eos_token_id, *(token for token in ids if token is not None)])
    return [first, *others] if others else first


def read_generation_settings(causal: PreTrainedModel) -> dict[str, Any]:
    """Return the generation settings of a model, for its export, under the key `generation_config`."""
    try:
        causal.generation_config.validate(strict=True)
    except ValueError:
        return {}  # Transformers would not save these settings
    settings = causal.generation_config.to_diff_dict()
    return {"generation_config": {name: value for name, value in settings.items() if not name.startswith("_")}}


def read_source_facts(source: str) -> dict[str, Any]:
    """Return what is known of `_name_or_path` (only a Hub name) and `license` (from the model card)."""
    card = cached_file(
        source,
        "README.md",
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    try:
        metadata = {} if card is None else metadata_load(card) or {}
    except (ValueError, YAMLError):  # the text between the first two "---" is not metadata
        metadata = {}
    facts = {"_name_or_path": None if Path(source).is_dir() else source, "license": metadata.get("license")}
    return {name: fact for name, fact in facts.items() if isinstance(fact, str)}


def convert(
    source: str,
    output_dir: Path,
    target_injection: str | None = None,
    start_token: str | None = None,
    max_length: int | None = None,
) -> AOGPTForAnyOrderLM:
    """
    Convert a causal language model, and write the any-order model and its tokenizer to a folder.

    Args:
        source (`str`): Folder or Hub name.
        output_dir (`Path`): The folder to write. It must be empty or not exist.
        target_injection (`str`, *optional*): See [`convert_model`].
        start_token (`str`, *optional*): See [`find_start_token`].
        max_length (`int`, *optional*): See [`convert_model`].

    Returns:
        `AOGPTForAnyOrderLM`: The converted model.

    Raises:
        ValueError: If the folder is not empty, or if [`convert_model`], [`find_start_token`] or `load_tokenizer` fails.
    """
    check_empty_folder(output_dir)
    config = read_any_config(source)
    tokenizer = load_tokenizer(source)
    start_token_id = find_start_token(config, tokenizer, start_token)
    # Models that cannot be converted are refused before their weights are downloaded.
    convert_config(config, weight_names(config), start_token_id, target_injection, max_length)
    if tokenizer.mask_token_id > config.vocab_size:
        raise ValueError(
            f"The tokenizer of SOURCE has ids up to {tokenizer.mask_token_id - 1}, but the embedding table of SOURCE "
            f"has only {config.vocab_size} entries. Call `resize_token_embeddings` of SOURCE and save it, or remove "
            "the added tokens from its tokenizer."
        )
    causal = load_pretrained(AutoModelForCausalLM, source, dtype="auto").eval()
    model = convert_model(causal, start_token_id, target_injection, max_length)
    model.config.num_valid_tokens = model.config.mask_token_id = tokenizer.mask_token_id
    ends = find_end_tokens(causal.generation_config.eos_token_id, tokenizer)
    model.config.eos_token_id = model.generation_config.eos_token_id = ends
    model.generation_config.order = "left_to_right"  # until the model is trained in other orders
    model.config.source_config |= read_source_facts(source) | read_generation_settings(causal)
    model.config.validate()
    save_model(model, tokenizer, output_dir)
    return model


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser((), description="Convert a causal language model into an any-order model.")
    parser.add_argument("source", metavar="SOURCE", help="folder or Hub name of a causal language model")
    parser.add_argument("output_dir", type=Path, metavar="OUTPUT_DIR", help="folder to write; must be new or empty")
    parser.add_argument(
        "--target_injection",
        choices=INJECTIONS,
        help="how a row gets its target position (default: none for rotary positions, adaln for a GPT-2)",
    )
    parser.add_argument("--start_token", help="token that begins every sequence (default: beginning- or end-of-text)")
    parser.add_argument("--max_length", type=int, help="length of the longest sequence (default: that of SOURCE)")
    (arguments,) = parser.parse(argv)
    model = convert(**vars(arguments))
    print(f"Written: {arguments.output_dir}, with {model.num_parameters():,} parameters.")
    print(f"To train the model in any order, run training/pretrain.py with --init_from {arguments.output_dir}.")


if __name__ == "__main__":
    main(sys.argv[1:])
