# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Command that converts a released model into a folder that `AutoModel.from_pretrained` loads.

    python -m modeling_aogpt.convert_reference_checkpoint SOURCE OUTPUT_DIR [--weights ema|live] [--tokenizer gpt2]

SOURCE is a `.pt` file of AO-GPT or sigma-GPT (Hub repository `Cauthyyy/AO-GPT-MDM`), or a folder of SEDD
(`louaaron/sedd-*`), RADD (`JingyangOu/radd-*`) or MDLM (`kuleshov-group/mdlm-owt`) that contains `config.json` and
`model.safetensors`. To load OUTPUT_DIR, pass `trust_remote_code=True` to `AutoModel.from_pretrained`.
"""

import argparse
import json
import os
import sys
import tempfile
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from .configuration_aogpt import GPT2_PADDED_VOCAB_SIZE, GPT2_VOCAB_SIZE, AOGPTConfig, MDMEncoderConfig
from .modeling_aogpt import AOGPTForAnyOrderLM, AOGPTWithHead, compute_frequencies
from .modeling_mdm_encoder import MDMEncoderForMaskedLM
from .tokenization import load_matching_tokenizer

# Maps from the name of each module or tensor in released files to its name in this package. The names have the order of
# `model.parameters()` in the authors' code, because released moving averages are a list in this order. Names that a
# model does not have (q_norm, k_norm and adaLN in a sigma-GPT) are skipped.
DECODER_EMBEDDINGS = {
    "transformer.wte": "model.embed_tokens",
    "transformer.wpe": "model.position_embeddings",
    "transformer.wtpe": "model.target_embeddings",
    "transformer.wnonee": "model.start_embedding",
}
DECODER_BLOCK = {
    "transformer.h.{layer}.ln_1": "model.layers.{layer}.input_layernorm",
    "transformer.h.{layer}.attn.c_attn": "model.layers.{layer}.self_attn.{q,k,v}_proj",
    "transformer.h.{layer}.attn.c_proj": "model.layers.{layer}.self_attn.o_proj",
    "transformer.h.{layer}.attn.q_norm": "model.layers.{layer}.self_attn.q_norm",
    "transformer.h.{layer}.attn.k_norm": "model.layers.{layer}.self_attn.k_norm",
    "transformer.h.{layer}.ln_2": "model.layers.{layer}.post_attention_layernorm",
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
    "blocks.{layer}.norm1": "model.layers.{layer}.input_layernorm",
    "blocks.{layer}.attn_qkv": "model.layers.{layer}.self_attn.{q,k,v}_proj",
    "blocks.{layer}.attn_out": "model.layers.{layer}.self_attn.o_proj",
    "blocks.{layer}.norm2": "model.layers.{layer}.post_attention_layernorm",
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
    """
    Names and settings of a released architecture.

    `embeddings`, `block` and `head` map names of modules in released files to names in this package. `settings` are the
    settings of the configuration that differ from its defaults. `published_weights` are the weights with which the
    published numbers were computed: `"ema"` or `"live"` (see [`convert`]).
    """

    name: str
    embeddings: dict[str, str]
    block: dict[str, str]
    head: dict[str, str]
    settings: dict[str, Any] = field(default_factory=dict)
    published_weights: str = "ema"


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
    published_weights="live",  # the authors' evaluation scripts do not load moving averages
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
        "attention_output_bias": False,
        "hidden_act": "gelu_pytorch_tanh",
    },
)
SEDD = replace(RADD, name="SEDD", settings=RADD.settings | {"target_injection": "sigma", "norm_bias": False})
MDLM = replace(SEDD, name="MDLM")  # layout of the released file; `remove_noise_level` then converts it to a RADD

# Map from the name of each setting in released `.pt` files to its name in this package. The files also have `dropout`,
# which inference does not use.
SETTINGS = {
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_embd": "hidden_size",
    "block_size": "max_position_embeddings",
    "vocab_size": "vocab_size",
}
# The same map for the config.json of encoders. `cond_dim` is the width of SEDD's noise-level embedding. RADD models
# also have this setting, but do not use it.
ENCODER_SETTINGS = {
    "n_blocks": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_size": "hidden_size",
    "length": "max_position_embeddings",
    "cond_dim": "target_embedding_size",
}
MDLM_SETTINGS = {
    "n_blocks": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "hidden_size",
    "model_length": "max_position_embeddings",
    "cond_dim": "target_embedding_size",
    "vocab_size": "vocab_size",
}
TIED = ("lm_head.weight", "transformer.wte.weight")


def convert(
    source: Path, output_dir: Path, weights: str | None = None, tokenizer: str | None = None
) -> AOGPTForAnyOrderLM | MDMEncoderForMaskedLM:
    """
    Convert a released model into a folder of safetensors, configurations and code.

    `config.json` is written last, so a folder that was not written completely cannot be loaded.

    Args:
        source (`Path`): A released `.pt` file of AO-GPT or sigma-GPT, or a folder of SEDD, RADD or MDLM. The
            architecture is recognized by config.json and the names of the tensors.
        output_dir (`Path`): The folder to write. It must be empty or not exist.
        weights (`str`, *optional*): `"ema"` (moving averages of the weights) or `"live"` (weights of the last training
            step). Defaults to the weights with which the published numbers were computed: `"ema"` for AO-GPT, `"live"`
            for sigma-GPT. A folder has only one set of weights.
        tokenizer (`str`, *optional*): Folder or Hub name of the model's tokenizer, such as `"gpt2"`. Released files do
            not contain it. The tokenizer gets a mask token, and is saved with the model.

    Returns:
        `AOGPTForAnyOrderLM` or `MDMEncoderForMaskedLM`: The converted model.

    Raises:
        ValueError: If `source` is damaged or not a released model, if its tensors do not match its settings, if
            `tokenizer` cannot be loaded or does not fit the model, or if `output_dir` is not empty.
    """
    if output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())):
        raise ValueError(f"{output_dir} exists and is not an empty folder. Remove it, or choose another folder.")
    model = load_released(source, weights)
    written = [model] if tokenizer is None else [model, load_matching_tokenizer(model.config, tokenizer)]
    # The files are moved one by one from a temporary folder inside `output_dir`. Renaming the temporary folder to
    # `output_dir` would fail if `output_dir` is a mount point or the current folder.
    output_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=output_dir) as temporary:
        for part in written:
            part.save_pretrained(temporary)
        for path in sorted(Path(temporary).iterdir(), key=lambda path: path.name == "config.json"):
            os.replace(path, output_dir / path.name)
    return model


def load_released(source: Path, weights: str | None = None) -> AOGPTForAnyOrderLM | MDMEncoderForMaskedLM:
    """Load a released model on the CPU, in the dtype of its file (see [`convert`] for the arguments)."""
    if weights not in ("ema", "live", None):
        raise ValueError(f"`weights` must be 'ema' or 'live', but is {weights!r}.")
    return load_encoder(source, weights) if source.is_dir() else load_decoder(source, weights)


def load_decoder(source: Path, weights: str | None) -> AOGPTForAnyOrderLM:
    """Load an AO-GPT or sigma-GPT from a released `.pt` file (see [`convert`] for the arguments)."""
    checkpoint = read_checkpoint(source)
    tensors = {name.removeprefix("_orig_mod."): tensor for name, tensor in checkpoint["model"].items()}
    architecture = detect_architecture(tensors, source)
    config = read_config(checkpoint, architecture, tensors, source)
    model, names, shapes = make_empty_model(AOGPTForAnyOrderLM, config, architecture)
    check_tensors(tensors, shapes, f"The tensors of {source} do not fit its model_args ({architecture.name})")
    if config.tie_word_embeddings and not torch.equal(*(tensors[name] for name in TIED)):
        raise ValueError(
            f"The tensors {TIED[0]} and {TIED[1]} of {source} differ, but must be the same in {architecture.name}. "
            "Download the file again."
        )
    if (weights or architecture.published_weights) == "ema":
        tensors = read_moving_averages(checkpoint, shapes, config.tie_word_embeddings, source)

    model.load_state_dict(split_tensors(names, tensors), assign=True)
    model.tie_weights()
    return model.eval()


def load_encoder(source: Path, weights: str | None) -> MDMEncoderForMaskedLM:
    """Load a SEDD, RADD or MDLM model from its released folder (see [`convert`] for the arguments)."""
    if weights == "live":
        raise ValueError(
            f"{source} is the folder of an encoder, which has only one set of weights. Remove `weights` (--weights)."
        )
    settings, tensors = read_folder(source)
    if isinstance(settings, dict) and settings.get("model_type") == "mdlm":
        architecture, config = MDLM, read_mdlm_config(settings, MDLM, source)
        tensors = {name.removeprefix("backbone."): tensor for name, tensor in tensors.items()}
    else:
        architecture = SEDD if "sigma_map.mlp.0.weight" in tensors else RADD
        config = read_encoder_config(settings, architecture, source)
    model, names, shapes = make_empty_model(MDMEncoderForMaskedLM, config, architecture)
    # The file also contains the rotary frequencies. They are compared with those of the configuration, because no other
    # tensor shows whether the number of heads and the base are right.
    frequencies, _ = compute_frequencies(config, torch.device("cpu"))
    given = tensors.pop("rotary_emb.inv_freq", frequencies)
    problem = f"The tensors of {source} do not fit its config.json ({architecture.name})"
    if given.shape != frequencies.shape or not torch.allclose(given.float(), frequencies, rtol=1e-3, atol=0):
        raise ValueError(
            f"{problem}: rotary_emb.inv_freq does not have the frequencies of base "
            f"{config.rope_parameters['rope_theta']:g} and n_heads={config.num_attention_heads}. Download the folder "
            "again."
        )
    check_tensors(tensors, shapes, problem)
    model.load_state_dict(split_tensors(names, tensors), assign=True)
    if architecture is MDLM:
        model = remove_noise_level(model, read_mdlm_config(settings, RADD, source))
    return model.eval()


@torch.no_grad()
def remove_noise_level(model: MDMEncoderForMaskedLM, config: MDMEncoderConfig) -> MDMEncoderForMaskedLM:
    """
    Return a RADD with the outputs that `model`, an encoder with `target_injection="sigma"`, has at noise level 0.

    At a fixed noise level, the shifts, scales and gates of adaLN are constants. Shifts and scales become part of the
    norms, and gates become part of the last projections of attention and MLP. `config` is the configuration of the
    result.
    """
    dtype = model.dtype
    weights = {name: tensor.double() for name, tensor in model.state_dict().items()}
    embedding = model.model.sigma_embedding.double()
    condition = nn.functional.silu(embedding(torch.zeros(1, dtype=torch.float64), torch.float64))[0]

    def modulation(prefix: str, num_vectors: int) -> tuple[torch.Tensor, ...]:
        weight, bias = (weights.pop(f"{prefix}modulation.proj.{kind}") for kind in ("weight", "bias"))
        return (weight @ condition + bias).chunk(num_vectors)

    def modulate_norm(name: str, shift: torch.Tensor, scale: torch.Tensor) -> None:
        weights[f"{name}.weight"] *= 1 + scale
        weights[f"{name}.bias"] = shift

    for layer in range(model.config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = modulation(prefix, 6)
        modulate_norm(f"{prefix}input_layernorm", shift, scale)
        modulate_norm(f"{prefix}post_attention_layernorm", mlp_shift, mlp_scale)
        weights[f"{prefix}self_attn.o_proj.weight"] *= gate[:, None]
        weights[f"{prefix}mlp.down_proj.weight"] *= mlp_gate[:, None]
        weights[f"{prefix}mlp.down_proj.bias"] *= mlp_gate
    modulate_norm("model.norm", *modulation("model.", 2))

    with torch.device("meta"):
        converted = MDMEncoderForMaskedLM(config)
    converted.load_state_dict({name: weights[name].to(dtype) for name in converted.state_dict()}, assign=True)
    return converted


def read_folder(source: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the contents of `config.json`, and the tensors of `model.safetensors`, in a released folder."""
    config, weights = source / "config.json", source / "model.safetensors"
    for path in (config, weights):
        if not path.is_file():
            raise ValueError(
                f"{source} is a folder without {path.name}. Pass a released .pt file of AO-GPT or sigma-GPT, or a "
                "folder of SEDD, RADD or MDLM. To convert a Llama, Qwen or GPT-2, use training/convert_causal_lm.py."
            )
    try:
        return json.loads(config.read_text(encoding="utf-8")), load_file(weights)
    except (ValueError, SafetensorError) as error:
        raise ValueError(f"{source} is damaged: {error}. Download the folder again.") from error


def read_encoder_config(given: dict[str, Any], architecture: ReleasedArchitecture, source: Path) -> MDMEncoderConfig:
    """Return the configuration for `given`, the contents of config.json in the released folder `source`."""
    sizes, graph = (given.get(part) if isinstance(given, dict) else None for part in ("model", "graph"))
    if not isinstance(sizes, dict) or not isinstance(graph, dict) or not ENCODER_SETTINGS.keys() <= sizes.keys():
        raise ValueError(
            f"{source}/config.json is not the configuration of a SEDD, RADD or MDLM model. It must have the "
            f"`model_type` 'mdlm', or an entry `graph` and an entry `model` with {', '.join(ENCODER_SETTINGS)}. To "
            "convert a Llama, Qwen or GPT-2, use training/convert_causal_lm.py."
        )
    if graph.get("type") != "absorb":
        raise ValueError(
            f"{source}/config.json has graph.type {graph.get('type')!r}, but only 'absorb' (noise that "
            "masks tokens) is supported. Pass the folder of another model."
        )
    if architecture is SEDD and sizes.get("scale_by_sigma") is not True:
        raise ValueError(
            f"{source}/config.json has model.scale_by_sigma {sizes.get('scale_by_sigma')!r}, but only True is "
            "supported for SEDD. Pass the folder of another model."
        )
    if not isinstance(given.get("tokens"), int):
        raise ValueError(
            f"{source}/config.json has tokens {given.get('tokens')!r}, but must have the number of ids of text. "
            "Download the folder again."
        )
    settings = {new: sizes[old] for old, new in ENCODER_SETTINGS.items()}
    return make_encoder_config(settings | {"vocab_size": given["tokens"] + 1}, architecture, source)


def read_mdlm_config(given: dict[str, Any], architecture: ReleasedArchitecture, source: Path) -> MDMEncoderConfig:
    """Return the configuration for `given`, the contents of config.json in the folder `source` of an MDLM."""
    if missing := [name for name in MDLM_SETTINGS if name not in given]:
        raise ValueError(f"{source}/config.json has no {', '.join(missing)}. Download the folder again.")
    if given.get("time_conditioning") is not False:
        raise ValueError(
            f"{source}/config.json has time_conditioning {given.get('time_conditioning')!r}, but only False is "
            "supported for MDLM. Pass the folder of another model."
        )
    return make_encoder_config({new: given[old] for old, new in MDLM_SETTINGS.items()}, architecture, source)


def make_encoder_config(settings: dict[str, Any], architecture: ReleasedArchitecture, source: Path) -> MDMEncoderConfig:
    """Return the configuration with `settings` of the released folder `source`. The last id is the mask."""
    if settings["vocab_size"] == GPT2_VOCAB_SIZE + 1:
        settings["bos_token_id"] = settings["eos_token_id"] = GPT2_VOCAB_SIZE - 1
    try:
        return MDMEncoderConfig(**settings, **architecture.settings)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source}/config.json has settings that are not allowed: {error}") from error


def read_checkpoint(source: Path) -> dict[str, Any]:
    """Return the dictionary of a released `.pt` file. Its tensors are memory-mapped, that is, read when used."""
    if not source.is_file():
        raise ValueError(f"{source} does not exist. Pass a released .pt file, or a folder of SEDD, RADD or MDLM.")
    try:
        with zipfile.ZipFile(source) as archive:
            damaged = archive.testzip()  # torch.load does not compare checksums
        if damaged is not None:
            raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")
        checkpoint = torch.load(source, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a damaged file can raise errors of any kind
        raise ValueError(
            f"{source} is damaged, or contains more than tensors and plain values saved by torch.save ({error}). "
            "Download the file again."
        ) from error
    for part in ("model", "model_args"):
        if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get(part), dict):
            raise ValueError(
                f"{source} is not a released AO-GPT or sigma-GPT file: it has no dictionary {part!r}. Pass a .pt file "
                "of the Hub repository Cauthyyy/AO-GPT-MDM."
            )
    return checkpoint


def detect_architecture(tensors: dict[str, torch.Tensor], source: Path) -> ReleasedArchitecture:
    """Return `AOGPT` if the name of a tensor contains adaLN, and `SIGMA_GPT` otherwise."""
    if "transformer.wtpe.weight" not in tensors:
        raise ValueError(
            f"{source} is not a released AO-GPT or sigma-GPT file: it has no tensor transformer.wtpe.weight. Its "
            f"tensors are {', '.join(list(tensors)[:3])}, ... Pass a .pt file of the Hub repository "
            "Cauthyyy/AO-GPT-MDM."
        )
    return AOGPT if any("adaLN" in name for name in tensors) else SIGMA_GPT


def read_config(
    checkpoint: dict[str, Any], architecture: ReleasedArchitecture, tensors: dict[str, torch.Tensor], source: Path
) -> AOGPTConfig:
    """Return the configuration for the `model_args` in `checkpoint`, the contents of the released file `source`."""
    given = checkpoint["model_args"]
    if given.keys() - {"dropout"} != SETTINGS.keys() | {"bias"}:
        raise ValueError(
            f"{source} must have the model_args {', '.join(SETTINGS)} and bias, but has {', '.join(given)}. Pass a .pt "
            "file of the Hub repository Cauthyyy/AO-GPT-MDM."
        )
    settings = {new: given[old] for old, new in SETTINGS.items()} | architecture.settings
    settings |= dict.fromkeys(("attention_bias", "attention_output_bias", "mlp_bias", "norm_bias"), given["bias"])
    settings["target_embedding_size"] = tensors["transformer.wtpe.weight"].shape[-1]
    if settings["vocab_size"] == GPT2_PADDED_VOCAB_SIZE:  # the tokenizer is GPT-2's
        settings["bos_token_id"] = settings["eos_token_id"] = GPT2_VOCAB_SIZE - 1
    try:
        return AOGPTConfig(**settings)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source} has model_args that are not allowed: {error}") from error


def make_empty_model(
    model_class: type[AOGPTWithHead], config: AOGPTConfig, architecture: ReleasedArchitecture
) -> tuple[AOGPTWithHead, dict[str, list[str]], dict[str, tuple[int, ...]]]:
    """
    Return a model on the meta device, and two maps whose keys are the released names of its tensors.

    The first map contains the names of each tensor in the model. A released tensor with the projections of attention
    queries, keys and values has three names, and others have one. The second map contains the released shapes. Both
    maps have the order of parameters in the authors' code.
    """
    with torch.device("meta"):
        model = model_class(config)
    weights, names = model.state_dict(), {}
    blocks = (
        (old.format(layer=layer), new.replace("{layer}", str(layer)))
        for layer in range(config.num_hidden_layers)
        for old, new in architecture.block.items()
    )
    for old, new in (*architecture.embeddings.items(), *blocks, *architecture.head.items()):
        parts = [new.replace("{q,k,v}", part) for part in "qkv"] if "{q,k,v}" in new else [new]
        for kind in ("", ".weight", ".bias"):
            if f"{parts[0]}{kind}" in weights:
                names[f"{old}{kind}"] = [f"{part}{kind}" for part in parts]
    shapes = {old: (sum(len(weights[part]) for part in new), *weights[new[0]].shape[1:]) for old, new in names.items()}
    return model, names, shapes


def split_tensors(names: dict[str, list[str]], tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a state dict of the model. A released tensor with several names in the model is split into equal parts."""
    weights = {}
    for old, new in names.items():
        parts = tensors[old].chunk(len(new)) if len(new) > 1 else [tensors[old]]
        weights |= {name: part.clone() if len(new) > 1 else part for name, part in zip(new, parts, strict=True)}
    return weights


def read_moving_averages(
    checkpoint: dict[str, Any], shapes: dict[str, tuple[int, ...]], is_tied: bool, source: Path
) -> dict[str, torch.Tensor]:
    """
    Return the moving averages of the weights, keyed by their names in the released code.

    The file stores them as a list. If the head is tied, it has no entry in this list.
    """
    ema = checkpoint.get("ema_model")
    averages = ema.get("shadow_params") if isinstance(ema, dict) else None
    if not isinstance(averages, list):
        raise ValueError(
            f"{source} has no moving averages (ema_model.shadow_params). Set `weights='live'` (--weights live)."
        )
    names = [name for name in shapes if not (is_tied and name == TIED[0])]
    if len(averages) != len(names):
        raise ValueError(
            f"{source} has {len(averages)} moving averages, but {len(names)} parameters. Set `weights='live'` "
            "(--weights live)."
        )
    tensors = dict(zip(names, averages, strict=True))
    if is_tied:
        tensors[TIED[0]] = tensors[TIED[1]]
    check_tensors(tensors, shapes, f"The moving averages of {source} do not fit its tensors")
    return tensors


def check_tensors(tensors: dict[str, torch.Tensor], shapes: dict[str, tuple[int, ...]], problem: str) -> None:
    """Raise a `ValueError` that begins with `problem` unless `tensors` are finite, with these names and `shapes`."""
    problems = [f"{name} is missing" for name in shapes if name not in tensors]
    for name, tensor in tensors.items():
        if name not in shapes:
            problems.append(f"{name} is unknown")
        elif not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            problems.append(f"{name} is not a tensor of floating-point numbers")
        elif tuple(tensor.shape) != shapes[name]:
            problems.append(f"{name} has shape {tuple(tensor.shape)} instead of {shapes[name]}")
        elif not tensor.isfinite().all():
            problems.append(f"{name} holds values that are not finite")
    if problems:
        more = f"; and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise ValueError(f"{problem}: {'; '.join(problems[:8])}{more}.")


def main() -> None:
    """Parse the command line, convert the model, and print its size."""
    parser = argparse.ArgumentParser(
        prog="python -m modeling_aogpt.convert_reference_checkpoint",
        description="Convert a released AO-GPT, sigma-GPT, SEDD, RADD or MDLM into a folder that AutoModel loads.",
    )
    parser.add_argument(
        "source", type=Path, metavar="SOURCE", help="a released .pt file, or a folder of SEDD, RADD or MDLM"
    )
    parser.add_argument("output_dir", type=Path, metavar="OUTPUT_DIR", help="the folder to write, new or empty")
    parser.add_argument(
        "--weights",
        choices=("ema", "live"),
        help="moving averages (ema) or weights of the last training step (live); default: the weights with which the "
        "published numbers were computed (ema for AO-GPT, live for sigma-GPT)",
    )
    parser.add_argument("--tokenizer", metavar="NAME", help="folder or Hub name of the tokenizer to save, such as gpt2")
    arguments = parser.parse_args()
    try:
        model = convert(arguments.source, arguments.output_dir, arguments.weights, arguments.tokenizer)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    weights = arguments.weights or "as published"
    print(
        f"{arguments.output_dir}: {type(model).__name__} with {model.num_parameters():,} parameters, weights {weights}"
    )


if __name__ == "__main__":
    main()
