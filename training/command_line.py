# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Settings of a run. They are read from a YAML file, and `--key value` on the command line overrides them."""

import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import yaml

from common.commands import Parser
from common.data_arguments import DataArguments
from common.files import read_yaml
from modeling_aogpt.loading import find_base, find_model
from modeling_aogpt.validation import suggest
from training import architecture
from training.architecture import Architecture, add_architecture_keys, read_architecture
from training.arguments import TrainingArguments
from training.checks import check_arguments, set_defaults

# Names that other programs use for keys of this package. Error messages suggest the key.
OTHER_NAMES = {
    **{"lr": "learning_rate", "wd": "weight_decay", "bs": "batch_size", "fp16": "mixed_precision"},
    **{"bf16": "mixed_precision", "steps": "max_steps", "epochs": "max_steps", "num_train_epochs": "max_steps"},
}
LAUNCHER_NAMES = ("device", "cpu", "use_cpu", "gpu", "num_gpus", "num_processes")  # set by `accelerate launch`
NULL = ("", "~", "null", "Null", "NULL")  # ways to write null in YAML

Settings = dict[str, str | list[str]]  # text of each given key, converted by `Parser`


def parse_arguments(
    argv: list[str], kind: type[TrainingArguments] = TrainingArguments
) -> tuple[Architecture, DataArguments, TrainingArguments]:
    """Parse `CONFIG.yaml [--key value ...]`. Raise a `ValueError` for unknown keys and contradictory values."""
    model, data, training, given = parse_keys(argv, kind)
    training.output_dir = (training.output_dir or Path("runs") / Path(argv[0]).stem).expanduser()
    if training.init_from is None:
        model = architecture.DEFAULTS | model
    else:
        training.init_from = find_model(training.init_from)
        if find_base(training.init_from) is not None:
            raise ValueError(f"`init_from` ({training.init_from}) is a LoRA adapter. Merge it (docs/finetuning.md).")
        model = read_architecture(training.init_from, model)
        data.tokenizer = data.tokenizer or training.init_from
        if "sequence_length" not in given:
            data.sequence_length = model["max_position_embeddings"]
    set_defaults(model, data, training)
    check_arguments(model, data, training)
    return model, data, training


def parse_keys(
    argv: list[str], kind: type[TrainingArguments] = TrainingArguments
) -> tuple[Architecture, DataArguments, TrainingArguments, set[str]]:
    """Parse `CONFIG.yaml [--key value ...]`, and check each value by itself. The model of `init_from` is not read.

    Return the given keys of the architecture, the other arguments, and the names of all given keys, without those whose
    value on the command line is null.
    """
    parser = Parser((DataArguments, kind))
    parser.add_argument("config", type=Path, help="YAML file of keys and values, such as configs/quickstart.yaml")
    add_architecture_keys(parser)
    if "-h" in argv or "--help" in argv:
        parser.parse_args(["--help"])  # prints the help, and exits
    if not argv or argv[0].startswith("-"):
        given = f"is {argv[0]!r}" if argv else "is missing"
        raise ValueError(f"The first argument must be a YAML file, but {given}. Usage: CONFIG.yaml [--key value ...]")
    lists = {item.name: item.type == list[str] for kind in parser.dataclass_types for item in fields(kind)}
    known = dict.fromkeys(architecture.DEFAULTS, False) | lists
    settings = _read_settings(Path(argv[0]), known) | _read_options(argv[1:], known)
    settings = {key: value for key, value in settings.items() if value is not None}
    options = []  # of which the parser checks the types and choices
    for key, value in settings.items():
        options += (f"--{key}", *value) if isinstance(value, list) else (f"--{key}={value}",)
    data, training, namespace = parser.parse([argv[0], *options])
    del namespace.config
    return vars(namespace), data, training, set(settings)


def _read_options(options: list[str], known: dict[str, bool]) -> dict[str, str | list[str] | None]:
    """Return the values of options: None for `--KEY null`, and false for `--no_KEY`.

    The last of repeated options counts. A repeated list is a `ValueError`, because its first values would be lost.
    """
    if options and not options[0].startswith("--"):  # the value would become part of a list of the YAML file
        raise ValueError(f"Only options may follow the YAML file, but {options[0]!r} does. Write `--KEY {options[0]}`.")
    settings: dict[str, list[str]] = {}
    values: list[str] = []
    for text in options:
        if not text.startswith("--"):
            values.append(text)
            continue
        name, is_given, value = text[2:].partition("=")
        name, values = name.replace("-", "_"), [value] if is_given else []
        if name not in known and name.removeprefix("no_") in known:
            name, values = name.removeprefix("no_"), ["false"]
        if name not in known:
            raise ValueError(_describe_unknown_key(text, known, "on the command line"))
        if known[name] and name in settings:
            raise ValueError(f"`{name}` is given twice on the command line. Give it once, with all its values.")
        settings[name] = values
    single = {key: values[0] if len(values) == 1 else values for key, values in settings.items()}
    return {key: None if value == "null" else value for key, value in single.items()}


def _read_settings(path: Path, known: dict[str, bool]) -> Settings:
    """Return the keys and values of a YAML file, without the keys whose value is null.

    The values replace the values of the file `base`, a path relative to the folder of this file.
    """
    settings, files = _read_file(path, known), [path]
    while (base := settings.pop("base", "")) not in NULL:
        files.append(files[-1].parent / base)
        if files[-1].resolve() in (file.resolve() for file in files[:-1]):
            raise ValueError(f"{' -> '.join(map(str, files))}: the files name each other as `base`. Remove one `base`.")
        settings = _read_file(files[-1], known) | settings
    return {key: value for key, value in settings.items() if value not in NULL}


def _read_file(path: Path, known: dict[str, bool]) -> Settings:
    """Return the keys and values of a YAML file. `known` maps each known key to whether its value may be a list.

    The values stay text. The type of a setting then decides whether `no` is False or text, and 1.10 a number or text.
    """
    settings = read_yaml(path, yaml.BaseLoader)
    if not isinstance(settings, dict):
        raise ValueError(f"{path} must contain lines of the form `key: value`, but contains {settings!r}.")
    for key, value in settings.items():
        if key not in known and key != "base":
            raise ValueError(_describe_unknown_key(key, known, f"in {path}"))
        if key == "rope_parameters" and isinstance(value, dict):
            settings[key] = value = json.dumps(value)
        if not isinstance(value, str) and not (isinstance(value, list) and known.get(key)):
            raise ValueError(f"`{key}` must have a single value, but is {value!r} in {path}. Give one value.")
    return settings


def _describe_unknown_key(given: str, known: Iterable[str], place: str) -> str:
    key = given.lstrip("-").partition("=")[0].replace("-", "_")
    hint = f" Did you mean `{OTHER_NAMES[key]}`?" if key in OTHER_NAMES else suggest(key, sorted(known))
    if key in LAUNCHER_NAMES:
        hint = " `accelerate launch` chooses the devices: pass it `--config_file training/accelerate/FILE.yaml`."
    return f"Unknown key {given!r} {place}.{hint} `--help` lists all keys."
