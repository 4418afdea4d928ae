# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Converts a released model into a folder that `AutoModel.from_pretrained(OUT_DIR, trust_remote_code=True)` loads:

    python -m modeling_aogpt.convert_reference_checkpoint SOURCE OUT_DIR [--weights ema|live] [--tokenizer gpt2]

SOURCE is a `.pt` file of AO-GPT or sigma-GPT (Hub repository `Cauthyyy/AO-GPT-MDM`), or the folder, `config.json` and
`model.safetensors`, of a SEDD (`louaaron/sedd-*`) or RADD (`JingyangOu/radd-*`).
"""

import argparse
import json
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from .configuration_aogpt import GPT2_PADDED_VOCAB_SIZE, GPT2_VOCAB_SIZE, AOGPTConfig
from .configuration_mdm_encoder import MDMEncoderConfig
from .mask_token import tokenizer_of
from .modeling_aogpt import AOGPTForAnyOrderLM
from .modeling_mdm_encoder import MDMEncoderForMaskedLM

# Released name of a module or tensor -> its name here, in the order of the authors' `model.parameters()`, which is that
# of the moving averages. What a model does not have (q_norm, k_norm and adaLN in a sigma-GPT) is passed over.
DECODER_EMBEDDINGS = {
    "transformer.wte": "model.embed_tokens",
    "transformer.wpe": "model.position_embeddings",
    "transformer.wtpe": "model.target_embeddings",
    "transformer.wnonee": "model.start_embedding",
}
DECODER_BLOCK = {
    "transformer.h.{layer}.ln_1": "model.layers.{layer}.input_norm",
    "transformer.h.{layer}.attn.c_attn": "model.layers.{layer}.attention.qkv_proj",
    "transformer.h.{layer}.attn.c_proj": "model.layers.{layer}.attention.o_proj",
    "transformer.h.{layer}.attn.q_norm": "model.layers.{layer}.attention.q_norm",
    "transformer.h.{layer}.attn.k_norm": "model.layers.{layer}.attention.k_norm",
    "transformer.h.{layer}.ln_2": "model.layers.{layer}.post_attention_norm",
    "transformer.h.{layer}.mlp.c_fc": "model.layers.{layer}.mlp.up_proj",
    "transformer.h.{layer}.mlp.c_proj": "model.layers.{layer}.mlp.down_proj",
    "transformer.h.{layer}.adaLN.1": "model.layers.{layer}.modulation.proj",
}
ENCODER_EMBEDDINGS = {
    "vocab_embed.embedding": "model.embed_tokens.weight",
    "sigma_map.mlp.0": "model.sigma_embedding.up_proj",
    "sigma_map.mlp.2": "model.sigma_embedding.down_proj",
}
ENCODER_BLOCK = {
    "blocks.{layer}.norm1": "model.layers.{layer}.input_norm",
    "blocks.{layer}.attn_qkv": "model.layers.{layer}.attention.qkv_proj",
    "blocks.{layer}.attn_out": "model.layers.{layer}.attention.o_proj",
    "blocks.{layer}.norm2": "model.layers.{layer}.post_attention_norm",
    "blocks.{layer}.mlp.0": "model.layers.{layer}.mlp.up_proj",
    "blocks.{layer}.mlp.2": "model.layers.{layer}.mlp.down_proj",
    "blocks.{layer}.adaLN_modulation": "model.layers.{layer}.modulation.proj",
}
ENCODER_HEAD = {
    "output_layer.norm_final": "model.norm",
    "output_layer.adaLN_modulation": "model.modulation.proj",
    "output_layer.linear": "lm_head",
}


@dataclass(frozen=True)
class ReleasedArchitecture:
    """What sets an architecture apart from the others: the names of its modules, and settings of its configuration."""

    name: str
    embeddings: dict[str, str]
    block: dict[str, str]
    head: dict[str, str]
    settings: dict[str, Any] = field(default_factory=dict)


AOGPT = ReleasedArchitecture(
    name="AO-GPT",
    embeddings=DECODER_EMBEDDINGS,
    block=DECODER_BLOCK,
    head={
        "transformer.final_layer.ln_f": "model.norm",
        "transformer.final_layer.adaLN_final.1": "model.modulation.proj",
        "lm_head": "lm_head",
    },
)
SIGMA_GPT = ReleasedArchitecture(
    name="sigma-GPT",
    embeddings=DECODER_EMBEDDINGS,
    block=DECODER_BLOCK,
    head={"transformer.ln_f": "model.norm", "lm_head": "lm_head"},
    settings={
        "target_injection": "input",
        "norm": "layernorm",
        "qk_norm": False,
        "tie_word_embeddings": True,
        "lm_head_bias": False,
    },
)
RADD = ReleasedArchitecture(
    name="RADD",
    embeddings=ENCODER_EMBEDDINGS,
    block=ENCODER_BLOCK,
    head=ENCODER_HEAD,
    settings={
        "target_injection": "none",
        "position_encoding": "rotary",
        "norm": "layernorm",
        "qk_norm": False,
        "attention_bias": False,
        "hidden_act": "gelu_pytorch_tanh",
    },
)
SEDD = replace(RADD, name="SEDD", settings=RADD.settings | {"target_injection": "sigma", "norm_bias": False})

# Released setting -> its name here. `dropout` is the last one of the released files; it does nothing at inference.
SETTINGS = {
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_embd": "hidden_size",
    "block_size": "max_position_embeddings",
    "bias": "use_bias",
    "vocab_size": "vocab_size",
}
# The same of an encoder. `cond_dim` stands in every file, but in a RADD nothing has that size.
ENCODER_SETTINGS = {
    "n_blocks": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_size": "hidden_size",
    "length": "max_position_embeddings",
    "cond_dim": "target_embedding_size",
}
TIED = ("lm_head.weight", "transformer.wte.weight")


def convert(
    source: Path, out_dir: Path, weights: str = "ema", tokenizer: str | None = None
) -> AOGPTForAnyOrderLM | MDMEncoderForMaskedLM:
    """
    Writes a released model to a folder: safetensors, configurations and code.

    Args:
        source (`Path`): A released `.pt` file, AO-GPT or sigma-GPT, or the folder of a SEDD or RADD, told apart by the
            names of the tensors.
        out_dir (`Path`): The folder to write, whole or left empty; it must not exist or be empty.
        weights (`str`): `"ema"`, the moving averages, with which the paper's numbers were made, or `"live"`. A folder
            holds one set of weights alone, and takes no `"live"`.
        tokenizer (`str`, *optional*): Folder or Hub name of the tokenizer of the model, which released files lack. It
            is written too, with a mask token.

    Returns:
        `AOGPTForAnyOrderLM` or `MDMEncoderForMaskedLM`: The model that was written.

    Raises:
        ValueError: If `source` is damaged or none of the files that are known, if its tensors are not exactly those of
            its settings, if `tokenizer` is none or another model's, or if `out_dir` is in use.
    """
    if out_dir.exists() and (not out_dir.is_dir() or any(out_dir.iterdir())):
        raise ValueError(f"{out_dir} exists and is not an empty folder: remove it or name another one to write to.")
    model = load_released(source, weights)
    written = [model] if tokenizer is None else [model, tokenizer_of(model.config, tokenizer)]
    # Within the folder: where the user stands, or another disk is mounted, no other can be put in its place.
    out_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=out_dir) as temporary:
        for part in written:
            part.save_pretrained(temporary)
        for path in sorted(Path(temporary).iterdir(), key=lambda path: path.name == "config.json"):
            os.replace(path, out_dir / path.name)  # config.json comes last: a folder without it is no model
    return model


def load_released(source: Path, weights: str = "ema") -> AOGPTForAnyOrderLM | MDMEncoderForMaskedLM:
    """A released model, on the CPU, in the precision of its file. Arguments and errors as in `convert`."""
    if weights not in ("ema", "live"):
        raise ValueError(f"weights={weights!r} is not one of 'ema', 'live'.")
    return load_encoder(source, weights) if source.is_dir() else load_decoder(source, weights)


def load_decoder(source: Path, weights: str) -> AOGPTForAnyOrderLM:
    """The model of a released `.pt` file, see `load_released`."""
    checkpoint = read_checkpoint(source)
    tensors = {name.removeprefix("_orig_mod."): tensor for name, tensor in checkpoint["model"].items()}
    architecture = architecture_of(tensors, source)
    config = config_of(checkpoint, architecture, tensors, source)
    with torch.device("meta"):
        model = AOGPTForAnyOrderLM(config)
    names = dict(released_names(architecture, config, model.state_dict()))
    shapes = {old: tuple(model.state_dict()[new].shape) for old, new in names.items()}
    check_tensors(tensors, shapes, f"{source} is a file of {architecture.name}, but does not fit its model_args")
    if config.tie_word_embeddings and not torch.equal(*(tensors[name] for name in TIED)):
        raise ValueError(f"{source}: {TIED[0]} and {TIED[1]} differ, but are one tensor in {architecture.name}.")
    if weights == "ema":
        tensors = moving_averages(checkpoint, shapes, config.tie_word_embeddings, source)

    model.load_state_dict({new: tensors[old] for old, new in names.items()}, assign=True)
    model.tie_weights()
    return model.eval()


def load_encoder(source: Path, weights: str) -> MDMEncoderForMaskedLM:
    """The model of the folder of a SEDD or RADD, see `load_released`."""
    if weights != "ema":
        raise ValueError(f"{source} is a folder of an encoder, which has one set of weights: leave out {weights!r}.")
    settings, tensors = read_folder(source)
    architecture = SEDD if "sigma_map.mlp.0.weight" in tensors else RADD
    config = encoder_config_of(settings, architecture, source)
    with torch.device("meta"):
        model = MDMEncoderForMaskedLM(config)
    names = dict(released_names(architecture, config, model.state_dict()))
    shapes = {old: tuple(model.state_dict()[new].shape) for old, new in names.items()}
    # The rotary frequencies stand in the file as well, and alone tell the number of heads and the base.
    frequencies = config.rope_theta ** -(torch.arange(0, config.head_dim, 2) / config.head_dim)
    given = tensors.pop("rotary_emb.inv_freq", frequencies)
    what = f"{source} is a folder of a {architecture.name}, but does not fit its config.json"
    if given.shape != frequencies.shape or not torch.allclose(given.float(), frequencies, rtol=1e-3, atol=0):
        raise ValueError(
            f"{what}: rotary_emb.inv_freq is not that of base {config.rope_theta:g} and n_heads="
            f"{config.num_attention_heads}."
        )
    check_tensors(tensors, shapes, what)
    model.load_state_dict({new: tensors[old] for old, new in names.items()}, assign=True)
    return model.eval()


def read_folder(source: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The settings and tensors of a released folder."""
    config, weights = source / "config.json", source / "model.safetensors"
    for path in (config, weights):
        if not path.is_file():
            raise ValueError(
                f"{source} is a folder without {path.name}: give a released .pt file of AO-GPT or sigma-GPT, or the "
                "folder of a SEDD or RADD."
            )
    try:
        return json.loads(config.read_text(encoding="utf-8")), load_file(weights)
    except (ValueError, SafetensorError) as error:
        raise ValueError(f"{source} is damaged: {error}. Download it again.") from error


def encoder_config_of(given: dict[str, Any], architecture: ReleasedArchitecture, source: Path) -> MDMEncoderConfig:
    """The configuration that a folder's settings name. Whether the tensors agree is seen from their shapes."""
    sizes, graph = (given.get(part) if isinstance(given, dict) else None for part in ("model", "graph"))
    if not isinstance(sizes, dict) or not isinstance(graph, dict) or not ENCODER_SETTINGS.keys() <= sizes.keys():
        raise ValueError(
            f"{source}/config.json is not that of a SEDD or RADD: graph and model with {', '.join(ENCODER_SETTINGS)}."
        )
    if graph.get("type") != "absorb":
        raise ValueError(f"{source} has graph.type {graph.get('type')!r}: only 'absorb', with a mask, is known.")
    if architecture is SEDD and sizes.get("scale_by_sigma") is not True:
        raise ValueError(f"{source} has a score that is not scaled by sigma (model.scale_by_sigma): not known.")
    try:
        settings = {new: sizes[old] for old, new in ENCODER_SETTINGS.items()} | architecture.settings
        settings["vocab_size"] = given["tokens"] + 1  # the mask comes after the tokens
        if given["tokens"] == GPT2_VOCAB_SIZE:
            settings["bos_token_id"] = settings["eos_token_id"] = GPT2_VOCAB_SIZE - 1
        return MDMEncoderConfig(**settings)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{source}/config.json makes no model: {error}") from error


def read_checkpoint(source: Path) -> dict[str, Any]:
    """The dictionary of a released file, its tensors mapped from the disk: the optimizer's are never read."""
    if not source.is_file():
        raise ValueError(f"{source} is not there: give a released .pt file, or the folder of a SEDD or RADD.")
    try:
        with zipfile.ZipFile(source) as archive:
            damaged = archive.testzip()  # torch.load does not compare checksums
        if damaged is not None:
            raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")
        checkpoint = torch.load(source, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # which of a dozen kinds depends on the byte that is wrong
        raise ValueError(
            f"{source} is damaged, or no file that torch.save wrote from tensors and plain values "
            f"({error}). Compare its checksum with the published one, or download it again."
        ) from error
    for part in ("model", "model_args"):
        if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get(part), dict):
            raise ValueError(f"{source} has no dictionary {part!r}, so it is no released AO-GPT or sigma-GPT file.")
    return checkpoint


def architecture_of(tensors: dict[str, torch.Tensor], source: Path) -> ReleasedArchitecture:
    """Which architecture the names belong to: only AO-GPT has adaLN, and both have a table of target positions."""
    if "transformer.wtpe.weight" not in tensors:
        raise ValueError(
            f"{source} has no tensor transformer.wtpe.weight, so it is no released AO-GPT or sigma-GPT file. "
            f"It has {', '.join(list(tensors)[:3])}, ..."
        )
    return AOGPT if any("adaLN" in name for name in tensors) else SIGMA_GPT


def config_of(
    checkpoint: dict[str, Any], architecture: ReleasedArchitecture, tensors: dict[str, torch.Tensor], source: Path
) -> AOGPTConfig:
    """The configuration that a file's settings name. Whether the tensors agree with them is seen from their shapes."""
    given = checkpoint["model_args"]
    if given.keys() - {"dropout"} != SETTINGS.keys():
        raise ValueError(f"{source} has the model_args {', '.join(given)}, but {', '.join(SETTINGS)} are known.")
    settings = {new: given[old] for old, new in SETTINGS.items()} | architecture.settings
    settings["target_embedding_size"] = tensors["transformer.wtpe.weight"].shape[-1]
    if settings["vocab_size"] == GPT2_PADDED_VOCAB_SIZE:  # GPT-2's only special token is its last one, <|endoftext|>
        settings["bos_token_id"] = settings["eos_token_id"] = GPT2_VOCAB_SIZE - 1
    try:
        return AOGPTConfig(**settings)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source} has model_args that make no model: {error}") from error


def released_names(
    architecture: ReleasedArchitecture, config: AOGPTConfig, known: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Pairs of a released tensor's name and, in `known`, that of ours, in the order of the authors' parameters."""
    blocks = (
        (old.format(layer=layer), new.format(layer=layer))
        for layer in range(config.num_hidden_layers)
        for old, new in architecture.block.items()
    )
    known = set(known)
    for old, new in (*architecture.embeddings.items(), *blocks, *architecture.head.items()):
        for kind in ("", ".weight", ".bias"):
            if f"{new}{kind}" in known:
                yield f"{old}{kind}", f"{new}{kind}"


def moving_averages(
    checkpoint: dict[str, Any], shapes: dict[str, tuple[int, ...]], is_tied: bool, source: Path
) -> dict[str, torch.Tensor]:
    """The moving averages by name; the file has them as a list, in which a tied head is not repeated."""
    ema = checkpoint.get("ema_model")
    averages = ema.get("shadow_params") if isinstance(ema, dict) else None
    if not isinstance(averages, list):
        raise ValueError(f"{source} has no list ema_model.shadow_params of moving averages: use --weights live.")
    names = [name for name in shapes if not (is_tied and name == TIED[0])]
    if len(averages) != len(names):
        raise ValueError(f"{source} has {len(averages)} moving averages for {len(names)} parameters.")
    tensors = dict(zip(names, averages, strict=True))
    if is_tied:
        tensors[TIED[0]] = tensors[TIED[1]]
    check_tensors(tensors, shapes, f"{source} has moving averages that do not fit its tensors")
    return tensors


def check_tensors(tensors: dict[str, torch.Tensor], shapes: dict[str, tuple[int, ...]], what: str) -> None:
    """Raises a `ValueError`, beginning with `what`, unless there are exactly the tensors of `shapes`, all finite."""
    problems = [f"{name} is missing" for name in shapes if name not in tensors]
    for name, tensor in tensors.items():
        if name not in shapes:
            problems.append(f"{name} is unknown")
        elif not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            problems.append(f"{name} is no tensor of real numbers")
        elif tuple(tensor.shape) != shapes[name]:
            problems.append(f"{name} has shape {tuple(tensor.shape)} instead of {shapes[name]}")
        elif not tensor.isfinite().all():
            problems.append(f"{name} holds values that are not finite")
    if problems:
        more = f"; and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise ValueError(f"{what}: {'; '.join(problems[:8])}{more}.")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m modeling_aogpt.convert_reference_checkpoint",
        description="Converts a released AO-GPT, sigma-GPT, SEDD or RADD into a folder that AutoModel loads.",
    )
    parser.add_argument("source", type=Path, metavar="SOURCE", help="a .pt file, or a folder")
    parser.add_argument("out_dir", type=Path, metavar="OUT_DIR", help="the folder to write; new, or empty")
    parser.add_argument("--weights", choices=("ema", "live"), default="ema", help="moving averages or last weights")
    parser.add_argument(
        "--tokenizer", metavar="NAME", help="folder or Hub name of its tokenizer (gpt2), to be written too"
    )
    arguments = parser.parse_args()
    try:
        model = convert(arguments.source, arguments.out_dir, arguments.weights, arguments.tokenizer)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"{arguments.out_dir}: {model.num_parameters():,} parameters, {arguments.weights} weights")


if __name__ == "__main__":
    main()
