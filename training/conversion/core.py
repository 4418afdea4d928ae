# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Functions that the converters of this folder share: settings, comparison of predictions, facts about the source.

`modeling_aogpt/conversion.py` reads and checks tensors, also for the converter of released checkpoints.
"""

import re
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import metadata_load
from torch import nn
from torch.func import functional_call
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import cached_file
from yaml import YAMLError

from common.models import save_model
from modeling_aogpt import AOGPTForAnyOrderLM, MDMEncoderForMaskedLM
from modeling_aogpt.configuration_aogpt import as_list
from modeling_aogpt.conversion import Tensors
from modeling_aogpt.validation import check_integer

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
UNSUPPORTED = (
    {"is_heterogeneous": False, "scale_attn_weights": True}  # `per_layer_config` hides other settings: check it first
    | dict.fromkeys(("quantization_config", "clip_qkv", "num_experts", "num_local_experts", "attention_chunk_size"))
    | dict.fromkeys(("embedding_multiplier", "residual_multiplier", "logits_scaling"), 1.0)
    | dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "attention_multiplier", "auto_map"))
    | dict.fromkeys(("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"), False)
)

# Facts about the source that become part of model cards.
PATTERNS = {"_name_or_path": re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII), "license": re.compile(r"[\w.+-]+", re.ASCII)}
NUM_CHECKED_TOKENS = 64
FAMILIES = "Llama, Mistral, Qwen2, Qwen3, SmolLM3, OLMo or GPT-2"


# ----------------------------------------------------------------------------------------------------------- settings


def convert_settings(source: PreTrainedConfig, names: set[str], max_length: int | None) -> dict[str, Any]:
    """Return the settings of a model of this package with the layers of the source (see `causal_lm.convert_config`)."""
    for name, value in UNSUPPORTED.items():
        if (given := getattr(source, name, value)) != value:
            problem = f"A model with `{name}={given!r}` cannot be converted."
            raise ValueError(f"{problem} Convert a model with `{name}={value!r}`.")
    is_gpt2 = source.model_type == "gpt2"
    needed = ["rope_parameters", "max_position_embeddings"] if not is_gpt2 else []
    if "model.layers.0.input_layernorm.weight" in names:
        needed.append("rms_norm_eps")
    if missing := [name for name in needed if not hasattr(source, name)]:
        raise ValueError(
            f"A model of type {source.model_type!r} cannot be converted, because its config.json has no "
            f"{', '.join(missing)}. Use a {FAMILIES}, or another model with the layers of a Llama."
        )
    max_length = source.max_position_embeddings if max_length is None else max_length
    check_integer("max_length", max_length, most=source.max_position_embeddings)
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


def _rotary_settings(source: PreTrainedConfig, names: set[str], max_length: int) -> dict[str, Any]:
    """Return the settings of a model with the layers of a Llama. The `names` of its weights show which parts it has."""
    window = getattr(source, "sliding_window", None)
    has_types = hasattr(type(source), "layer_types")  # a Mistral ignores them
    layer_types = (source.layer_types or []) if has_types else []
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


# --------------------------------------------------------------------------------------------------------- comparison


def make_causal(config: PreTrainedConfig, tensors: Tensors, dtype: torch.dtype) -> PreTrainedModel:
    """Return the causal language model of Transformers with these tensors. Tensors that have `dtype` are not copied."""
    kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    causal = kind.from_pretrained(None, config=config, state_dict=dict(tensors), dtype=dtype)
    causal.config._name_or_path = ""  # Transformers sets "None"
    return causal


@torch.no_grad()
def check_predictions(model: AOGPTForAnyOrderLM | MDMEncoderForMaskedLM, causal: PreTrainedModel) -> None:
    """Raise a `ValueError` unless both models have the same logits for random tokens.

    A decoder is compared left to right, and an encoder with `causal` under full attention.
    """
    config, device, shared = model.to(causal.device).config, causal.device, {}
    is_encoder = isinstance(model, MDMEncoderForMaskedLM)
    length = min(NUM_CHECKED_TOKENS, config.max_position_embeddings)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(config.num_valid_tokens + is_encoder, (1, length), generator=generator).to(device)

    def call(module: nn.Module, *inputs: torch.Tensor, **options: Any) -> Any:
        """Call a module with float32 weights, because rounding to 16 bits would hide differences."""
        weights = {}
        for name, weight in module.named_parameters():
            if (key := (weight.data_ptr(), weight.shape)) not in shared:  # both models have the same weights
                shared[key] = weight.to(torch.promote_types(weight.dtype, torch.float32))
            weights[name] = shared[key]
        return functional_call(module, weights, inputs, options)

    if is_encoder:
        causal.set_attn_implementation("eager")
        all_tokens = torch.zeros(1, 1, length, length, device=device)
        expected = call(causal, ids, attention_mask=all_tokens, use_cache=False).logits
        if config.shift_predictions:
            expected = torch.cat((expected[:, :1], expected[:, :-1]), dim=1)
        logits = model.apply_head(model.model(ids).last_hidden_state)  # in float32 already
    else:
        start = torch.full_like(ids[:, :1], config.start_token_id)
        expected = call(causal, torch.cat((start, ids[:, :-1]), dim=1), use_cache=False).logits
        logits = call(model, ids).logits
    # Transformers computes norms and rotations in float32, even in a model with float64 weights.
    tolerance = 100 * torch.finfo(torch.float32).eps ** 0.75 * expected.abs().max()
    difference = (logits - expected).abs().max()
    if not difference <= tolerance:  # also if it is NaN
        raise ValueError(
            f"The logits of Transformers' {causal.config.model_type} and of this package's model differ by "
            f"{difference:.2g}, because it has features that this package lacks. Use a model of another type."
        )


# -------------------------------------------------------------------------------------------------------------- facts


def save_converted(
    model: AOGPTForAnyOrderLM | MDMEncoderForMaskedLM,
    tokenizer: PreTrainedTokenizerBase,
    ends: int | list[int] | None,
    facts: dict[str, Any],
    output_dir: Path,
) -> None:
    """Write a converted model and its tokenizer. `facts` are about the source. `ends` are its end-of-text ids.

    The first id in `ends` is the tokenizer's end-of-text. It separates and pads the documents in training.
    """
    ends = list(dict.fromkeys([tokenizer.eos_token_id, *(token for token in as_list(ends) if token is not None)]))
    model.config.eos_token_id = model.generation_config.eos_token_id = ends if len(ends) > 1 else ends[0]
    model.config.source_config = (model.config.source_config or {}) | facts
    model.config.validate()
    save_model(model, tokenizer, output_dir)


def read_source_facts(source: str) -> dict[str, str]:
    """Return what is known of `_name_or_path`, only for a Hub model, and `license`, from its model card.

    Both are inserted into model cards, so only plain names are returned.
    """
    options = dict.fromkeys(("missing_entries", "connection_errors"), False)
    card = cached_file(source, "README.md", **{f"_raise_exceptions_for_{name}": flag for name, flag in options.items()})
    try:
        metadata = {} if card is None else metadata_load(card) or {}
    except (ValueError, YAMLError):  # the text between the first two "---" is not metadata
        metadata = {}
    facts = {"_name_or_path": None if Path(source).is_dir() else source, "license": metadata.get("license")}
    return {name: fact for name, fact in facts.items() if isinstance(fact, str) and PATTERNS[name].fullmatch(fact)}
