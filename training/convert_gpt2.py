# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Command that converts a left-to-right GPT-2 into an AO-GPT, as a start for training in any order.

    python training/convert_gpt2.py SOURCE OUTPUT_DIR [--target_injection adaln|input|shared|per_layer]

SOURCE is a folder or Hub name of a `GPT2LMHeadModel`. Left to right, the new model predicts the same as the GPT-2 after
`<|endoftext|>`, up to rounding. Its weights are made as follows:

* Token table, tied head, blocks and norms are copied.
* The start row gets the embedding of `<|endoftext|>`, with which a GPT-2 begins a text. It takes GPT-2's position 0,
  and the token at position p takes GPT-2's position p + 1. GPT-2 has no position for the last token of a sequence of
  full length, which therefore shares that of the token before. Left to right, no prediction depends on this token.
* Targets have no effect at first, since a GPT-2 does not have them. With `"adaln"`, target embeddings are random, and
  their modulation has shift 0, scale 0 and gate 1. With the other kinds, the embeddings are 0. Both are trained from
  the first step on.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

from common.commands import one_line_errors
from common.files import atomic_folder, check_empty_folder
from common.models import load_pretrained, read_any_config
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from modeling_aogpt.modeling_aogpt import TargetModulation
from modeling_aogpt.tokenization import load_matching_tokenizer

# GPT-2's name of each module of a block, and ours. GPT-2's projections are transposed (Conv1D of Transformers).
BLOCK = {
    "ln_1": "input_layernorm",
    "attn.c_attn": "self_attn.qkv_proj",
    "attn.c_proj": "self_attn.o_proj",
    "ln_2": "post_attention_layernorm",
    "mlp.c_fc": "mlp.up_proj",
    "mlp.c_proj": "mlp.down_proj",
}
# Settings that a GPT-2 must have, because AO-GPT does not support others.
REQUIRED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


def convert_config(gpt2: GPT2Config, target_injection: str) -> AOGPTConfig:
    """Return the configuration of the AO-GPT. Raise a `ValueError` if a setting of the GPT-2 is not supported."""
    for name, value in REQUIRED.items():
        if getattr(gpt2, name) != value:
            raise ValueError(f"`{name}` of the GPT-2 is {getattr(gpt2, name)}; only {value} can be converted.")
    return AOGPTConfig(
        vocab_size=gpt2.vocab_size,
        num_valid_tokens=gpt2.vocab_size,  # a tied head would give padding ids, with rows of zeros, probability
        hidden_size=gpt2.n_embd,
        num_hidden_layers=gpt2.n_layer,
        num_attention_heads=gpt2.n_head,
        intermediate_size=gpt2.n_inner,
        max_position_embeddings=gpt2.n_positions,
        target_injection=target_injection,
        norm="layernorm",
        norm_eps=gpt2.layer_norm_epsilon,
        qk_norm=False,
        lm_head_bias=False,
        tie_word_embeddings=True,
        hidden_act=gpt2.activation_function,
        initializer_range=gpt2.initializer_range,
        bos_token_id=gpt2.bos_token_id,
        eos_token_id=gpt2.eos_token_id,
    )


@torch.no_grad()
def convert_model(gpt2: GPT2LMHeadModel, target_injection: str = "adaln", seed: int = 0) -> AOGPTForAnyOrderLM:
    """
    Return the AO-GPT of a GPT-2, as described above.

    Args:
        gpt2 (`GPT2LMHeadModel`): The GPT-2, with a `config.eos_token_id`.
        target_injection (`str`): As in [`AOGPTConfig`].
        seed (`int`): Seed of the target embeddings.

    Raises:
        ValueError: If a setting of the GPT-2 is not supported, or it has no end-of-text token.
    """
    config = convert_config(gpt2.config, target_injection)
    if config.eos_token_id is None:
        raise ValueError("The GPT-2 has no `eos_token_id`, which the start row needs. Set it in its configuration.")
    set_seed(seed)
    model = AOGPTForAnyOrderLM(config).to(gpt2.dtype).eval()
    weights = gpt2.transformer.state_dict()
    tensors = dict(_copied_tensors(weights, config))
    tensors["model.start_embedding.weight"] = weights["wte.weight"][[config.eos_token_id]]
    positions = weights["wpe.weight"]
    tensors["model.position_embeddings.weight"] = torch.cat((positions, positions[-1:]))
    result = model.load_state_dict(tensors, strict=False)
    assert not result.unexpected_keys
    assert {name.split(".")[-2] for name in result.missing_keys} <= {"proj", "target_embeddings", "lm_head"}
    model.tie_weights()
    for name, module in model.named_modules():
        if isinstance(module, TargetModulation):
            module.proj.weight.zero_()
            module.proj.bias.zero_()
            module.proj.bias.view(module.num_vectors, -1)[2::3] = 1.0  # the vectors are shift, scale, gate, twice
        elif name.endswith("target_embeddings") and target_injection != "adaln":
            module.weight.zero_()
    return model


def _copied_tensors(weights: dict[str, torch.Tensor], config: AOGPTConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield our names and the values of the tensors that both models have."""
    yield "model.embed_tokens.weight", weights["wte.weight"]
    for kind in ("weight", "bias"):
        yield f"model.norm.{kind}", weights[f"ln_f.{kind}"]
        for layer in range(config.num_hidden_layers):
            for old, new in BLOCK.items():
                tensor = weights[f"h.{layer}.{old}.{kind}"]
                yield f"model.layers.{layer}.{new}.{kind}", tensor.t().contiguous() if tensor.dim() == 2 else tensor


def convert(source: str, output_dir: Path, target_injection: str = "adaln") -> None:
    """Write the AO-GPT of a GPT-2, and its tokenizer, to a folder. Errors are those of `convert_model`."""
    check_empty_folder(output_dir)
    kind = read_any_config(source).model_type
    if kind != "gpt2":
        raise ValueError(f"{source} is a model of type {kind!r}, but must be a GPT-2.")
    model = convert_model(load_pretrained(GPT2LMHeadModel, source), target_injection)
    tokenizer = load_matching_tokenizer(model.config, source)
    with atomic_folder(output_dir) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


@one_line_errors()
def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Convert a left-to-right GPT-2 into an AO-GPT.")
    parser.add_argument("source", metavar="SOURCE", help="folder or Hub name of a GPT2LMHeadModel")
    parser.add_argument("output_dir", type=Path, metavar="OUTPUT_DIR", help="folder to write; must be new or empty")
    parser.add_argument("--target_injection", choices=("adaln", "input", "shared", "per_layer"), default="adaln")
    arguments = parser.parse_args()
    convert(arguments.source, arguments.output_dir, arguments.target_injection)
    print(f"Written: {arguments.output_dir}. Train it with --init_from {arguments.output_dir}.")


if __name__ == "__main__":
    main()
