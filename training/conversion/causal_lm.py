# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Command that converts a causal language model into an any-order model with the same left-to-right predictions.

    python training/conversion/causal_lm.py SOURCE OUTPUT_DIR [--max_length N] [--start_token TOKEN]

SOURCE is a folder or Hub name of a Llama, Mistral, Qwen2, Qwen3, SmolLM3, OLMo or GPT-2, or of another model with the
layers of a Llama. The converted model has the weights of SOURCE. Left to right, it predicts what SOURCE predicts for a
text that begins with the start token. Other orders are learned by further training. See docs/conversion.md.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from common.commands import Parser, one_line_errors
from common.files import check_empty_folder
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from modeling_aogpt.conversion import Blueprint, ReleasedArchitecture, Tensors
from modeling_aogpt.convert_reference_checkpoint import SIGMA_GPT
from modeling_aogpt.loading import find_base, load_pretrained, read_any_config
from modeling_aogpt.tokenization import load_tokenizer
from training.conversion.core import FAMILIES, check_predictions, convert_settings, read_source_facts, save_converted

# Keys of `source_config` that are not settings of the source. Model cards and the export use them.
SOURCE_FACTS = ("_name_or_path", "license", "generation_config", "mask_token")

# Weights of a GPT-2 have the names of a released decoder, without the names of the target injection.
GPT2 = ReleasedArchitecture(
    "GPT-2", {old: new for old, new in SIGMA_GPT.names.items() if "target" not in new and "modulation" not in new}
)


def convert_config(
    source: PreTrainedConfig, names: set[str], start_token_id: int, max_length: int | None = None
) -> AOGPTConfig:
    """Return the configuration of the any-order model. For a GPT-2, it has a target injection by adaLN.

    The `names` of the weights of the source show which biases and norms it has. The start token begins every sequence.
    `max_length` is the length of the longest sequence. It defaults to the limit of the source.
    """
    return AOGPTConfig(
        **convert_settings(source, names, max_length),
        target_injection="adaln" if source.model_type == "gpt2" else "none",
        start_token_id=start_token_id,
        source_config={k: v for k, v in json.loads(source.to_json_string()).items() if k not in SOURCE_FACTS},
    )


@torch.no_grad()
def convert_model(source: PreTrainedModel, start_token_id: int, max_length: int | None = None) -> AOGPTForAnyOrderLM:
    """Convert a causal language model into an any-order model, as described at the top of this file.

    Both models use the same memory for their weights (except for a GPT-2, whose weights are transposed), so training
    one of them changes the other. See [`convert_config`] for the arguments. Raise a `ValueError` if a setting or a
    weight of the source is not supported, or if the predictions of the two models differ.
    """
    blueprint, tensors = plan(source, start_token_id, max_length)
    model = blueprint.load(tensors).to(source.device)
    check_predictions(model, source)
    return model


def plan(source: PreTrainedModel, start_token_id: int, max_length: int | None) -> tuple[Blueprint, Tensors]:
    """Return the blueprint of the any-order model, and its tensors, which are checked.

    `source` can be a model on the meta device. Everything but the values of its weights is then checked.
    """
    config = convert_config(source.config, set(source.state_dict()), start_token_id, max_length)
    architecture = GPT2 if source.config.model_type == "gpt2" else None
    blueprint = Blueprint.make(AOGPTForAnyOrderLM, config, architecture)
    tensors = released_tensors(source, config) | neutral_targets(blueprint)
    tensors = {name: tensor.to(source.dtype) for name, tensor in tensors.items()}
    blueprint.check(tensors, f"SOURCE (a model of type {source.config.model_type!r})", f"a {FAMILIES}")
    return blueprint, tensors


def released_tensors(source: PreTrainedModel, config: AOGPTConfig) -> Tensors:
    """Return the weights of the source. In a GPT-2, weights of projections are transposed.

    In the any-order model, the start token has position embedding 0, and the token at position p has position embedding
    p + 1. For the same length, the model therefore needs one more position embedding than a GPT-2. The last embedding
    is used twice.
    """
    tensors = dict(source.state_dict())
    if source.config.model_type == "gpt2":
        positions = tensors["transformer.wpe.weight"][: config.max_position_embeddings]
        tensors["transformer.wpe.weight"] = torch.cat((positions, positions[-1:]))
        for name, tensor in tensors.items():
            if re.search(r"\.(c_attn|c_proj|c_fc)\.weight", name):
                tensors[name] = tensor.t().contiguous()
    return tensors


def neutral_targets(blueprint: Blueprint) -> Tensors:
    """Return the initial weights of a target injection that has no effect before training, but gets gradients."""
    tensors, config = {}, blueprint.model.config
    for name, weight in blueprint.model.state_dict().items():
        if "modulation" not in name and "target_embeddings" not in name:
            continue
        tensors[name] = torch.zeros(weight.shape)
        if name.endswith("modulation.proj.bias"):  # shift, scale, gate, shift, scale, gate
            tensors[name].view(-1, config.hidden_size)[2::3] = 1.0
        elif "target_embeddings" in name:
            std, generator = config.initializer_range, torch.Generator().manual_seed(0)
            nn.init.trunc_normal_(tensors[name], std=std, a=-3 * std, b=3 * std, generator=generator)
    return tensors


def find_start_token(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, token: str | None) -> int:
    """Return the id of `token` or, if it is None, of the token that `tokenizer` puts before texts.

    If the tokenizer puts none there, return that of beginning-of-text or, if there is none, of end-of-text.
    """
    if token is not None:
        if token not in tokenizer.get_vocab():
            raise ValueError(f"`start_token` must be in the vocabulary of the tokenizer, but is {token!r}.")
        return tokenizer.get_vocab()[token]
    first, plain = (tokenizer("a", add_special_tokens=added).input_ids[:1] for added in (True, False))
    if first != plain:
        return first[0]
    for token_id in (tokenizer.bos_token_id, getattr(config, "bos_token_id", None), tokenizer.eos_token_id):
        if token_id is not None:
            return token_id
    raise ValueError("The model has no beginning- or end-of-text token. Set `--start_token` to one of its tokens.")


def read_generation_settings(causal: PreTrainedModel) -> dict[str, Any]:
    """Return the generation settings of a model, for its export, under the key `generation_config`."""
    settings = {name: value for name, value in causal.generation_config.to_diff_dict().items() if name[0] != "_"}
    try:
        causal.generation_config.validate(strict=True)
    except ValueError:  # Transformers saves no invalid settings; keep only tokens
        settings = {name: value for name, value in settings.items() if name.endswith("_token_id")}
    return {"generation_config": settings}


def convert(
    source: str, output_dir: Path, start_token: str | None = None, max_length: int | None = None
) -> AOGPTForAnyOrderLM:
    """Convert a causal language model, and write the any-order model and its tokenizer to a new or empty folder.

    `source` is a folder or a Hub name. See [`find_start_token`] and [`convert_config`] for the other arguments. If
    the model cannot be converted, a `ValueError` is raised.
    """
    check_empty_folder(output_dir)
    if find_base(source):
        raise ValueError(f"{source} is an adapter. Merge it into its base model with PEFT, and convert the result.")
    config = read_any_config(source)
    tokenizer = load_tokenizer(source)
    # Raise errors before the weights are downloaded.
    empty = Blueprint.make(AutoModelForCausalLM.from_config, config).model
    kind = type(empty).__name__
    if (names := config.architectures or [kind]) != [kind]:  # such as a DiffuLLaMA
        advice = f"If it predicts as a {kind} does, set them to {[kind]} in the config.json of a copy."
        raise ValueError(f"{source} has the `architectures` {names}, and cannot be converted. {advice}")
    start_token_id = find_start_token(empty.config, tokenizer, start_token)
    plan(empty, start_token_id, max_length)
    if tokenizer.mask_token_id > (size := empty.config.vocab_size):
        raise ValueError(
            f"The tokenizer of SOURCE has ids up to {tokenizer.mask_token_id - 1}, but the embedding table of SOURCE "
            f"has only {size} entries. Call `resize_token_embeddings` of the model and save it, or remove added tokens."
        )
    causal = load_pretrained(AutoModelForCausalLM, source, dtype="auto").eval()
    model = convert_model(causal, start_token_id, max_length)
    model.config.num_valid_tokens = model.config.mask_token_id = tokenizer.mask_token_id
    model.generation_config.order = "left_to_right"  # until the model is trained in other orders
    mask = AutoTokenizer.from_pretrained(source, trust_remote_code=False).mask_token  # `tokenizer` has another one
    facts = read_source_facts(source) | read_generation_settings(causal) | ({"mask_token": mask} if mask else {})
    save_converted(model, tokenizer, causal.generation_config.eos_token_id, facts, output_dir)
    return model


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser((), description="Convert a causal language model into an any-order model.")
    parser.add_argument("source", metavar="SOURCE", help="folder or Hub name of a causal language model")
    parser.add_argument("output_dir", type=Path, metavar="OUTPUT_DIR", help="folder to write; must be new or empty")
    parser.add_argument("--start_token", help="token that begins every sequence (default: that of the tokenizer)")
    parser.add_argument("--max_length", type=int, help="length of the longest sequence (default: limit of SOURCE)")
    (arguments,) = parser.parse(argv)
    model = convert(**vars(arguments))
    print(f"Written: {arguments.output_dir}, with {model.num_parameters():,} parameters.")
    print(f"To train the model in any order, run training/pretrain.py with --init_from {arguments.output_dir}.")


if __name__ == "__main__":
    main(sys.argv[1:])
