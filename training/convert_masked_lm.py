# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Command that converts a masked diffusion model with the layers of a Llama or Qwen into an encoder of this package.

    python training/convert_masked_lm.py SOURCE OUTPUT_DIR [--max_length N]

SOURCE is a folder or Hub name of a LLaDA (`GSAI-ML/LLaDA-8B-Base`) or of a Llama, Qwen2 or Qwen3 that dLLM trained as a
masked diffusion model (`dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1`). No code of SOURCE runs. The converted model makes
the same predictions.

In this package, the mask has the highest id. If the mask of SOURCE has another id, the tokenizer gets the new token
`<|mask|>`, with the embedding of SOURCE's mask. The old mask remains in the vocabulary, but it is never generated.

These models cannot be converted: Dream, which predicts the token after each position; LLaDA with a mixture of experts;
and block diffusion models, whose attention is not full. The config.json of a block diffusion model of dLLM is that of a
masked diffusion model, so the command does not recognize it.
"""

import copy
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    PreTrainedConfig,
)

from common.commands import Parser, one_line_errors
from common.files import check_empty_folder
from common.models import save_model
from modeling_aogpt import MDMEncoderConfig, MDMEncoderForMaskedLM
from modeling_aogpt.tokenization import load_tokenizer
from training.convert_causal_lm import NUM_CHECKED_TOKENS, convert_settings

# Settings of LLaDA's config.json, and their names in a LlamaConfig.
LLADA_SETTINGS = {
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "mlp_hidden_size": "intermediate_size",
    "embedding_size": "vocab_size",
    "max_sequence_length": "max_position_embeddings",
    "rms_norm_eps": "rms_norm_eps",
    "weight_tying": "tie_word_embeddings",
    "eos_token_id": "eos_token_id",
}
# Settings with which a LLaDA has the layers of a Llama.
LLADA_LAYERS = {
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
# Names of modules of a LLaDA, after `model.transformer.`, and their names in a Llama.
LLADA_MODULES = {
    "wte": "model.embed_tokens",
    "ln_f": "model.norm",
    "ff_out": "lm_head",
    "blocks.N.attn_norm": "model.layers.N.input_layernorm",
    "blocks.N.q_proj": "model.layers.N.self_attn.q_proj",
    "blocks.N.k_proj": "model.layers.N.self_attn.k_proj",
    "blocks.N.v_proj": "model.layers.N.self_attn.v_proj",
    "blocks.N.attn_out": "model.layers.N.self_attn.o_proj",
    "blocks.N.ff_norm": "model.layers.N.post_attention_layernorm",
    "blocks.N.ff_proj": "model.layers.N.mlp.gate_proj",
    "blocks.N.up_proj": "model.layers.N.mlp.up_proj",
    "blocks.N.ff_out": "model.layers.N.mlp.down_proj",
}
DLLM_TYPES = ("a2d-llama", "a2d-qwen2", "a2d-qwen3")
NUM_CHECKED_LAYERS = 2


def read_source(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """
    Return the content of config.json, and the tensors of the safetensors files in a folder.

    Raises:
        ValueError: If files are missing or damaged.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files or not (folder / "config.json").is_file():
        raise ValueError(f"{folder} must contain config.json and *.safetensors. Pass the folder or name of a model.")
    try:
        given = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return given, {name: tensor for file in files for name, tensor in load_file(file).items()}
    except (ValueError, SafetensorError) as error:
        raise ValueError(f"{folder} is damaged: {error}. Download the model again.") from error


def as_causal_lm(
    given: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> tuple[PreTrainedConfig, dict[str, torch.Tensor]]:
    """
    Return the configuration and the tensors of the Llama or Qwen that has the layers of the source.

    Args:
        given: The content of the source's config.json.
        tensors: The tensors of the source.

    Raises:
        ValueError: If the source has other layers, or is of an unknown kind.
    """
    kind = given.get("model_type") if isinstance(given, dict) else None
    if kind in DLLM_TYPES:
        settings = {name: value for name, value in given.items() if name not in ("model_type", "auto_map")}
        return AutoConfig.for_model(kind.removeprefix("a2d-"), **settings), tensors
    if kind != "llada":
        raise ValueError(
            f"A model of type {kind!r} cannot be converted. `model_type` in config.json must be 'llada' or one of "
            f"{', '.join(map(repr, DLLM_TYPES))}. Convert causal language models with training/convert_causal_lm.py."
        )
    for name, value in LLADA_LAYERS.items():
        if given.get(name, value) != value:
            raise ValueError(
                f"A LLaDA with `{name}={given[name]!r}` cannot be converted. Convert a model with `{name}={value!r}`."
            )
    if missing := [name for name in (*LLADA_SETTINGS, "rope_theta") if name not in given]:
        raise ValueError(f"The config.json of the LLaDA has no {', '.join(missing)}. Download the model again.")
    settings = {new: given[old] for old, new in LLADA_SETTINGS.items()}
    rope = {"rope_type": "default", "rope_theta": given["rope_theta"]}
    config = LlamaConfig(**settings, rope_parameters=rope, bos_token_id=None, pad_token_id=None)
    return config, {_llama_name(name): tensor for name, tensor in tensors.items()}


def _llama_name(name: str) -> str:
    """Return the name in a Llama of a tensor of a LLaDA, or an unknown name unchanged."""
    module, _, kind = name.removeprefix("model.transformer.").rpartition(".")
    layer = re.search(r"\d+", module)
    new = LLADA_MODULES.get(re.sub(r"\d+", "N", module, count=1))
    return name if new is None else f"{new.replace('N', layer[0] if layer else '')}.{kind}"


def find_mask(given: dict[str, Any], folder: Path) -> int:
    """
    Return the id of the source's mask: the `mask_token_id` of config.json or, if this is not set, of the tokenizer.

    Raises:
        ValueError: If neither of them has a mask.
    """
    mask = given.get("mask_token_id")
    mask = AutoTokenizer.from_pretrained(folder, trust_remote_code=False).mask_token_id if mask is None else mask
    if mask is None:
        raise ValueError("Neither config.json nor the tokenizer has a mask. Set `mask_token_id` in config.json.")
    return mask


def move_mask(tensors: dict[str, torch.Tensor], old: int, new: int) -> None:
    """Give the token with the id `new` the embedding of `old`. If necessary, append rows to the tables, in place."""
    for name in ("model.embed_tokens.weight", "lm_head.weight", "lm_head.bias"):
        if name in tensors and new >= len(tensors[name]):
            rows = tensors[name].new_zeros(new + 1 - len(tensors[name]), *tensors[name].shape[1:])
            tensors[name] = torch.cat((tensors[name], rows))
    if old != new:
        table = tensors["model.embed_tokens.weight"].clone()
        table[new] = table[old]
        tensors["model.embed_tokens.weight"] = table


def convert_model(
    source: PreTrainedConfig, tensors: dict[str, torch.Tensor], mask_token_id: int, max_length: int | None = None
) -> MDMEncoderForMaskedLM:
    """
    Return an encoder with the weights of a masked diffusion model.

    Args:
        source (`PreTrainedConfig`): Configuration of the causal language model with the same layers.
        tensors (`dict` of `torch.Tensor`): The weights, with the names of this causal language model.
        mask_token_id (`int`): Id of the mask. Lower ids stand for text.
        max_length (`int`, *optional*): Length of the longest sequence; defaults to that of the source.

    Raises:
        ValueError: If a setting or a weight is not supported, or if the predictions differ from those of the causal
            language model with full attention.
    """
    settings = convert_settings(source, set(tensors), max_length)
    settings["vocab_size"] = source.vocab_size = len(tensors["model.embed_tokens.weight"])
    config = MDMEncoderConfig(
        **settings, target_injection="none", num_valid_tokens=mask_token_id, mask_token_id=mask_token_id
    )
    check_predictions(source, config, tensors)
    return _load_weights(config, tensors)


def _load_weights(config: MDMEncoderConfig, tensors: dict[str, torch.Tensor]) -> MDMEncoderForMaskedLM:
    """Return an encoder with these weights. Raise a `ValueError` if weights are missing, unknown or of other shapes."""
    model, report = MDMEncoderForMaskedLM.from_pretrained(
        None,
        config=config,
        state_dict=dict(tensors),
        dtype=tensors["model.embed_tokens.weight"].dtype,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    other_shapes = {name for name, *_ in report["mismatched_keys"]}
    if wrong := sorted({*report["missing_keys"], *report["unexpected_keys"], *other_shapes}):
        raise ValueError(f"These weights do not fit config.json: {', '.join(wrong[:3])}. Download the model again.")
    model.config._name_or_path = ""  # Transformers sets "None"
    return model.eval()


@torch.no_grad()
def check_predictions(source: PreTrainedConfig, config: MDMEncoderConfig, tensors: dict[str, torch.Tensor]) -> None:
    """
    Raise a `ValueError` unless the encoder predicts what the causal language model predicts with full attention.

    Only the first layers are compared, on random tokens, in float32.
    """
    kept = {
        name: tensor.float()
        for name, tensor in tensors.items()
        if not (layer := re.match(r"model\.layers\.(\d+)", name)) or int(layer[1]) < NUM_CHECKED_LAYERS
    }
    source, config = copy.deepcopy(source), copy.deepcopy(config)
    for part in (source, config):
        part.num_hidden_layers = min(part.num_hidden_layers, NUM_CHECKED_LAYERS)
    if getattr(source, "layer_types", None):
        source.layer_types = source.layer_types[: source.num_hidden_layers]
    encoder = _load_weights(config, kept)
    causal = AutoModelForCausalLM.from_config(source, dtype=torch.float32, attn_implementation="eager").eval()
    causal.load_state_dict(kept, strict=False)  # tied weights may be missing
    length = min(NUM_CHECKED_TOKENS, config.max_position_embeddings)
    ids = torch.randint(config.mask_token_id + 1, (1, length), generator=torch.Generator().manual_seed(0))
    all_rows = torch.zeros(1, 1, length, length)
    expected = causal(ids, attention_mask=all_rows, use_cache=False).logits
    difference = (encoder.apply_head(encoder.model(ids).last_hidden_state) - expected).abs().max()
    if not difference <= 100 * torch.finfo(torch.float32).eps ** 0.75 * expected.abs().max():
        raise ValueError(
            f"The logits of the encoder and of a {source.model_type} with full attention differ by {difference:.2g}, "
            f"because this {source.model_type} has features that this package does not support. Use another model."
        )


def convert(source: str, output_dir: Path, max_length: int | None = None) -> MDMEncoderForMaskedLM:
    """
    Convert a masked diffusion model, and write the encoder and its tokenizer to a folder.

    Args:
        source (`str`): Folder or Hub name.
        output_dir (`Path`): The folder to write. It must be empty or not exist.
        max_length (`int`, *optional*): See [`convert_model`].

    Returns:
        `MDMEncoderForMaskedLM`: The converted model.

    Raises:
        ValueError: If the folder is not empty, if the source has no mask, or if [`read_source`], [`as_causal_lm`],
            [`convert_model`] or `load_tokenizer` fails.
    """
    check_empty_folder(output_dir)
    files = ["*.json", "*.jinja", "*.safetensors", "*.txt", "*.model"]
    folder = Path(source) if Path(source).is_dir() else Path(snapshot_download(source, allow_patterns=files))
    given, tensors = read_source(folder)
    config, tensors = as_causal_lm(given, tensors)
    tokenizer = load_tokenizer(str(folder))
    old_mask, mask = find_mask(given, folder), tokenizer.mask_token_id
    move_mask(tensors, old_mask, mask)
    model = convert_model(config, tensors, mask, max_length)
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    if old_mask != mask:
        model.generation_config.suppress_tokens = [old_mask]
    model.config.validate()
    save_model(model, tokenizer, output_dir)
    return model


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser((), description="Convert a masked diffusion model into an encoder of this package.")
    parser.add_argument("source", metavar="SOURCE", help="folder or Hub name of a LLaDA or of a model of dLLM")
    parser.add_argument("output_dir", type=Path, metavar="OUTPUT_DIR", help="folder to write; must be new or empty")
    parser.add_argument("--max_length", type=int, help="length of the longest sequence (default: that of SOURCE)")
    (arguments,) = parser.parse(argv)
    model = convert(**vars(arguments))
    print(f"Written: {arguments.output_dir}, with {model.num_parameters():,} parameters.")


if __name__ == "__main__":
    main(sys.argv[1:])
