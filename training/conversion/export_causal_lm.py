# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Command that exports an any-order model as a causal language model of Transformers, such as a Llama.

    python training/conversion/export_causal_lm.py MODEL OUTPUT_DIR

MODEL is a folder or Hub name of a decoder with `target_injection="none"` and a `start_token_id`. It is either a
converted model (`causal_lm.py`), with or without further training, or a model that was trained from scratch
with the layers of a Llama, Qwen2 or Qwen3. For texts that begin with the start token, the exported model has the same
left-to-right predictions as MODEL. It does not need this package, and works with every inference engine that supports
its architecture.
"""

import json
import sys
import warnings
from pathlib import Path

from transformers import AutoConfig, GenerationConfig, PreTrainedConfig, PreTrainedModel

from common.commands import Parser, one_line_errors
from common.files import atomic_folder, check_empty_folder
from common.models import load_merged
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from modeling_aogpt.conversion import read_json
from modeling_aogpt.loading import find_model
from modeling_aogpt.tokenization import MASK, load_tokenizer
from training.conversion.causal_lm import SOURCE_FACTS
from training.conversion.core import COMMON_SETTINGS, check_predictions, make_causal


def export_config(config: AOGPTConfig) -> PreTrainedConfig:
    """Return the configuration of the causal language model. Raise a `ValueError` if Transformers has no such model."""
    if config.model_type != "aogpt" or config.target_injection != "none" or config.position_encoding != "rotary":
        raise ValueError(
            "Only decoders with `position_encoding='rotary'` and `target_injection='none'` can be exported, but this "
            f"model has model_type={config.model_type!r}, position_encoding={config.position_encoding!r} and "
            f"target_injection={config.target_injection!r}. To export a model, train it with these two settings."
        )
    if config.start_token_id is None:
        raise ValueError("A learned start embedding cannot be exported. Train a model with `start_token_id` set.")
    if config.source_config is not None:
        source = {name: value for name, value in config.source_config.items() if name not in SOURCE_FACTS}
        names = ("max_position_embeddings", "vocab_size", "tie_word_embeddings")
        changes = {name: getattr(config, name) for name in names}
        return AutoConfig.for_model(source.pop("model_type"), **source | changes)
    names = (*COMMON_SETTINGS, "max_position_embeddings", "head_dim", "attention_bias", "mlp_bias", "rope_parameters")
    settings = {name: getattr(config, name) for name in (*names, "eos_token_id", "pad_token_id")}
    settings |= {"bos_token_id": config.start_token_id, "rms_norm_eps": config.norm_eps}
    return AutoConfig.for_model(_infer_architecture(config), **settings)


def _infer_architecture(config: AOGPTConfig) -> str:
    """Return the `model_type` of the Transformers model that has the same layers."""
    has_llama_layers = config.gated_mlp and config.norm == "rmsnorm" and config.norm_weight and not config.lm_head_bias
    biases = config.attention_bias, config.attention_output_bias, config.mlp_bias
    has_default_heads = config.head_dim * config.num_attention_heads == config.hidden_size
    if has_llama_layers and not config.no_rope_layers:
        if config.qk_norm and biases in ((True, True, False), (False, False, False)):
            return "qwen3"
        if not config.qk_norm and biases == (True, False, False) and has_default_heads:
            return "qwen2"
        if not config.qk_norm and config.attention_bias == config.attention_output_bias:
            return "llama"
    raise ValueError(
        "The model cannot be exported, because its layers are not those of a Llama, Qwen2 or Qwen3. Train a model with "
        "`gated_mlp=True`, `norm='rmsnorm'`, `norm_weight=True`, `no_rope_layers=None`, `lm_head_bias=False`, "
        "`attention_bias=False`, `attention_output_bias=False` and `mlp_bias=False`."
    )


def export_model(model: AOGPTForAnyOrderLM) -> PreTrainedModel:
    """Return the causal language model with the weights of `model`. Both use the same memory for their weights."""
    if not all(weight.isfinite().all() for weight in model.parameters()):
        raise ValueError("The model has NaN or infinite weights. Export an earlier checkpoint.")
    causal = make_causal(export_config(model.config), model.state_dict(), model.dtype)
    check_predictions(model, causal)
    if generation_settings := (model.config.source_config or {}).get("generation_config"):
        causal.generation_config = GenerationConfig.from_dict(generation_settings)
    return causal


def restore_mask_token(folder: Path, token: str | None = None) -> None:
    """Replace this package's mask token, in the tokenizer in a folder, by the mask token of the source."""
    contents = {name: read_json(folder / name) for name in ("tokenizer.json", "tokenizer_config.json")}
    settings = contents["tokenizer_config.json"]
    settings.pop("mask_token", None)
    settings |= {} if token is None else {"mask_token": token}
    if token != MASK.content:
        tokens = contents["tokenizer.json"]["added_tokens"]
        contents["tokenizer.json"]["added_tokens"] = [item for item in tokens if item["content"] != MASK.content]
        normalizer = contents["tokenizer.json"]["normalizer"] or {}
        if steps := normalizer.get("normalizers"):  # one of them drops the space before a mask
            normalizer["normalizers"] = [step for step in steps if step.get("content") != MASK.content]
        if decoder := settings.get("added_tokens_decoder"):  # absent if only tokenizer.json lists the added tokens
            settings["added_tokens_decoder"] = {k: v for k, v in decoder.items() if v["content"] != MASK.content}
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")


def export(name: str, output_dir: Path) -> PreTrainedModel:
    """Export a model (a folder or Hub name) and its tokenizer to a new or empty folder."""
    check_empty_folder(output_dir)
    model = load_merged(name, dtype="auto")
    tokenizer = load_tokenizer(name)
    causal, start = export_model(model), model.config.start_token_id
    if tokenizer("a").input_ids[:1] != [start]:
        text = f"The tokenizer does not put the start token {tokenizer.convert_ids_to_tokens(start)!r} before texts."
        warnings.warn(f"{text} Add it before each text, because predictions differ without it.", stacklevel=2)
    # Transformers before 5, and programs that follow it, know only these older names, and would use defaults.
    scaling = dict(causal.config.rope_parameters)
    vars(causal.config).update(rope_theta=scaling.pop("rope_theta"), rope_scaling=scaling if len(scaling) > 1 else None)
    with atomic_folder(output_dir) as folder:
        causal.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        restore_mask_token(folder, (model.config.source_config or {}).get("mask_token"))
    load_tokenizer(output_dir)  # warns if the tokenizer class of this type of model gives other ids
    return causal


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser((), description="Export an any-order model as a causal LM of Transformers.")
    parser.add_argument("model", metavar="MODEL", help="folder of an any-order model or a run, or Hub name")
    parser.add_argument("output_dir", type=Path, metavar="OUTPUT_DIR", help="folder to write; must be new or empty")
    (arguments,) = parser.parse(argv)
    causal = export(find_model(arguments.model), arguments.output_dir)
    print(f"Written: {arguments.output_dir} ({type(causal).__name__}, {causal.num_parameters():,} parameters).")


if __name__ == "__main__":
    main(sys.argv[1:])
