# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Conversion of a released model into a folder that `AutoModel.from_pretrained` loads: the command `aogpt convert`.

The source is a `.pt` file of AO-GPT or sigma-GPT (Hub repository `Cauthyyy/AO-GPT-MDM`), or a folder of SEDD
(`louaaron/sedd-*`), RADD (`JingyangOu/radd-*`) or MDLM (`kuleshov-group/mdlm-owt`) that contains `config.json` and
`model.safetensors`. To load the new folder, pass `trust_remote_code=True` to `AutoModel.from_pretrained`.
"""

import zipfile
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from .configuration_aogpt import GPT2_PADDED_VOCAB_SIZE, GPT2_VOCAB_SIZE, AOGPTConfig, MDMEncoderConfig
from .conversion import Blueprint, ReleasedArchitecture, Tensors, read_json, read_tensors
from .modeling_aogpt import AOGPTForAnyOrderLM, compute_frequencies
from .modeling_mdm_encoder import MDMEncoderForMaskedLM
from .tokenization import load_matching_tokenizer
from .validation import check_choice

# Maps from the name of each module or tensor in released files to its name in this package. The names have the order of
# `model.parameters()` in the authors' code, because released moving averages are a list in this order. Names that a
# model does not have (q_norm, k_norm and adaLN in a sigma-GPT) are skipped.
DECODER = {
    "transformer.wte": "model.embed_tokens",
    "transformer.wpe": "model.position_embeddings",
    "transformer.wtpe": "model.target_embeddings",
    "transformer.wnonee": "model.start_embedding",
    "transformer.h.{layer}.ln_1": "model.layers.{layer}.input_layernorm",
    "transformer.h.{layer}.attn.c_attn": "model.layers.{layer}.self_attn.{q,k,v}_proj",
    "transformer.h.{layer}.attn.c_proj": "model.layers.{layer}.self_attn.o_proj",
    "transformer.h.{layer}.attn.q_norm": "model.layers.{layer}.self_attn.q_norm",
    "transformer.h.{layer}.attn.k_norm": "model.layers.{layer}.self_attn.k_norm",
    "transformer.h.{layer}.ln_2": "model.layers.{layer}.post_attention_layernorm",
    "transformer.h.{layer}.mlp.c_fc": "model.layers.{layer}.mlp.up_proj",
    "transformer.h.{layer}.mlp.c_proj": "model.layers.{layer}.mlp.down_proj",
    "transformer.h.{layer}.adaLN.1": "model.layers.{layer}.modulation.proj",
    "transformer.ln_f": "model.norm",
    "transformer.final_layer.ln_f": "model.norm",
    "transformer.final_layer.adaLN_final.1": "model.modulation.proj",
    "lm_head": "lm_head",
}
ENCODER = {
    "vocab_embed.embedding": "model.embed_tokens.weight",
    "sigma_map.mlp.0": "model.sigma_embedding.up_proj",
    "sigma_map.mlp.2": "model.sigma_embedding.down_proj",
    "blocks.{layer}.norm1": "model.layers.{layer}.input_layernorm",
    "blocks.{layer}.attn_qkv": "model.layers.{layer}.self_attn.{q,k,v}_proj",
    "blocks.{layer}.attn_out": "model.layers.{layer}.self_attn.o_proj",
    "blocks.{layer}.norm2": "model.layers.{layer}.post_attention_layernorm",
    "blocks.{layer}.mlp.0": "model.layers.{layer}.mlp.up_proj",
    "blocks.{layer}.mlp.2": "model.layers.{layer}.mlp.down_proj",
    "blocks.{layer}.adaLN_modulation": "model.layers.{layer}.modulation.proj",
    "output_layer.norm_final": "model.norm",
    "output_layer.adaLN_modulation": "model.modulation.proj",
    "output_layer.linear": "lm_head",
}

LAYER_NORM = {"norm": "layernorm", "qk_norm": False}
AOGPT = ReleasedArchitecture("AO-GPT", {old: new for old, new in DECODER.items() if old != "transformer.ln_f"})
SIGMA_GPT = ReleasedArchitecture(
    "sigma-GPT",
    {old: new for old, new in DECODER.items() if "final_layer" not in old},
    settings=LAYER_NORM | {"target_injection": "input", "tie_word_embeddings": True, "lm_head_bias": False},
)
RADD = ReleasedArchitecture(
    "RADD",
    ENCODER,
    settings=LAYER_NORM
    | {"target_injection": "none", "position_encoding": "rotary", "hidden_act": "gelu_pytorch_tanh"}
    | {"attention_bias": False, "attention_output_bias": False},
)
SEDD = replace(RADD, name="SEDD", settings=RADD.settings | {"target_injection": "sigma", "norm_bias": False})
MDLM = replace(SEDD, name="MDLM")  # layout of the released file; `remove_noise_level` makes it a RADD

# Map from the name of each setting in released `.pt` files to its name in this package. The files also have `dropout`,
# which inference does not use.
SETTINGS = {"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_embd": "hidden_size"}
SETTINGS |= {"block_size": "max_position_embeddings", "vocab_size": "vocab_size", "bias": "attention_bias"}
# The same maps for the config.json of encoders. `cond_dim` is the width of SEDD's noise-level embedding. RADD models
# also have this setting, but do not use it.
LAYERS = {"n_blocks": "num_hidden_layers", "n_heads": "num_attention_heads", "cond_dim": "target_embedding_size"}
ENCODER_SETTINGS = LAYERS | {"hidden_size": "hidden_size", "length": "max_position_embeddings"}
MDLM_SETTINGS = LAYERS | {"hidden_dim": "hidden_size", "model_length": "max_position_embeddings"}
MDLM_SETTINGS["vocab_size"] = "vocab_size"
OTHER_CONVERTER = (
    "To convert another model, use training/conversion/causal_lm.py (Llama, Qwen, GPT-2) or masked_lm.py of the same "
    "folder (LLaDA, Dream) of the repository."
)
RELEASED = "Pass a .pt file of the Hub repository Cauthyyy/AO-GPT-MDM."


def convert(
    source: Path, output_dir: Path, weights: str | None = None, tokenizer: str | None = None
) -> AOGPTForAnyOrderLM | MDMEncoderForMaskedLM:
    """Convert a released model into a folder of safetensors, configurations and code.

    Args:
        source (`Path`): A released `.pt` file of AO-GPT or sigma-GPT, or a folder of SEDD, RADD or MDLM. The
            architecture is recognized by config.json and the names of the tensors.
        output_dir (`Path`): The folder to write. It must be empty or not exist.
        weights (`str`, *optional*): `"ema"` (moving averages of the weights) or `"live"` (weights of the last training
            step). Defaults to the weights with which the published numbers were computed: `"ema"` for AO-GPT, `"live"`
            for sigma-GPT. A folder has only one set of weights.
        tokenizer (`str`, *optional*): Folder or Hub name of the model's tokenizer, such as `"gpt2"`. Released files do
            not contain it. The tokenizer gets a mask token, and is saved with the model.
    """
    if output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())):
        raise ValueError(f"{output_dir} exists and is not an empty folder. Remove it, or choose another folder.")
    model = load_released(source, weights)
    written = [model] if tokenizer is None else [model, load_matching_tokenizer(model.config, tokenizer)]
    output_dir.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=output_dir) as folder:  # so that an error does not leave a part of the files
        for part in written:
            part.save_pretrained(folder)
        for file in Path(folder).iterdir():
            file.replace(output_dir / file.name)
    return model


def load_released(source: Path, weights: str | None = None) -> AOGPTForAnyOrderLM | MDMEncoderForMaskedLM:
    """Load a released model on the CPU, in the dtype of its file (see [`convert`] for the arguments)."""
    if weights is not None:
        check_choice("weights", weights, ("ema", "live"))
    return load_encoder(source, weights) if source.is_dir() else load_decoder(source, weights)


def load_decoder(source: Path, weights: str | None) -> AOGPTForAnyOrderLM:
    """Load an AO-GPT or sigma-GPT from a released `.pt` file (see [`convert`] for the arguments)."""
    checkpoint = read_checkpoint(source)
    tensors = {name.removeprefix("_orig_mod."): tensor for name, tensor in checkpoint["model"].items()}
    if "transformer.wtpe.weight" not in tensors:
        raise ValueError(
            f"{source} is not a released AO-GPT or sigma-GPT file: it has no tensor transformer.wtpe.weight. Its "
            f"tensors are {', '.join(list(tensors)[:3])}, ... {RELEASED}"
        )
    architecture = AOGPT if any("adaLN" in name for name in tensors) else SIGMA_GPT
    config = read_config(checkpoint, architecture, tensors, source)
    blueprint = Blueprint.make(AOGPTForAnyOrderLM, config, architecture)
    blueprint.check(tensors, str(source), f"its model_args ({architecture.name})")
    # The authors' evaluation scripts load moving averages of AO-GPT, but not of sigma-GPT.
    if weights == "ema" or (weights is None and architecture is AOGPT):
        tensors = read_moving_averages(checkpoint, blueprint, source)
    return blueprint.load(tensors)


def load_encoder(source: Path, weights: str | None) -> MDMEncoderForMaskedLM:
    """Load a SEDD, RADD or MDLM model from its released folder (see [`convert`] for the arguments)."""
    if weights == "live":
        raise ValueError(f"{source} is an encoder, which has only one set of weights. Remove `weights` (--weights).")
    if not (source / "config.json").is_file():
        raise ValueError(
            f"{source} is a folder without config.json. Pass a released .pt file of AO-GPT or sigma-GPT, or a folder "
            f"of SEDD, RADD or MDLM. {OTHER_CONVERTER}"
        )
    settings = read_json(source / "config.json")
    tensors = {name.removeprefix("backbone."): tensor for name, tensor in read_tensors(source).items()}
    is_mdlm = settings.get("model_type") == "mdlm"
    architecture = MDLM if is_mdlm else SEDD if "sigma_map.mlp.0.weight" in tensors else RADD
    config = read_encoder_config(settings, architecture, source)
    blueprint = Blueprint.make(MDMEncoderForMaskedLM, config, architecture)
    # The file also contains the rotary frequencies. Compare them with the frequencies of the configuration: no other
    # tensor shows whether the number of heads and the base are right.
    frequencies, _ = compute_frequencies(config, torch.device("cpu"))
    given = tensors.pop("rotary_emb.inv_freq", frequencies)
    if given.shape != frequencies.shape or not torch.allclose(given.float(), frequencies, rtol=1e-3, atol=0):
        raise ValueError(
            f"The tensors of {source} do not fit its config.json: rotary_emb.inv_freq does not have the frequencies of "
            f"base {config.rope_parameters['rope_theta']:g} and n_heads={config.num_attention_heads}. Download the "
            "folder again."
        )
    blueprint.check(tensors, str(source), f"its config.json ({architecture.name})")
    model = blueprint.load(tensors)
    return remove_noise_level(model, read_encoder_config(settings, RADD, source)) if is_mdlm else model


@torch.no_grad()
def remove_noise_level(model: MDMEncoderForMaskedLM, config: MDMEncoderConfig) -> MDMEncoderForMaskedLM:
    """Return a RADD, with `config`, that has the outputs of `model`, a SEDD, at noise level 0.

    At a fixed noise level, the shifts, scales and gates of adaLN are constants. Shifts and scales become part of the
    norms, and gates become part of the last projections of attention and MLP.
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

    blueprint = Blueprint.make(MDMEncoderForMaskedLM, config)
    return blueprint.load({name: weights[name].to(dtype) for name in blueprint.names})


def read_encoder_config(given: dict[str, Any], architecture: ReleasedArchitecture, source: Path) -> MDMEncoderConfig:
    """Return the configuration of an encoder. `given` are the contents of config.json in the folder `source`."""
    if given.get("model_type") == "mdlm":
        require("time_conditioning", given.get("time_conditioning"), False, source)
        return make_config(MDMEncoderConfig, given, MDLM_SETTINGS, architecture, source)
    sizes, graph = given.get("model"), given.get("graph")
    if not isinstance(sizes, dict) or not isinstance(graph, dict):
        raise ValueError(
            f"{source}/config.json is not the configuration of a SEDD, RADD or MDLM model. It must have the "
            f"`model_type` 'mdlm', or the entries `model` and `graph`. {OTHER_CONVERTER}"
        )
    require("graph.type", graph.get("type"), "absorb", source)  # noise that masks tokens
    if architecture is SEDD:
        require("model.scale_by_sigma", sizes.get("scale_by_sigma"), True, source)
    if not isinstance(given.get("tokens"), int):
        raise ValueError(
            f"{source}/config.json has tokens {given.get('tokens')!r}, but must have the number of ids of text. "
            "Download the folder again."
        )
    others = {"vocab_size": given["tokens"] + 1}
    return make_config(MDMEncoderConfig, sizes, ENCODER_SETTINGS, architecture, source, **others)


def read_config(
    checkpoint: dict[str, Any], architecture: ReleasedArchitecture, tensors: Tensors, source: Path
) -> AOGPTConfig:
    """Return the configuration for the `model_args` in `checkpoint`, the contents of the released file `source`."""
    given = checkpoint["model_args"]
    if unknown := given.keys() - SETTINGS.keys() - {"dropout"}:
        raise ValueError(f"`model_args` of {source} has unknown settings: {', '.join(sorted(unknown))}. {RELEASED}")
    others = dict.fromkeys(("attention_output_bias", "mlp_bias", "norm_bias"), given.get("bias"))
    others["target_embedding_size"] = tensors["transformer.wtpe.weight"].shape[-1]
    return make_config(AOGPTConfig, given, SETTINGS, architecture, source, **others)


def require(name: str, given: Any, value: Any, source: Path) -> None:
    """Raise a `ValueError` unless the value `given` for the setting `name` of config.json is `value`."""
    if given != value:
        raise ValueError(
            f"{source}/config.json has {name} {given!r}, but only {value!r} is supported. Pass another folder."
        )


def make_config(
    config_class: type[AOGPTConfig],
    given: dict[str, Any],
    names: dict[str, str],
    architecture: ReleasedArchitecture,
    source: Path,
    **others: Any,
) -> AOGPTConfig:
    """Return the configuration with the `given` settings, renamed as `names` defines, and the settings in `others`.

    A vocabulary of GPT-2's size has GPT-2's end-of-text token.
    """
    if missing := [name for name in names if name not in given]:
        raise ValueError(f"The settings of {source} lack {', '.join(missing)}. Download them again. {OTHER_CONVERTER}")
    settings = {new: given[old] for old, new in names.items()} | others
    gpt2_size = GPT2_VOCAB_SIZE + 1 if config_class is MDMEncoderConfig else GPT2_PADDED_VOCAB_SIZE
    if settings["vocab_size"] == gpt2_size:  # an encoder has one id more, the mask
        settings["bos_token_id"] = settings["eos_token_id"] = GPT2_VOCAB_SIZE - 1
    try:
        return config_class(**settings | architecture.settings)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source} has settings that are not allowed: {error}") from error


def read_checkpoint(source: Path) -> dict[str, Any]:
    """Return the dictionary of a released `.pt` file. Its tensors are memory-mapped, that is, read when used."""
    if not source.is_file():
        raise ValueError(
            f"{source} does not exist. Pass a released .pt file, or a folder of SEDD, RADD or MDLM. {OTHER_CONVERTER}"
        )
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
                f"{source} is not a released AO-GPT or sigma-GPT file: it has no dictionary {part!r}. {RELEASED}"
            )
    return checkpoint


def read_moving_averages(checkpoint: dict[str, Any], blueprint: Blueprint, source: Path) -> Tensors:
    """Return the moving averages of the weights by name. The file stores them as a list, without a tied head."""
    ema, tied = checkpoint.get("ema_model"), blueprint.tied or ("",)
    averages = ema.get("shadow_params") if isinstance(ema, dict) else None
    names = [name for name in blueprint.shapes if name != tied[0]]
    if not isinstance(averages, list) or len(averages) != len(names):
        given = len(averages) if isinstance(averages, list) else "no"
        raise ValueError(
            f"{source} has {given} moving averages (ema_model.shadow_params), but {len(names)} parameters. Set "
            "`weights='live'` (--weights live)."
        )
    tensors = dict(zip(names, averages, strict=True))
    blueprint.check(tensors, f"{source} (moving averages)", "its model_args")
    return tensors
