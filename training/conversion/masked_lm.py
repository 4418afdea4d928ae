# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Command that converts a masked diffusion model with the layers of a Llama or Qwen into an encoder of this package.

    python training/conversion/masked_lm.py SOURCE OUTPUT_DIR [--max_length N]

SOURCE is a folder or Hub name of a LLaDA (`GSAI-ML/LLaDA-8B-Base`), of a Dream (`Dream-org/Dream-v0-Base-7B`) or of a
Llama, Qwen2 or Qwen3 that dLLM trained as a masked diffusion model (`dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1`). No code
of SOURCE runs. The converted model makes the same predictions. docs/conversion.md describes its mask token, and the
models that cannot be converted.
"""

import copy
import logging
import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedTokenizerBase, Qwen2Tokenizer

from common.commands import Parser, one_line_errors
from common.files import check_empty_folder
from modeling_aogpt import MDMEncoderConfig, MDMEncoderForMaskedLM
from modeling_aogpt.conversion import HEAD, TABLE, Blueprint, ReleasedArchitecture, Tensors, read_json, read_tensors
from modeling_aogpt.tokenization import add_mask_token, load_tokenizer
from modeling_aogpt.validation import is_id
from training.conversion.core import check_predictions, convert_settings, make_causal, read_source_facts, save_converted

# Settings of LLaDA's config.json, and their names in the configuration of a Llama.
LLADA_SETTINGS = {
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "max_sequence_length": "max_position_embeddings",
    "rms_norm_eps": "rms_norm_eps",
    "weight_tying": "tie_word_embeddings",
    "eos_token_id": "eos_token_id",
}
# Settings with which a LLaDA has the layers of a Llama.
LLADA_LAYERS = {
    **dict.fromkeys(("clip_qkv", "final_logit_softcapping", "num_experts", "quantization_config", "rope_scaling")),
    "block_type": "llama",
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "rope": True,
    "alibi": False,
    "attention_layer_norm": False,
    "input_emb_norm": False,
    "scale_logits": False,
    "block_group_size": 1,
}
LLADA_BLOCK = {
    "attn_norm": "input_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_norm": "post_attention_layernorm",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}
LLADA = ReleasedArchitecture(
    "LLaDA",
    {f"model.transformer.blocks.{{layer}}.{old}": f"model.layers.{{layer}}.{new}" for old, new in LLADA_BLOCK.items()}
    | {"model.transformer.wte": "model.embed_tokens"}
    | {"model.transformer.ln_f": "model.norm", "model.transformer.ff_out": "lm_head"},
)
# `model_type` of sources with the settings and names of a causal language model, and its type.
CAUSAL_TYPES = {"Dream": "qwen2", "a2d-llama": "llama", "a2d-qwen2": "qwen2", "a2d-qwen3": "qwen3"}
# Occurs in the names of dLLM's block diffusion models, whose attention is not full. Nothing else shows that they are no
# masked diffusion models.
BLOCK_DIFFUSION = "bd3lm"
NUM_CHECKED_LAYERS = 2


# ------------------------------------------------------------------------------------------------------------- source


def download(source: str, patterns: list[str]) -> Path:
    """Return the folder `source`, or a folder with files of the Hub repository `source` that match `patterns`."""
    if Path(source).is_dir():
        return Path(source)
    try:
        return Path(snapshot_download(source, allow_patterns=patterns, ignore_patterns="*/*"))
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise ValueError(
            f"The model {source!r} was not found as a folder, and could not be downloaded from the Hub. Check the name "
            f"and the connection. (Cause: {error})"
        ) from error


def load_source_tokenizer(folder: Path, kind: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a source, and give it a mask token with the highest id. `kind` is the `model_type`."""
    if kind != "Dream":
        # Transformers also reads config.json, and would warn that it does not know this type of model.
        with patch.object(logging.getLogger("transformers.configuration_utils"), "disabled", True):
            return load_tokenizer(str(folder))
    try:  # Dream has a class of its own, which is a copy of Qwen2Tokenizer
        tokenizer = Qwen2Tokenizer.from_pretrained(folder)
    except Exception as error:  # a damaged file can raise errors of any kind
        raise ValueError(f"The tokenizer in {folder} cannot be loaded: {error}. Download the model again.") from error
    tokenizer.init_kwargs.pop("auto_map", None)
    return add_mask_token(tokenizer)


def find_mask(given: dict[str, Any], folder: Path, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id of the source's mask: the `mask_token_id` of config.json, or the tokenizer's mask token.

    Raise a `ValueError` if there is no mask, if it is not a token, or if the two masks differ.
    """
    path = folder / "tokenizer_config.json"
    token = read_json(path).get("mask_token") if path.exists() else None
    token = token["content"] if isinstance(token, dict) else token
    of_tokenizer = None if token is None else tokenizer.get_vocab().get(token)
    mask = of_tokenizer if given.get("mask_token_id") is None else given["mask_token_id"]
    if not is_id(mask, len(tokenizer)) or of_tokenizer not in (None, mask):
        raise ValueError(
            f"`mask_token_id` is {given.get('mask_token_id')!r} in config.json, and {of_tokenizer!r} in the tokenizer. "
            "Both must be the id of the same token, or one of them None. Correct the one that is wrong."
        )
    return mask


# --------------------------------------------------------------------------------------------------------- conversion


def as_causal_lm(given: dict[str, Any]) -> PreTrainedConfig:
    """Return the configuration of the Llama or Qwen that has the layers of a source with this config.json."""
    kind = given.get("model_type")
    if kind in CAUSAL_TYPES:
        # All layers have full attention, also in a Qwen whose config.json has a sliding window.
        ignored = ("model_type", "auto_map", "sliding_window", "use_sliding_window", "layer_types")
        settings = {name: value for name, value in given.items() if name not in ignored}
    elif kind == "llada":
        settings = _llada_settings(given)
    else:
        raise ValueError(
            f"A model of type {kind!r} cannot be converted. `model_type` in config.json must be one of "
            f"{', '.join(map(repr, ('llada', *CAUSAL_TYPES)))}. Convert causal language models with "
            "training/conversion/causal_lm.py."
        )
    try:
        return AutoConfig.for_model(CAUSAL_TYPES.get(kind, "llama"), **settings)
    except Exception as error:  # of any kind, if settings contradict each other
        raise ValueError(
            f"config.json has settings that are not allowed: {error}. Correct them, or download the model again."
        ) from error


def _llada_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a Llama with the layers of a LLaDA."""
    if missing := [name for name in (*LLADA_SETTINGS, "rope_theta", "vocab_size") if name not in given]:
        raise ValueError(
            f"The config.json of this LLaDA has no {', '.join(missing)}. A LLaDA with a mixture of experts cannot be "
            "converted. Otherwise, download the model again."
        )
    for name, value in LLADA_LAYERS.items():
        if given.get(name, value) != value:
            raise ValueError(
                f"A LLaDA with `{name}={given[name]!r}` cannot be converted. Convert a model with `{name}={value!r}`."
            )
    return {new: given[old] for old, new in LLADA_SETTINGS.items()} | {
        "vocab_size": given.get("embedding_size") or given["vocab_size"],
        "intermediate_size": given.get("mlp_hidden_size") or given.get("mlp_ratio", 4) * given["d_model"],
        "rope_parameters": {"rope_type": "default", "rope_theta": given["rope_theta"]},
        "bos_token_id": None,
        "pad_token_id": None,
    }


def move_mask(weights: Tensors, old: int, new: int, is_tied: bool) -> None:
    """Give the token with the id `new` the embedding of `old`, in place. The tables get one more entry if necessary.

    Raise a `ValueError` if tokens of the tokenizer have no embedding.
    """
    if new > len(weights[TABLE]):
        raise ValueError(
            f"The tokenizer has ids up to {new - 1}, but the embedding table has only {len(weights[TABLE])} entries. "
            "Remove the added tokens from the tokenizer, or add entries for them."
        )
    for name in (TABLE, HEAD, "lm_head.bias"):
        if name in weights and new == len(weights[name]):
            weights[name] = torch.cat((weights[name], torch.zeros_like(weights[name][:1])))
    if old != new:
        weights[TABLE] = weights[TABLE].clone()
        weights[TABLE][new] = weights[TABLE][old]
    if is_tied:
        weights[HEAD] = weights[TABLE]


def plan(given: dict[str, Any], max_length: int | None) -> tuple[PreTrainedConfig, Blueprint, dict[str, Any]]:
    """Return the configuration and blueprint of the causal LM with the same layers, and the settings of the encoder."""
    source = as_causal_lm(given)
    architecture = LLADA if given["model_type"] == "llada" else None
    blueprint = Blueprint.make(AutoModelForCausalLM.from_config, source, architecture)
    return source, blueprint, convert_settings(source, set(blueprint.model.state_dict()), max_length)


@torch.no_grad()
def convert_model(
    given: dict[str, Any], tensors: Tensors, old_mask: int, mask: int, max_length: int | None = None
) -> MDMEncoderForMaskedLM:
    """Return an encoder with the `tensors` of a masked diffusion model. `given` is the content of its config.json.

    `old_mask` is the id of the source's mask, and `mask` that of the encoder's mask. Ids below `mask` stand for text.
    `max_length` defaults to the limit of the source.
    """
    source, blueprint, settings = plan(given, max_length)
    blueprint.check(tensors, "SOURCE", f"its config.json (of type {given['model_type']!r})")
    weights = blueprint.rename(tensors)
    weights = {name: tensor.to(weights[TABLE].dtype) for name, tensor in weights.items()}
    move_mask(weights, old_mask, mask, source.tie_word_embeddings)
    settings["vocab_size"] = source.vocab_size = len(weights[TABLE])
    config = MDMEncoderConfig(
        **settings,
        target_injection="none",
        num_valid_tokens=mask,
        mask_token_id=mask,
        shift_predictions=given["model_type"] == "Dream",
    )
    check_first_layers(source, config, weights)
    return Blueprint.make(MDMEncoderForMaskedLM, config).load(weights)


def check_first_layers(source: PreTrainedConfig, config: MDMEncoderConfig, weights: Tensors) -> None:
    """Raise a `ValueError` unless the first layers of both models make the same predictions."""
    kept = {
        name: tensor.float()
        for name, tensor in weights.items()
        if not (layer := re.match(r"model\.layers\.(\d+)", name)) or int(layer[1]) < NUM_CHECKED_LAYERS
    }
    source, config = copy.deepcopy(source), copy.deepcopy(config)
    for part in (source, config):
        part.num_hidden_layers = min(part.num_hidden_layers, NUM_CHECKED_LAYERS)
    if getattr(source, "layer_types", None):
        source.layer_types = source.layer_types[: source.num_hidden_layers]
    encoder = Blueprint.make(MDMEncoderForMaskedLM, config).load(kept)
    check_predictions(encoder, make_causal(source, kept, torch.float32).eval())


def convert(source: str, output_dir: Path, max_length: int | None = None) -> MDMEncoderForMaskedLM:
    """Convert a masked diffusion model, and write the encoder and its tokenizer to a new or empty folder.

    `source` is a folder or a Hub name. If the model cannot be converted, a `ValueError` is raised.
    """
    check_empty_folder(output_dir)
    # Raise errors before the weights are downloaded.
    if BLOCK_DIFFUSION in Path(source).name.lower():
        raise ValueError(
            f"{source} is a block diffusion model (its name contains {BLOCK_DIFFUSION!r}), without full attention. "
            "Convert a masked diffusion model, whose name in dLLM contains mdlm."
        )
    folder = download(source, ["*.json", "*.jinja", "*.txt", "*.model", "README.md"])
    if not (folder / "config.json").exists():
        raise ValueError(f"{folder} has no config.json. Pass the folder or the Hub name of a model.")
    given = read_json(folder / "config.json")
    config, *_ = plan(given, max_length)
    tokenizer = load_source_tokenizer(folder, given["model_type"])
    old_mask, mask = find_mask(given, folder, tokenizer), tokenizer.mask_token_id
    model = convert_model(given, read_tensors(download(source, ["*.safetensors"])), old_mask, mask, max_length)
    path = folder / "generation_config.json"
    ends = (read_json(path) if path.exists() else {}).get("eos_token_id", config.eos_token_id)
    if old_mask != mask:
        model.generation_config.suppress_tokens = [old_mask]
    save_converted(model, tokenizer, ends, {"model_type": given["model_type"]} | read_source_facts(source), output_dir)
    return model


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser((), description="Convert a masked diffusion model into an encoder of this package.")
    parser.add_argument("source", metavar="SOURCE", help="folder or Hub name of a LLaDA, a Dream or a model of dLLM")
    parser.add_argument("output_dir", type=Path, metavar="OUTPUT_DIR", help="folder to write; must be new or empty")
    parser.add_argument("--max_length", type=int, help="length of the longest sequence (default: limit of SOURCE)")
    (arguments,) = parser.parse(argv)
    model = convert(**vars(arguments))
    print(f"Written: {arguments.output_dir}, with {model.num_parameters():,} parameters.")


if __name__ == "__main__":
    main(sys.argv[1:])
