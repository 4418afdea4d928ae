# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Settings of a run. They are read from a YAML file, and `--key value` on the command line overrides them."""

import glob
import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, make_dataclass
from inspect import getdoc
from pathlib import Path
from typing import Any, Literal

import yaml

from common.commands import Options, Parser, option
from common.data_arguments import DataArguments
from common.files import read_yaml
from common.models import find_model, read_config
from common.results import WITHOUT_EFFECT
from modeling_aogpt import AOGPTConfig, MDMEncoderConfig
from modeling_aogpt.configuration_aogpt import MAX_SIZES
from modeling_aogpt.data_collator import OrderDistribution
from modeling_aogpt.validation import check_fraction, suggest

# Fields of the configurations that depend on the tokenizer.
TOKENIZER_FIELDS = {
    *("vocab_size", "num_valid_tokens", "mask_token_id"),
    *("bos_token_id", "eos_token_id", "pad_token_id"),
}
# Names that other programs use for keys of this package. Error messages suggest the key.
OTHER_NAMES = {
    "lr": "learning_rate",
    "wd": "weight_decay",
    "bs": "batch_size",
    "steps": "max_steps",
    "epochs": "max_steps",
    "num_train_epochs": "max_steps",
    "fp16": "mixed_precision",
    "bf16": "mixed_precision",
}
# Values of `orders` after which a model generates from left to right.
LEFT_TO_RIGHT_ORDERS = ("left_to_right", "gaps_last")
NULL = ("", "~", "null", "Null", "NULL")  # ways to write null in YAML
# Fields that only converted models have. They cannot be set as keys. Models loaded with `init_from` keep their values.
CONVERTED_FIELDS = {"no_rope_layers", "source_config"}


def _describe_fields(config_class: type) -> dict[str, str]:
    """Return the description of each argument in the docstring of a configuration class."""
    entries = re.findall(
        r"^ {4}(\w+)(?: \(.*?\))?: (.*?)(?=^ {4}\w|^$)", f"{getdoc(config_class)}\n\n", re.MULTILINE | re.DOTALL
    )
    return {name: " ".join(text.split()) for name, text in entries}


def _architecture_fields() -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, type and dataclass field of each setting of the architecture."""
    yield (
        "architecture",
        Literal["decoder", "encoder"],
        option("decoder", "decoder: AO-GPT. encoder: a masked diffusion model."),
    )
    descriptions = _describe_fields(MDMEncoderConfig) | _describe_fields(AOGPTConfig)
    for name, kind in AOGPTConfig.__annotations__.items():
        if name == "max_position_embeddings":
            yield name, int | None, option(None, "Length of the longest sequence; defaults to sequence_length.")
        elif name == "rope_parameters":
            yield name, str | None, option(None, f"{descriptions[name]} Write a mapping in YAML, or JSON.")
        elif name not in TOKENIZER_FIELDS | CONVERTED_FIELDS:
            kind = Literal[MDMEncoderConfig.choices[name]] if name in MDMEncoderConfig.choices else kind
            yield name, kind, option(getattr(AOGPTConfig, name), descriptions.get(name, ""))


ModelArguments = make_dataclass("ModelArguments", _architecture_fields())
ModelArguments.__doc__ = (
    "The architecture: the fields of `AOGPTConfig`, which `MDMEncoderConfig` shares, and their defaults."
)


@dataclass
class TrainingArguments(Options):
    """Settings of the training. A step is one update of the weights. A batch consists of the sequences of one step."""

    output_dir: Path | None = option(
        None, "Folder of the run; defaults to runs/NAME, where NAME.yaml is the YAML file."
    )
    prepare_only: bool = option(
        False, "Read, tokenize and cache the corpus, then stop. This can be done on a machine without GPUs."
    )
    seed: int = option(0, "Seed of initial weights, data order and token orders.", least=0, below=2**32)
    max_steps: int = option(1000, "Number of training steps.", least=1)
    batch_size: int = option(128, "Number of sequences per step, over all processes.", least=1)
    per_device_batch_size: int | None = option(
        None,
        "Number of sequences per forward pass and process. If a batch takes several passes, gradients are accumulated. "
        "By default, each process computes its part of the batch in one pass.",
        least=1,
    )
    init_from: str | None = option(
        None,
        "Initial model: its folder, the folder of its run, or its Hub name. The run has the architecture of this model "
        "and, by default, its tokenizer and its longest sequence.",
    )
    objective: Literal["any_order", "masked_diffusion", "score_entropy"] = option(
        "any_order", "Training loss. A decoder must use any_order; score_entropy requires target_injection=sigma."
    )
    orders: Literal["random", "left_to_right", "shared", "context_first", "gaps_last"] = option(
        "random",
        "Training orders. random: an order drawn for each sequence. left_to_right: left to right. shared: one random "
        "order for all sequences. context_first: first a random subset of the positions (the context) from left to "
        "right and without loss, then the other positions in random order. gaps_last: first all positions outside "
        "random gaps, then those in the gaps, both from left to right.",
    )
    block_length: int | None = option(None, "Predict contiguous blocks of this length from left to right.", least=1)
    stride: int | None = option(
        None, "Predict strided blocks: positions 0, stride, 2 stride, ..., then 1, stride + 1, ...", least=1
    )
    min_context: int | None = option(
        None,
        "Smallest number of context positions with orders=context_first; defaults to 0. Has no effect on documents "
        "with context_marks.",
        least=0,
    )
    max_context: int | None = option(
        None,
        "Largest number of context positions with orders=context_first; defaults to all but one. Has no effect on "
        "documents with context_marks.",
        least=1,
    )
    left_to_right_fraction: float | None = option(
        None,
        "Fraction of sequences that are trained left to right, whatever `orders` is. Defaults to 0.1 for a decoder "
        "with random orders and without blocks, and to 0 otherwise.",
    )
    final_left_to_right_fraction: float | None = option(
        None, "If set, left_to_right_fraction changes linearly to this value."
    )
    left_to_right_steps: int | None = option(
        None,
        "Step at which the fraction reaches final_left_to_right_fraction; it does not change later. Defaults to 30 % "
        "of max_steps.",
        least=1,
    )
    learning_rate: float = option(6e-4, "Peak learning rate.")
    final_learning_rate: float | None = option(
        None, "Learning rate at the end of the schedule; defaults to a tenth of the peak."
    )
    learning_rate_schedule: Literal["cosine", "warmup_stable_decay"] = option(
        "cosine",
        "Learning rate after the warm-up. cosine: half a cosine. warmup_stable_decay: the peak until a linear decay in "
        "the last decay_steps steps; such a run can be extended later with a larger max_steps.",
    )
    decay_steps: int | None = option(
        None, "Number of steps of the decay, with warmup_stable_decay; defaults to a tenth of max_steps.", least=1
    )
    warmup_steps: int = option(100, "Number of steps of linear warm-up.")
    weight_decay: float = option(0.05, "Weight decay of tensors of two or more dimensions.", least=0, below=math.inf)
    adam_beta1: float = option(0.9, "Decay of AdamW's first moment.", least=0, below=1)
    adam_beta2: float = option(0.95, "Decay of AdamW's second moment.", least=0, below=1)
    adam_epsilon: float = option(1e-8, "AdamW's epsilon.", least=0, below=math.inf)
    max_grad_norm: float = option(
        1.0, "Largest norm of the gradient. If the norm is larger, the gradient is scaled down to it."
    )
    ema_decay: float = option(0.9999, "Decay of the moving average of the weights.", least=0, below=1)
    mixed_precision: Literal["no", "bf16", "fp16"] | None = option(
        None, "Precision of training passes. Defaults to that of `accelerate launch`, or else to no (float32)."
    )
    dynamo_backend: Literal["no", "eager", "aot_eager", "inductor"] | None = option(
        None, "Backend of torch.compile. Defaults to that of `accelerate launch`, or else to no (eager mode)."
    )
    activation_checkpointing: Literal["none", "selective", "full"] = option(
        "none",
        "Activations to recompute in the backward pass, to save memory. selective: those of norms, modulations, gates "
        "and activation functions. full: all activations of a layer.",
    )
    dataloader_num_workers: int = option(
        0, "Number of processes that prepare batches. With 0, the training process prepares the batches.", least=0
    )
    logging_steps: int = option(10, "Number of steps whose mean loss is one point of the loss curve.", least=1)
    eval_steps: int = option(500, "Number of steps between evaluations; the last step is always evaluated.", least=1)
    eval_sequences: int | None = option(None, "Number of held-out sequences to evaluate on; defaults to all.", least=1)
    eval_batch_size: int = option(
        256,
        "Number of sequences per batch and process in evaluations. A decoder's forward pass has at most 4,096 tokens.",
        least=1,
    )
    save_steps: int = option(500, "Number of steps between checkpoints; the last step is always saved.", least=1)
    save_total_limit: int = option(2, "Number of checkpoints to keep, in addition to those of keep_every.", least=1)
    keep_every: int | None = option(
        None, "Number of steps between checkpoints that are always kept, in addition to save_total_limit.", least=1
    )
    num_samples: int = option(
        4, "Number of texts to generate in each evaluation. They are written to output_dir/samples.", least=0
    )
    tracker: Literal["tensorboard", "wandb", "trackio", "none"] = option(
        "tensorboard", "Experiment tracker; TensorBoard writes to output_dir."
    )


# Keys that can name files or folders.
PATHS = {"corpus", "validation_files", "tokenizer", "init_from", "output_dir"}
# Keys that may change when a run is resumed, if the learning rates and left-to-right fractions of all finished steps
# stay the same (see schedules.py).
SCHEDULE = {"max_steps", "decay_steps", "left_to_right_steps"}


def parse_arguments(argv: list[str]) -> tuple[ModelArguments, DataArguments, TrainingArguments]:
    """Parse `CONFIG.yaml [--key value ...]`. Raise a `ValueError` for unknown keys and contradictory values."""
    model, data, training, given = parse_keys(argv)
    training.output_dir = (training.output_dir or Path("runs") / Path(argv[0]).stem).expanduser()
    if training.init_from is not None:
        training.init_from = find_model(training.init_from)
        _copy_architecture(model, training.init_from, given)
        data.tokenizer = data.tokenizer or training.init_from
        if "sequence_length" not in given:
            data.sequence_length = model.max_position_embeddings
    _set_defaults(model, data, training)
    _check(model, data, training)
    return model, data, training


def parse_keys(argv: list[str]) -> tuple[ModelArguments, DataArguments, TrainingArguments, set[str]]:
    """
    Parse `CONFIG.yaml [--key value ...]`, and return the arguments and the set of the given keys.

    With `--KEY null`, the value of KEY in the YAML file is not used. Each value is checked by itself. The model of
    `init_from` is not read.
    """
    parser = Parser((ModelArguments, DataArguments, TrainingArguments))
    parser.add_argument("config", type=Path, help="YAML file of keys and values, such as configs/quickstart.yaml")
    known = {item.name: item.type for kind in parser.dataclass_types for item in fields(kind)}
    if not argv or argv[0].startswith("-"):
        parser.parse_args(argv)  # prints the help or an error, and exits
        given = f"is {argv[0]!r}" if argv else "is missing"
        raise ValueError(
            f"The first argument must be a YAML file, but {given}. Usage: pretrain.py CONFIG.yaml [--key value ...]"
        )
    if len(argv) > 1 and not argv[1].startswith("-"):  # it would become part of a list of the YAML file
        raise ValueError(f"Only options may follow {argv[0]}, but {argv[1]!r} does. Write `--KEY {argv[1]}`.")
    settings = _read_settings(Path(argv[0]), known)
    options, removed = _split_nulls(argv[1:])
    settings = {key: value for key, value in settings.items() if key not in removed}
    *parsed, _, unknown = parser.parse_args_into_dataclasses(
        [argv[0], *_to_options(settings), *options], return_remaining_strings=True, look_for_args_file=False
    )
    if unknown := [*unknown, *(f"--{key}" for key in sorted(removed - known.keys()))]:
        raise ValueError(_describe_unknown_key(unknown[0], known, "on the command line"))
    return *parsed, _given_keys(settings, options)


def _split_nulls(options: list[str]) -> tuple[list[str], set[str]]:
    """
    Return the options without those of the form `--KEY null` or `--KEY=null`, and the keys of the latter.

    Raises:
        ValueError: If a key has null and another value.
    """
    kept, keys, remaining = [], set(), list(options)
    while remaining:
        option = remaining.pop(0)
        name, _, value = option.partition("=")
        if name.startswith("--") and not value and remaining[:1] == ["null"]:
            value = remaining.pop(0)
        if name.startswith("--") and value == "null":
            keys.add(key := name[2:].replace("-", "_"))
            if remaining and not remaining[0].startswith("-"):
                raise ValueError(f"`{key}` is null, but {remaining[0]!r} follows. Remove `null` or {remaining[0]!r}.")
        else:
            kept.append(option)
    if both := sorted(keys & _given_keys({}, kept)):
        raise ValueError(f"`{both[0]}` is given twice on the command line, once as null. Remove one of the two.")
    return kept, keys


def _read_settings(path: Path, known: dict[str, Any]) -> dict[str, Any]:
    """
    Return the keys and values of a YAML file, without the keys whose value is null.

    The key `base` names another file, relative to the folder of this file. Values in this file replace those of its
    base. The value null removes the value of the base.
    """
    settings, files = _read_file(path, known), [path]
    while (base := settings.pop("base", "")) not in NULL:
        files.append(files[-1].parent / base)
        if files[-1].resolve() in (file.resolve() for file in files[:-1]):
            raise ValueError(f"{' -> '.join(map(str, files))}: the files name each other as `base`. Remove one `base`.")
        settings = _read_file(files[-1], known) | settings
    given = {key: value for key, value in settings.items() if value not in NULL}
    if given.get("validation_files") == []:  # report.md may contain it, but an option cannot be an empty list
        del given["validation_files"]
    return given


def _read_file(path: Path, known: dict[str, Any]) -> dict[str, Any]:
    """
    Return the keys and values of a YAML file.

    The values stay strings or lists of strings, as on the command line. The type of the setting then decides whether
    `no` is False or text, and whether 1.10 is a number or text.
    """
    settings = read_yaml(path, yaml.BaseLoader)
    if not isinstance(settings, dict):
        raise ValueError(f"{path} must contain lines of the form `key: value`, but contains {settings!r}.")
    for key, value in settings.items():
        if key not in known and key != "base":
            raise ValueError(_describe_unknown_key(key, known, f"in {path}"))
        if key == "rope_parameters" and isinstance(value, dict):
            settings[key] = value = json.dumps({name: _to_value(text) for name, text in value.items()})
        if not isinstance(value, str) and not (isinstance(value, list) and known.get(key) == list[str]):
            raise ValueError(f"`{key}` must have a single value, but is {value!r} in {path}. Give one value.")
        if isinstance(value, str) and value.lower() in (".inf", ".nan"):
            settings[key] = value[1:]  # as Python's `float` expects it
    return settings


def _to_value(text: str | list[Any] | dict[str, Any]) -> Any:
    """Return the value of YAML text, or a list or mapping of values."""
    if isinstance(text, list):
        return [_to_value(item) for item in text]
    if isinstance(text, dict):
        return {key: _to_value(value) for key, value in text.items()}
    # In YAML 1.1, 1e6 is text, because a number needs a dot and a sign (1.0e+6).
    return float(text) if re.fullmatch(r"\d+(\.\d*)?[eE]\+?\d+", text) else yaml.safe_load(text)


def _to_options(settings: dict[str, Any]) -> Iterator[str]:
    """Yield settings as command-line options, so that the parser checks their types and choices."""
    for key, value in settings.items():
        yield from (f"--{key}", *value) if isinstance(value, list) else (f"--{key}={value}",)


def _describe_unknown_key(given: str, known: Iterable[str], place: str) -> str:
    key = given.lstrip("-").partition("=")[0].replace("-", "_")
    hint = f" Did you mean `{OTHER_NAMES[key]}`?" if key in OTHER_NAMES else suggest(key, sorted(known))
    return f"Unknown key {given!r} {place}.{hint} `pretrain.py --help` lists all keys."


def _given_keys(settings: dict[str, Any], given: list[str]) -> set[str]:
    """Return the keys given in the YAML file and on the command line. The option `--no_KEY` also counts as KEY."""
    options = {option[2:].partition("=")[0].replace("-", "_") for option in given if option.startswith("--")}
    return settings.keys() | {key.removeprefix("no_") for key in options}


def _copy_architecture(model: ModelArguments, init_from: str, given_keys: set[str]) -> None:
    """Copy the architecture of the model `init_from`. Raise a `ValueError` if a given key has another value."""
    config = read_config(init_from)
    for item in fields(model):
        given, actual = getattr(model, item.name), getattr(config, item.name, item.default)
        if item.name == "architecture":
            actual = "encoder" if isinstance(config, MDMEncoderConfig) else "decoder"
        elif item.name == "rope_parameters" and (given := _parse_rope_parameters(given)) is not None:
            given = AOGPTConfig(  # sets the defaults of the parameters that are not given
                position_encoding="rotary",
                max_position_embeddings=config.max_position_embeddings,
                rope_parameters=given,
            ).rope_parameters
        if item.name in given_keys and given != actual:
            raise ValueError(f"`{item.name}` is {given}, but is {actual} in the model of {init_from}. Remove the key.")
        setattr(model, item.name, json.dumps(actual) if isinstance(actual, dict) else actual)


def _parse_rope_parameters(text: str | None) -> Any:
    """Return the value of the JSON `text`, or None if it is None."""
    try:
        value = None if text is None else json.loads(text)
    except ValueError:
        value = text
    if not isinstance(value, dict | None):
        raise ValueError(f"`rope_parameters` must be a mapping in JSON, but is {text!r}. Correct the JSON.")
    return value


def _set_defaults(model: ModelArguments, data: DataArguments, training: TrainingArguments) -> None:
    """Set the defaults that depend on other values."""
    if training.left_to_right_fraction is None:
        default = OrderDistribution(**order_settings(training)).left_to_right_fraction
        training.left_to_right_fraction = default if model.architecture == "decoder" else 0.0
    if training.left_to_right_steps is None and training.final_left_to_right_fraction is not None:
        training.left_to_right_steps = max(round(0.3 * training.max_steps), 1)
    if training.final_learning_rate is None:
        training.final_learning_rate = training.learning_rate / 10
    if training.decay_steps is None and training.learning_rate_schedule == "warmup_stable_decay":
        training.decay_steps = max(training.max_steps // 10, 1)
    if model.max_position_embeddings is None:
        model.max_position_embeddings = data.sequence_length


def _check(model: ModelArguments, data: DataArguments, training: TrainingArguments) -> None:
    """Raise a `ValueError` if a value is not allowed or values contradict each other."""
    if training.prepare_only and data.streaming:
        raise ValueError(
            "`prepare_only` and `streaming` are both set, but a streamed corpus cannot be prepared, because nothing is "
            "cached. Remove one of the two."
        )
    if data.sequence_length > model.max_position_embeddings:
        raise ValueError(
            f"`sequence_length` must be at most `max_position_embeddings` ({model.max_position_embeddings}), but is "
            f"{data.sequence_length}. Decrease `sequence_length`"
            + (
                ", or increase `max_position_embeddings`."
                if training.init_from is None
                else f". The model in {training.init_from} does not support longer sequences."
            )
        )
    for name in ("block_length", "stride", "min_context"):
        value = getattr(training, name)
        if value is not None and value >= data.sequence_length:
            raise ValueError(
                f"`{name}` must be below `sequence_length` ({data.sequence_length}), but is {value}. Decrease `{name}`."
            )
    if training.output_dir == Path():
        raise ValueError("`output_dir` is empty, or the working folder. Set it to a folder for this run only.")
    if data.tokenizer is not None and Path(data.tokenizer).resolve() == (training.output_dir / "tokenizer").resolve():
        raise ValueError(
            f"`tokenizer` ({data.tokenizer}) is the folder to which the run writes its tokenizer. Copy it to another "
            "folder, or choose another `output_dir`."
        )
    if training.output_dir.exists() and not training.output_dir.is_dir():
        raise ValueError(f"`output_dir` ({training.output_dir}) is a file. Set it to a folder.")
    _check_learning_rate(training)
    if not training.max_grad_norm > 0:
        raise ValueError(f"`max_grad_norm` must be above 0, but is {training.max_grad_norm}.")
    if data.context_marks is not None and model.architecture == "encoder":
        raise ValueError(
            "`context_marks` needs `architecture=decoder`, because an encoder is trained on whole documents. Remove "
            "`context_marks`, or set `architecture=decoder`."
        )
    _check_objective(model, training)
    # The configuration checks the architecture. The vocabulary is not known yet, so any `start_token_id` is accepted.
    build_config(model, vocab_size=MAX_SIZES["vocab_size"], num_valid_tokens=1)


def _check_learning_rate(training: TrainingArguments) -> None:
    """Raise a `ValueError` if the schedule of the learning rate is not possible."""
    if not 0 <= training.warmup_steps < training.max_steps:
        raise ValueError(
            f"`warmup_steps` must be at least 0 and below `max_steps` ({training.max_steps}), but is "
            f"{training.warmup_steps}. Change `warmup_steps` or `max_steps`."
        )
    if training.decay_steps is not None:
        if training.learning_rate_schedule != "warmup_stable_decay":
            raise ValueError(
                "`decay_steps` has no effect without `learning_rate_schedule=warmup_stable_decay`. Set both, or remove "
                "`decay_steps`."
            )
        if training.warmup_steps + training.decay_steps > training.max_steps:
            raise ValueError(
                f"`warmup_steps` ({training.warmup_steps}) and `decay_steps` ({training.decay_steps}) are together "
                f"more than `max_steps` ({training.max_steps}). Decrease one of them."
            )
    if not 0 < training.learning_rate < math.inf:
        raise ValueError(f"`learning_rate` must be above 0 and finite, but is {training.learning_rate}.")
    if not 0 <= training.final_learning_rate <= training.learning_rate:
        raise ValueError(
            f"`final_learning_rate` must be between 0 and `learning_rate` ({training.learning_rate}), but is "
            f"{training.final_learning_rate}."
        )


def _check_objective(model: ModelArguments, training: TrainingArguments) -> None:
    """Raise a `ValueError` if the objective cannot be used with the architecture or the settings of the orders."""
    objective = training.objective
    if objective != "any_order" and model.architecture == "decoder":
        raise ValueError(
            f"`objective` must be any_order for a decoder, but is {objective}. Set `objective=any_order`, or "
            "`architecture=encoder`."
        )
    if objective == "score_entropy" and model.target_injection != "sigma":
        raise ValueError(
            f"`target_injection` must be sigma for `objective=score_entropy`, but is {model.target_injection}. Set "
            "`target_injection=sigma`, because the score depends on the noise level."
        )
    kind, final_fraction = order_settings(training), training.final_left_to_right_fraction
    distribution = OrderDistribution(**kind, left_to_right_fraction=training.left_to_right_fraction)
    if final_fraction is not None:
        check_fraction("final_left_to_right_fraction", final_fraction)
    if training.left_to_right_steps is not None:
        if final_fraction is None:
            raise ValueError(
                "`left_to_right_steps` has no effect without `final_left_to_right_fraction`. Set the fraction, or "
                "remove `left_to_right_steps`."
            )
        if training.left_to_right_steps > training.max_steps:
            raise ValueError(
                f"`left_to_right_steps` ({training.left_to_right_steps}) must be at most `max_steps` "
                f"({training.max_steps}). Decrease `left_to_right_steps`."
            )
    if training.orders in ("context_first", "gaps_last") and model.architecture == "encoder":
        raise ValueError(
            f"`orders={training.orders}` needs a decoder, because an encoder is always trained with a random context. "
            "Remove `orders`, or use a decoder (`architecture=decoder`)."
        )
    draws_orders = distribution != OrderDistribution(left_to_right_fraction=0.0) or final_fraction is not None
    if objective != "any_order" and draws_orders:
        raise ValueError(
            f"`objective={objective}` masks random positions, so settings of orders have no effect. Remove `orders`, "
            "`block_length`, `stride`, `left_to_right_fraction` and `final_left_to_right_fraction`."
        )


def order_settings(training: TrainingArguments) -> dict[str, Any]:
    """Return the arguments of `OrderDistribution` by name, without `left_to_right_fraction`."""
    names = ("orders", "block_length", "stride", "min_context", "max_context")
    return {name: getattr(training, name) for name in names}


def build_config(model: ModelArguments, **vocabulary: Any) -> AOGPTConfig | MDMEncoderConfig:
    """Return the configuration of the model. `vocabulary` holds the fields that depend on the tokenizer."""
    settings = asdict(model) | {"rope_parameters": _parse_rope_parameters(model.rope_parameters)}
    if settings.pop("architecture") == "decoder":
        return AOGPTConfig(**settings, **vocabulary)
    if vocabulary.get("vocab_size") and vocabulary["vocab_size"] == vocabulary["num_valid_tokens"]:
        vocabulary["vocab_size"] += 1  # an encoder has an embedding of the mask token
    return MDMEncoderConfig(**settings, **vocabulary)


def accumulation_steps(training: TrainingArguments, num_processes: int) -> int:
    """
    Return the number of forward passes per step in each process.

    Raises:
        ValueError: If the batch cannot be divided into passes of equal size.
    """
    per_device = training.per_device_batch_size
    divisor = num_processes * (per_device or 1)
    if training.batch_size % divisor:
        factors = f"the number of processes ({num_processes})"
        if per_device is not None:
            factors = f"the product of {factors} and `per_device_batch_size` ({per_device})"
        raise ValueError(
            f"`batch_size` must be a multiple of {divisor}, {factors}, but is {training.batch_size}. Change one of "
            "them."
        )
    return 1 if per_device is None else training.batch_size // divisor


def to_settings(*arguments: Any) -> dict[str, Any]:
    """Return all keys and values of a run, in a form that JSON can store."""
    values = {key: value for group in arguments for key, value in asdict(group).items()}
    return {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}


def changed_settings(saved: dict[str, Any], current: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the saved and the current value of each setting that has changed and may affect the result."""
    return {key: values for key, values in compare_settings(saved, current).items() if key not in WITHOUT_EFFECT}


def compare_settings(saved: dict[str, Any], current: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """
    Return the saved and the current value of each setting that has changed.

    The same path, written in another way, is not a change.
    """
    defaults = to_settings(ModelArguments(), DataArguments(), TrainingArguments())
    saved, current = defaults | saved, defaults | current  # runs of earlier versions do not have all settings
    values = {key: (saved.get(key), current.get(key)) for key in sorted(saved.keys() | current.keys())}
    return {
        key: (then, now) for key, (then, now) in values.items() if _resolve_paths(key, then) != _resolve_paths(key, now)
    }


def _resolve_paths(key: str, value: Any) -> Any:
    """Return the value of a setting with absolute paths."""
    if isinstance(value, list):
        return [_resolve_paths(key, item) for item in value]
    if key not in PATHS or not isinstance(value, str):
        return value
    path = os.path.abspath(os.path.expanduser(value))
    return path if os.path.exists(path) or glob.has_magic(value) else value


def check_same_run(saved: dict[str, Any], current: dict[str, Any], place: Path) -> None:
    """Raise a `ValueError` if settings, except those in `SCHEDULE`, have changed and may affect the result."""
    changed = [
        f"{key}: previously {then!r}, now {now!r}"
        for key, (then, now) in changed_settings(saved, current).items()
        if key not in SCHEDULE
    ]
    if changed:
        raise ValueError(
            f"{place} belongs to a run with other settings ({'; '.join(changed)}). Restore the old settings, choose "
            "another `output_dir`, or remove the old run."
        )
