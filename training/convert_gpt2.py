# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Make an AO-GPT of a left-to-right GPT-2, to be trained on in any order:

    python training/convert_gpt2.py SOURCE OUTPUT_DIR [--target_injection adaln|input|shared|per_layer]

SOURCE is a folder or Hub name of a `GPT2LMHeadModel`. Left to right the new model is that GPT-2: its prediction of
token i is GPT-2's after `<|endoftext|>` and the tokens before i, to the last digits. What becomes what:

* token table and tied head, blocks, norms: the same;
* the start row: the embedding of `<|endoftext|>`, the token with which GPT-2 begins a text; it stands at GPT-2's
  position 0, so a token at position p takes GPT-2's position p + 1. The last token of a sequence of full length, which
  only a query of more positions ever shows, repeats GPT-2's last position;
* target positions, which a GPT-2 does not know: without effect at first. Under `"adaln"` target embeddings are random,
  and the modulation that they are mapped to has shift 0, scale 0 and gate 1 for all; under the others the embeddings
  are zeros. Both learn from the first step.
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

# GPT-2's module -> ours. Its projections are stored the other way round (transformers' Conv1D).
BLOCK = {
    "ln_1": "input_layernorm",
    "attn.c_attn": "attention.qkv_proj",
    "attn.c_proj": "attention.o_proj",
    "ln_2": "post_attention_layernorm",
    "mlp.c_fc": "mlp.up_proj",
    "mlp.c_proj": "mlp.down_proj",
}
# What our blocks do not have, with the values that they amount to.
REQUIRED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}


def config_of(gpt2: GPT2Config, target_injection: str) -> AOGPTConfig:
    """Return the configuration. Raises a `ValueError` for a GPT-2 whose blocks compute what ours cannot."""
    for name, value in {**REQUIRED, "tie_word_embeddings": True}.items():
        if getattr(gpt2, name) != value:
            raise ValueError(f"This GPT-2 has {name}={getattr(gpt2, name)}; only {value} can be converted.")
    return AOGPTConfig(
        vocab_size=gpt2.vocab_size,
        num_valid_tokens=gpt2.vocab_size,  # no padding ids: a tied head of zeros would give them all the mass
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
def from_gpt2(gpt2: GPT2LMHeadModel, target_injection: str = "adaln", seed: int = 0) -> AOGPTForAnyOrderLM:
    """
    Return the AO-GPT of a GPT-2, see above.

    Args:
        gpt2 (`GPT2LMHeadModel`): Of any size, with a `config.eos_token_id`.
        target_injection (`str`): As in [`AOGPTConfig`].
        seed (`int`): Of the target embeddings.

    Raises:
        ValueError: If the model computes what our blocks do not, or has no end-of-text token.
    """
    config = config_of(gpt2.config, target_injection)
    if config.eos_token_id is None:
        raise ValueError("This GPT-2 has no eos_token_id, with whose embedding the start row begins: set it.")
    set_seed(seed)
    model = AOGPTForAnyOrderLM(config).to(gpt2.dtype).eval()
    weights = gpt2.transformer.state_dict()
    tensors = dict(converted(weights, config))
    tensors["model.start_embedding.weight"] = weights["wte.weight"][[config.eos_token_id]]
    positions = weights["wpe.weight"]
    tensors["model.position_embeddings.weight"] = torch.cat((positions, positions[-1:]))
    unknown = model.load_state_dict(tensors, strict=False)
    assert not unknown.unexpected_keys
    left = {name.split(".")[-2] for name in unknown.missing_keys}
    assert left <= {"proj", "target_embeddings", "lm_head"}, unknown.missing_keys
    model.tie_weights()
    for name, module in model.named_modules():
        if isinstance(module, TargetModulation):
            neutralize(module)
        elif name.endswith("target_embeddings") and target_injection != "adaln":
            module.weight.zero_()
    return model


def converted(weights: dict[str, torch.Tensor], config: AOGPTConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the names and tensors of what is the same in both."""
    yield "model.embed_tokens.weight", weights["wte.weight"]
    for kind in ("weight", "bias"):
        yield f"model.norm.{kind}", weights[f"ln_f.{kind}"]
        for layer in range(config.num_hidden_layers):
            for old, new in BLOCK.items():
                tensor = weights[f"h.{layer}.{old}.{kind}"]
                yield f"model.layers.{layer}.{new}.{kind}", tensor.t().contiguous() if tensor.dim() == 2 else tensor


def neutralize(modulation: TargetModulation) -> None:
    """Set shifts and scales to 0 and gates to 1 for every target: the vectors come as shift, scale, gate, twice."""
    modulation.proj.weight.zero_()
    modulation.proj.bias.zero_()
    modulation.proj.bias.view(modulation.num_vectors, -1)[2::3] = 1.0


@one_line_errors()
def main() -> None:
    parser = argparse.ArgumentParser(description="Make an AO-GPT of a left-to-right GPT-2.")
    parser.add_argument("source", metavar="SOURCE", help="folder or Hub name of a GPT2LMHeadModel")
    parser.add_argument("output_dir", type=Path, metavar="OUTPUT_DIR", help="the folder to write; new, or empty")
    parser.add_argument("--target_injection", choices=("adaln", "input", "shared", "per_layer"), default="adaln")
    arguments = parser.parse_args()
    convert(arguments.source, arguments.output_dir, arguments.target_injection)
    print(f"{arguments.output_dir}: train it with --init_from {arguments.output_dir}")


def convert(source: str, output_dir: Path, target_injection: str = "adaln") -> AOGPTForAnyOrderLM:
    """Write the AO-GPT of a GPT-2 and its tokenizer to a folder, atomically. Errors as in `from_gpt2`."""
    check_empty_folder(output_dir)
    kind = read_any_config(source).model_type
    if kind != "gpt2":
        raise ValueError(f"{source} is a model of type {kind!r}, and no GPT-2.")
    model = from_gpt2(load_pretrained(GPT2LMHeadModel, source), target_injection)
    tokenizer = load_matching_tokenizer(model.config, source)
    with atomic_folder(output_dir) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return model


if __name__ == "__main__":
    main()
