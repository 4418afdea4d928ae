# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Settings of a run: keys of a YAML file, each of which `--key value` on the command line overrides."""

import difflib
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, make_dataclass
from inspect import getdoc
from pathlib import Path
from typing import Any, Literal

import yaml

from common.commands import Options, Parser, option
from common.data import DataArguments
from common.models import read_config
from modeling_aogpt import AOGPTConfig, MDMEncoderConfig
from modeling_aogpt.data_collator import OrderDistribution

# Fields of the configurations that the tokenizer gives.
OF_THE_TOKENIZER = {
    *("vocab_size", "num_valid_tokens", "mask_token_id"),
    *("bos_token_id", "eos_token_id", "pad_token_id"),
}
OF_ENCODERS = tuple(MDMEncoderConfig.__annotations__)


def _described(config_class: type) -> dict[str, str]:
    """Return what the docstring of a configuration says of each argument."""
    entries = re.findall(
        r"^ {4}(\w+)(?: \(.*?\))?: (.*?)(?=^ {4}\w|^$)", f"{getdoc(config_class)}\n\n", re.MULTILINE | re.DOTALL
    )
    return {name: " ".join(text.split()).replace("%", "%%") for name, text in entries}


def _architecture_fields() -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, type and default of each setting of the architecture, as the configurations have them."""
    yield "architecture", Literal["decoder", "encoder"], option("decoder", "AO-GPT, or a masked diffusion encoder.")
    descriptions = _described(MDMEncoderConfig) | _described(AOGPTConfig)
    for config_class in (AOGPTConfig, MDMEncoderConfig):
        for name, kind in config_class.__annotations__.items():
            if name == "max_position_embeddings":
                yield name, int | None, option(None, "Longest sequence; unless given, sequence_length.")
            elif name not in OF_THE_TOKENIZER:
                kind = Literal[MDMEncoderConfig.choices[name]] if name in MDMEncoderConfig.choices else kind
                yield name, kind, option(getattr(config_class, name), descriptions.get(name, ""))


ModelArguments = make_dataclass("ModelArguments", _architecture_fields())
ModelArguments.__doc__ = "The architecture: the fields of `AOGPTConfig` and `MDMEncoderConfig` and their defaults."


@dataclass
class TrainingArguments(Options):
    """The recipe. A step is an update of the weights, a batch is all sequences of a step over all processes."""

    output_dir: Path | None = option(None, "Folder of the run; unless given, runs/ and the name of the YAML file.")
    resume: Literal["auto", "never"] = option(
        "auto", "auto: go on from the newest checkpoint in output_dir. never: remove those there and begin anew."
    )
    prepare_only: bool = option(
        False, "Read, tokenize and cache the corpus, then stop, before a model is made: on a machine without GPUs, say."
    )
    seed: int = option(0, "Fixes initial weights, data order and token orders.", least=0, below=2**32)
    max_steps: int = option(1000, "Length of the run, in steps.", least=1)
    batch_size: int = option(128, "Sequences per step, over all processes.", least=1)
    per_device_batch_size: int | None = option(
        None, "Sequences per forward pass and process; the rest is accumulated. Unless given: no accumulation.", least=1
    )
    init_from: str | None = option(
        None, "Folder or Hub name of a model to start from, whose architecture and, unless given, tokenizer are taken."
    )
    objective: Literal["any_order", "masked_diffusion", "score_entropy"] = option(
        "any_order", "What is minimised; a decoder knows any_order alone, score_entropy needs target_injection=sigma."
    )
    orders: Literal["random", "left_to_right", "shared"] = option(
        "random", "Orders of training: random for each sequence, left to right, or one random order for all sequences."
    )
    block_length: int | None = option(None, "Visit contiguous blocks of this length from left to right.", least=1)
    stride: int | None = option(None, "Visit strided blocks: first positions 0, stride, 2 stride, ...", least=1)
    left_to_right_fraction: float | None = option(
        None,
        "Fraction of sequences that are left to right instead; defaults to 0.1 for a decoder with random orders, and to "
        "0 otherwise.",
    )
    final_left_to_right_fraction: float | None = option(
        None, "Fraction at the end of the run, if it changes linearly during the run."
    )
    learning_rate: float = option(6e-4, "Peak of the schedule.")
    final_learning_rate: float | None = option(None, "End of the cosine; unless given, a tenth of the peak.")
    warmup_steps: int = option(100, "Steps of linear warm-up.")
    weight_decay: float = option(0.05, "Decay of tensors of two or more dimensions.", least=0, below=math.inf)
    adam_beta1: float = option(0.9, "Decay of AdamW's first moment.", least=0, below=1)
    adam_beta2: float = option(0.95, "Decay of AdamW's second moment.", least=0, below=1)
    adam_epsilon: float = option(1e-8, "AdamW's epsilon.", least=0, below=math.inf)
    max_grad_norm: float = option(1.0, "Norm to which gradients are clipped.")
    ema_decay: float = option(0.9999, "Decay of the moving average of the weights.", least=0, below=1)
    mixed_precision: Literal["no", "bf16", "fp16"] | None = option(
        None, "Precision of the training passes; unless given, as `accelerate launch` says, or no."
    )
    dynamo_backend: Literal["no", "eager", "aot_eager", "inductor"] | None = option(
        None, "torch.compile the model by this backend; unless given, as `accelerate launch` says, or no."
    )
    activation_checkpointing: Literal["none", "selective", "full"] = option(
        "none",
        "What is made again in the backward pass to save memory: selective: norms, modulations, gates and activation "
        "functions; full: whole blocks.",
    )
    dataloader_num_workers: int = option(0, "Processes that prepare batches; 0: the training process itself.", least=0)
    logging_steps: int = option(10, "Steps between points of the loss curve, each the mean since the last.", least=1)
    eval_steps: int = option(500, "Steps between evaluations; there is always one at the end.", least=1)
    eval_sequences: int | None = option(None, "Held-out sequences per evaluation; unless given, all.", least=1)
    eval_batch_size: int = option(256, "Sequences per forward pass and process in evaluations.", least=1)
    save_steps: int = option(500, "Steps between checkpoints; there is always one at the end.", least=1)
    save_total_limit: int = option(2, "Checkpoints to keep.", least=1)
    num_samples: int = option(4, "Texts that the model writes at each evaluation, in samples/.", least=0)
    tracker: Literal["tensorboard", "wandb", "trackio", "none"] = option(
        "tensorboard", "Where losses are logged; TensorBoard's files are in output_dir."
    )


# Keys that may change between a checkpoint and its resumption: where and how fast the run goes, and what is looked at,
# but not what is learned (up to rounding).
MAY_CHANGE = {
    *("output_dir", "resume", "prepare_only", "per_device_batch_size", "mixed_precision", "dynamo_backend"),
    *("activation_checkpointing", "dataloader_num_workers", "preprocessing_num_workers", "logging_steps", "eval_steps"),
    *("eval_sequences", "eval_batch_size", "save_steps", "save_total_limit", "num_samples", "tracker"),
}


def parse_arguments(argv: list[str]) -> tuple[ModelArguments, DataArguments, TrainingArguments]:
    """
    Reads `CONFIG.yaml [--key value ...]`.

    Raises:
        ValueError: If a key is not known (the nearest one is named), or the values contradict each other.
    """
    parser = Parser((ModelArguments, DataArguments, TrainingArguments))
    parser.add_argument("config", type=Path, help="YAML file of keys and values, for instance configs/quickstart.yaml")
    known = {item.name: item.type for kind in parser.dataclass_types for item in fields(kind)}
    if not argv or argv[0].startswith("-"):
        parser.parse_args(argv)  # --help, or the usage
        raise ValueError("The first argument is the YAML file: pretrain.py CONFIG.yaml [--key value ...]")
    settings = read_settings(Path(argv[0]), known)
    *parsed, _, unknown = parser.parse_args_into_dataclasses(
        [argv[0], *_as_options(settings), *argv[1:]], return_remaining_strings=True, look_for_args_file=False
    )
    if unknown:
        raise ValueError(_unknown_key(unknown[0], known, "the command line"))
    model, data, training = parsed
    training.output_dir = training.output_dir or Path("runs") / Path(argv[0]).stem
    if training.init_from is not None:
        _adopt_architecture(model, training.init_from, _given_keys(settings, argv))
        data.tokenizer = data.tokenizer or training.init_from
    _complete(model, data, training)
    _check(model, data, training)
    return model, data, training


class _Loader(yaml.SafeLoader):
    """
    Leaves everything text but null and infinity: `no` and 1.10 are what they say, and types are those of the keys, as
    on the command line.
    """

    yaml_implicit_resolvers = {}


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile("(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"), ["-", "+", "."]
)


def read_settings(path: Path, known: dict[str, Any]) -> dict[str, Any]:
    """
    The keys that a YAML file gives, and their values: text, or lists of text. null, or no files to hold out: not given.

    Args:
        known: The types of all keys.

    Raises:
        ValueError: If the file cannot be read, or for an unknown key or a list where none can be; it names the file.
    """
    try:
        settings = _Loader(path.read_text(encoding="utf-8")).get_single_data()
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{path} must hold lines of the form `key: value`.")
    for key, value in settings.items():
        if key not in known:
            raise ValueError(_unknown_key(str(key), known, str(path)))
        takes_list = known[key] == list[str]
        if isinstance(value, dict | list) and not (takes_list and isinstance(value, list)):
            raise ValueError(f"{key} in {path} is {value!r}; it takes one value.")
    given = {key: value for key, value in settings.items() if value is not None}
    if given.get("validation_files") == []:  # as a run's report says, and the command line cannot
        del given["validation_files"]
    return given


def _as_options(settings: dict[str, Any]) -> Iterable[str]:
    """As if given on the command line, so that types and choices are checked in one place."""
    for key, value in settings.items():
        if isinstance(value, list):
            yield from (f"--{key}", *map(str, value))
        else:
            yield f"--{key}={value}"


def _unknown_key(given: str, known: Iterable[str], place: str) -> str:
    key = given.lstrip("-").partition("=")[0].replace("-", "_")
    nearest = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.0)[0]
    return f"{given!r} in {place} is not known. Did you mean {nearest!r}? `pretrain.py --help` lists all keys."


def _given_keys(settings: dict[str, Any], argv: list[str]) -> set[str]:
    """Keys of the YAML file and of the command line, where `--no_KEY` stands for a key, too."""
    options = {option[2:].partition("=")[0].replace("-", "_") for option in argv if option.startswith("--")}
    return settings.keys() | {key.removeprefix("no_") for key in options}


def _adopt_architecture(model: ModelArguments, init_from: str, given: set[str]) -> None:
    """Makes the architecture that of a checkpoint. Raises a `ValueError` for a given key that asks for another."""
    config = read_config(init_from)
    for item in fields(model):
        value, its = getattr(model, item.name), getattr(config, item.name, item.default)
        if item.name == "architecture":
            its = "encoder" if isinstance(config, MDMEncoderConfig) else "decoder"
        if item.name in given and value != its:
            raise ValueError(f"{item.name}={value} is given, but the model of {init_from} has {its}: leave it out.")
        setattr(model, item.name, its)


def _complete(model: ModelArguments, data: DataArguments, training: TrainingArguments) -> None:
    """Fills in the defaults that depend on other values."""
    if training.left_to_right_fraction is None:
        default = OrderDistribution(training.orders, training.block_length, training.stride).left_to_right_fraction
        training.left_to_right_fraction = default if model.architecture == "decoder" else 0.0
    if training.final_learning_rate is None:
        training.final_learning_rate = training.learning_rate / 10
    if model.max_position_embeddings is None:
        model.max_position_embeddings = data.sequence_length


def _check(model: ModelArguments, data: DataArguments, training: TrainingArguments) -> None:
    """Raises a `ValueError` for values that are out of range or contradict each other."""
    if training.prepare_only and data.streaming:
        raise ValueError("streaming reads and tokenizes while it trains: there is nothing for prepare_only to cache.")
    if data.sequence_length > model.max_position_embeddings:
        raise ValueError(
            f"sequence_length={data.sequence_length} is longer than max_position_embeddings="
            f"{model.max_position_embeddings}: shorten the first or raise the second."
        )
    if training.output_dir.exists() and not training.output_dir.is_dir():
        raise ValueError(f"output_dir={training.output_dir} is a file: name a folder.")
    if not 0 <= training.warmup_steps < training.max_steps:
        raise ValueError(f"warmup_steps={training.warmup_steps} must lie in [0, max_steps={training.max_steps}).")
    if not 0 <= training.final_learning_rate <= training.learning_rate < math.inf or training.learning_rate == 0:
        raise ValueError(
            f"learning_rate={training.learning_rate} must be above 0 and finite, and final_learning_rate="
            f"{training.final_learning_rate} between 0 and it."
        )
    if not training.max_grad_norm > 0:
        raise ValueError(f"max_grad_norm={training.max_grad_norm} must be above 0.")
    _check_objective(model, training)
    build_config(model)  # AOGPTConfig checks the architecture


def _check_objective(model: ModelArguments, training: TrainingArguments) -> None:
    """Raises a `ValueError` for what the architecture cannot be trained on, and orders that would have no effect."""
    objective, is_encoder = training.objective, model.architecture == "encoder"
    if objective != "any_order" and not is_encoder:
        raise ValueError(f"objective={objective} needs architecture=encoder: a decoder is trained with any_order.")
    if objective == "score_entropy" and model.target_injection != "sigma":
        raise ValueError(
            f"objective=score_entropy needs target_injection=sigma, not {model.target_injection}: the score depends on "
            "the noise level."
        )
    blocks = training.block_length, training.stride
    for fraction in (training.left_to_right_fraction, training.final_left_to_right_fraction):
        OrderDistribution(training.orders, *blocks, fraction)
    given = (training.orders, *blocks, training.left_to_right_fraction, training.final_left_to_right_fraction)
    if objective != "any_order" and given != ("random", None, None, 0.0, None):
        raise ValueError(f"objective={objective} draws masks and no orders: leave out the keys of orders.")


def build_config(model: ModelArguments, **vocabulary: Any) -> AOGPTConfig | MDMEncoderConfig:
    """The model's configuration; `vocabulary` says what the tokenizer brings (sizes and special ids)."""
    settings = asdict(model)
    if settings.pop("architecture") == "encoder":
        if vocabulary.get("vocab_size") and vocabulary["vocab_size"] == vocabulary["num_valid_tokens"]:
            vocabulary["vocab_size"] += 1  # an encoder embeds its mask
        return MDMEncoderConfig(**settings, **vocabulary)
    of_encoder = [settings.pop(name) for name in OF_ENCODERS]
    if not all(of_encoder):
        raise ValueError("attention_bias and norm_bias are an encoder's: a decoder has use_bias for both.")
    return AOGPTConfig(**settings, **vocabulary)


def accumulation_steps(training: TrainingArguments, num_processes: int) -> int:
    """Forward passes per step in each process. Raises a `ValueError` when the batch cannot be split evenly."""
    per_device = training.per_device_batch_size or max(training.batch_size // num_processes, 1)
    if training.batch_size % (num_processes * per_device):
        raise ValueError(
            f"batch_size={training.batch_size} cannot be split over {num_processes} process(es) in passes of "
            f"per_device_batch_size={per_device}: it must be a multiple of {num_processes * per_device}."
        )
    return training.batch_size // (num_processes * per_device)


def as_json(*arguments: Any) -> dict[str, Any]:
    """All keys and values of a run, for files."""
    values = {key: value for group in arguments for key, value in asdict(group).items()}
    return {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}


def check_same_run(saved: dict[str, Any], current: dict[str, Any], place: Path) -> None:
    """Raises a `ValueError` that names every key that must not change between a checkpoint and its resumption."""
    changed = [
        f"{key}: {saved.get(key)!r} there, {current.get(key)!r} now"
        for key in sorted(saved.keys() | current.keys())
        if key not in MAY_CHANGE and saved.get(key) != current.get(key)
    ]
    if changed:
        raise ValueError(
            f"{place} belongs to a run with other settings ({'; '.join(changed)}). Restore them, choose another "
            "output_dir, or remove the old run's checkpoints with `--resume never`."
        )
