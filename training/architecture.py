# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Architecture of a run. Its keys are `architecture` and the arguments of `AOGPTConfig`."""

import argparse
import re
from typing import Any, get_args

import yaml
from transformers.hf_argparser import string_to_bool

from modeling_aogpt import AOGPTConfig, MDMEncoderConfig
from modeling_aogpt.loading import read_config

Architecture = dict[str, Any]  # values of all keys in `DEFAULTS`

# Arguments of `AOGPTConfig` that are not keys of an architecture: they depend on the tokenizer or on the training,
# or exist only in converted models.
NOT_KEYS = {
    *("vocab_size", "num_valid_tokens", "mask_token_id", "bos_token_id", "eos_token_id", "pad_token_id"),
    *("no_rope_layers", "source_config", "max_gap_length"),
}
TYPES = {name: kind for name, kind in AOGPTConfig.__annotations__.items() if name not in NOT_KEYS}
DEFAULTS: Architecture = {
    "architecture": "decoder",
    **{name: getattr(AOGPTConfig, name) for name in TYPES},
    "max_position_embeddings": None,  # the default is `sequence_length`
}


def add_architecture_keys(parser: argparse.ArgumentParser) -> None:
    """Add options for the keys of an architecture. Keys that are not given are not part of the parsed namespace."""
    group = parser.add_argument_group(
        "architecture",
        "Arguments of `AOGPTConfig`, which describes them (modeling_aogpt/configuration_aogpt.py). "
        "`max_position_embeddings` defaults to `sequence_length`.",
        argument_default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--architecture",
        choices=("decoder", "encoder"),
        help="decoder (default): AO-GPT. encoder: a masked diffusion model (`MDMEncoderConfig`).",
    )
    for name, kind in TYPES.items():
        options = {"nargs": "?", "const": True} if kind is bool else {}
        kind = (get_args(kind) or (kind,))[0] if type(None) in get_args(kind) else kind
        convert = {bool: string_to_bool, dict[str, Any]: _parse_mapping}.get(kind, kind)
        group.add_argument(f"--{name}", type=convert, help=f"defaults to {DEFAULTS[name]}", **options)


def _parse_mapping(text: str) -> dict[str, Any]:
    """Parse a mapping in JSON, or in YAML with braces."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a mapping such as '{{rope_theta: 500}}', but is {text!r}")
    return {key: _to_value(item) for key, item in value.items()}


def _to_value(value: Any) -> Any:
    """Return the value of YAML text. Also accept numbers such as 1e6, which YAML 1.1 reads as text."""
    if not isinstance(value, str):
        return value
    return float(value) if re.fullmatch(r"\d+(\.\d*)?[eE]\+?\d+", value) else yaml.safe_load(value)


def read_architecture(model: str, given: dict[str, Any]) -> Architecture:
    """Return the architecture of a model. Raise a `ValueError` if a key in `given` has another value."""
    config = read_config(model)
    kind = "encoder" if isinstance(config, MDMEncoderConfig) else "decoder"
    architecture = {"architecture": kind} | {name: getattr(config, name) for name in TYPES}
    for name, value in given.items():
        if name == "rope_parameters":
            value = AOGPTConfig(  # sets the defaults of the parameters that are not given
                position_encoding="rotary",
                max_position_embeddings=config.max_position_embeddings,
                rope_parameters=value,
            ).rope_parameters
        if value != (actual := architecture[name]):
            raise ValueError(f"`{name}` is {value}, but is {actual} in the model of {model}. Remove the key.")
    return architecture


def build_config(architecture: Architecture, **vocabulary: Any) -> AOGPTConfig | MDMEncoderConfig:
    """Return the configuration of the model. `vocabulary` holds the arguments that depend on the tokenizer."""
    settings = dict(architecture)
    if settings.pop("architecture") == "decoder":
        return AOGPTConfig(**settings, **vocabulary)
    if vocabulary.get("vocab_size") and vocabulary["vocab_size"] == vocabulary["num_valid_tokens"]:
        vocabulary["vocab_size"] += 1  # an encoder has an embedding of the mask token
    return MDMEncoderConfig(**settings, **vocabulary)
