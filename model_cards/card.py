# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Model cards: `template.md` filled with what a YAML file says of a model (`quickstart.yaml`, `ao-gpt.yaml`, ...), what
its configuration holds, and what was measured with it, read from the JSON files that training and evaluation write.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, EvalResultEntry, ModelCard, ModelCardData

from eval.protocols import EVALUATION_SETS
from modeling_aogpt import AOGPTConfig, MDMEncoderConfig
from training.results import read_results

HERE = Path(__file__).parent
FACTS = frozenset(
    {
        "base_model",
        "hyperparameters",
        "infill",
        "intended_use",
        "language",
        "licence_note",
        "license",
        "limits",
        "published",
        "summary",
        "tags",
        "text",
        "title",
        "training_data",
    }
)
# Settings of a run that its card shows, and their names there.
HYPERPARAMETERS = {
    "max_steps": "steps",
    "batch_size": "sequences per step",
    "sequence_length": "tokens per sequence",
    "left_to_right_fraction": "share of left-to-right orders",
    "learning_rate": "learning rate",
    "final_learning_rate": "final learning rate",
    "warmup_steps": "warm-up steps",
    "weight_decay": "weight decay",
    "adam_beta1": "Adam beta 1",
    "adam_beta2": "Adam beta 2",
    "max_grad_norm": "gradient clipping",
    "ema_decay": "moving average of the weights",
    "mixed_precision": "mixed precision",
    "seed": "seed",
}
# Keys of measured figures, and what a card calls them.
ORDERS = {"left_to_right": "left to right", "any_order": "random orders"}
CITATION = """\
@inproceedings{xue2025aogpt,
  title     = {Any-Order {GPT} as Masked Diffusion Model: Decoupling Formulation and Architecture},
  author    = {Shuchen Xue and Tianyu Xie and Tianyang Hu and Zijin Feng and Jiacheng Sun and Kenji Kawaguchi and
               Zhenguo Li and Zhi-Ming Ma},
  booktitle = {Proceedings of the 42nd International Conference on Machine Learning},
  year      = {2025},
  note      = {arXiv:2506.19935}
}
"""


@dataclass(frozen=True)
class Measurement:
    """
    One measured figure.

    Args:
        dataset_name, split (`str`): What it was measured on, in words.
        metric_type (`str`): `"bits_per_byte"` or `"perplexity"`.
        orders (`str`): In which orders the text was predicted, in words.
        value, standard_error (`float`): The figure; the error is None where it is not known.
        dataset_id, dataset_config (`str`, *optional*): Name of the data set on the Hub, where it is there, and of which
            part of it.
    """

    dataset_name: str
    split: str
    metric_type: str
    orders: str
    value: float
    standard_error: float | None = None
    dataset_id: str | None = None
    dataset_config: str | None = None

    @property
    def metric_name(self) -> str:
        return f"{self.metric_type.replace('_', ' ')}, {self.orders}"

    @property
    def shown(self) -> str:
        digits = 3 if self.metric_type == "bits_per_byte" else 2
        error = "" if self.standard_error is None else f" ± {self.standard_error:.{digits}f}"
        return f"{self.value:.{digits}f}{error}"


# ------------------------------------------------------------------------------------------------- what is known


def card_names() -> list[str]:
    """The names of all cards of this folder: `quickstart`, `ao-gpt-small`, ..."""
    names = []
    for path in sorted(HERE.glob("*.yaml")):
        sizes = yaml.safe_load(path.read_text(encoding="utf-8")).get("sizes")
        names += [f"{path.stem}-{size}" for size in sizes] if sizes else [path.stem]
    return names


def read_facts(card: str) -> dict[str, Any]:
    """
    What is said of a model: the facts of `default.yaml`, replaced by those of a card of this folder or of a YAML file.

    Raises:
        ValueError: If there is no such card, or it says what no card has a place for.
    """
    known = card_names()
    if card in known:
        family = HERE / f"{card}.yaml"
        size = None if family.is_file() else card.rpartition("-")[2]
        path = family if size is None else HERE / f"{card.rpartition('-')[0]}.yaml"
    else:
        path, size = Path(card), None
        if not path.is_file():
            raise ValueError(f"There is no card {card!r}: name one of {', '.join(known)}, or a YAML file of your own.")
    facts = yaml.safe_load((HERE / "default.yaml").read_text(encoding="utf-8"))
    try:
        own = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(own, dict):
        raise ValueError(f"{path} is no YAML file of names and values: {', '.join(sorted(FACTS))}.")
    of_size = own.pop("sizes", {}).get(size, {})
    hyperparameters = own.get("hyperparameters", {}) | of_size.get("hyperparameters", {})
    facts |= own | of_size | {"hyperparameters": hyperparameters}
    unknown = sorted(facts.keys() - FACTS)
    if unknown:
        raise ValueError(f"{path} says {', '.join(unknown)}, but a card takes {', '.join(sorted(FACTS))}.")
    return {name: fact.replace("{size}", size or "") if isinstance(fact, str) else fact for name, fact in facts.items()}


def run_measurements(run: Path) -> list[Measurement]:
    """Bits per byte of the held-out text of a finished run, with errors where its report (`report.json`) has them."""
    results = read_results(run)
    report = run / "report.json"
    if report.is_file():
        figures = json.loads(report.read_text(encoding="utf-8"))["bits_per_byte"]
    else:
        figures = results["evaluations"][-1]
    corpus = results["arguments"]["corpus"]
    name = ", ".join(corpus) if isinstance(corpus, list) else str(corpus)
    return [
        Measurement(name, "held out", "bits_per_byte", words, figures[key], figures.get(f"{key}_standard_error"))
        for key, words in ORDERS.items()
    ]


def zero_shot_measurements(path: Path, model_type: str, num_parameters: int) -> list[Measurement]:
    """
    The figures of a JSON file of eval/zero_shot.py.

    Raises:
        ValueError: If it is none, or another model's: of another type or number of parameters.
    """
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        measured = results["model_type"], results["num_parameters"]
        measurements = [
            Measurement(
                dataset_name=title_of(name, found),
                split=f"{found.get('split', 'all')}, {results['protocol']} protocol",
                metric_type=metric,
                orders=orders_of(measure, results["arguments"]),
                value=figures[metric],
                standard_error=figures[f"{metric}_standard_error"],
                dataset_id=dataset_id,
                dataset_config=dataset_config,
            )
            for name, found in results["datasets"].items()
            for dataset_id, dataset_config in [hub_place_of(name)]
            for measure, figures in found["measures"].items()
            for metric in ("perplexity", "bits_per_byte")
            if metric in figures
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} holds no results of eval/zero_shot.py (--output): {error!r}") from error
    if measured != (model_type, num_parameters):
        raise ValueError(
            f"{path} holds results of another model: {measured[0]}, {measured[1]} parameters, but this one is "
            f"{model_type}, {num_parameters} parameters. Give results of the model that is published (--results)."
        )
    return measurements


def orders_of(measure: str, arguments: dict[str, Any]) -> str:
    """In which orders a measure of eval/zero_shot.py predicts the text, in words."""
    if measure == "left_to_right":
        return ORDERS[measure]
    contexts = f", {arguments['ensemble_size']} context orders" if measure == "ensemble" else ""
    number = f", {arguments['num_orders']} per sequence" if arguments["num_orders"] > 1 else ""
    return f"{ORDERS['any_order']}{contexts}{number}"


def title_of(name: str, found: dict[str, Any]) -> str:
    """A benchmark's title, or the names of the files that were scored."""
    if name in EVALUATION_SETS:
        return EVALUATION_SETS[name].title
    return ", ".join(Path(file).name for file in found["files"])


def hub_place_of(name: str) -> tuple[str | None, str | None]:
    """Name and configuration of a benchmark on the Hub: both None where it is not there."""
    if name not in EVALUATION_SETS:
        return None, None
    owner, repository, config = EVALUATION_SETS[name].hub.removeprefix("hf://datasets/").split("/")[:3]
    return f"{owner}/{repository.partition('@')[0]}", config


def run_hyperparameters(run: Path) -> dict[str, Any]:
    arguments = read_results(run)["arguments"]
    return {words: arguments[name] for name, words in HYPERPARAMETERS.items() if arguments.get(name) is not None}


# ---------------------------------------------------------------------------------------------------- the card


def render(
    repo_id: str,
    facts: dict[str, Any],
    config: AOGPTConfig,
    num_parameters: int,
    dtype: str,
    mask_token: str,
    measurements: list[Measurement] = (),
) -> ModelCard:
    """
    The card of a model.

    Args:
        repo_id (`str`): Where it will be: the card's snippets load it from there.
        facts (`dict`): Of `read_facts`; `hyperparameters` may be replaced by those of a run.
        config (`AOGPTConfig`): Of the model; an `MDMEncoderConfig` makes the card of an encoder.
        num_parameters (`int`), dtype (`str`): Of the weights.
        mask_token (`str`): Of the tokenizer.
        measurements (`list`): What was measured with these weights.

    Raises:
        ValueError: If the card is not whole (see `check_card`).
    """
    is_decoder = not isinstance(config, MDMEncoderConfig)
    title = facts.get("title", repo_id.rpartition("/")[2])
    length = min(config.max_position_embeddings, 64)
    data = card_data(title, facts, is_decoder, measurements)
    card = ModelCard.from_template(
        data,
        template_path=str(HERE / "template.md"),
        **facts
        | {
            "title": title,
            "repo_id": repo_id,
            "config": config,
            "architecture": architecture(config),
            "num_parameters": f"{num_parameters:,}",
            "dtype": dtype,
            "mask_token": mask_token,
            "is_decoder": is_decoder,
            "auto_class": "AutoModel" if is_decoder else "AutoModelForMaskedLM",
            "sample_length": length,
            "sample_steps": -(-length // 4),
            "text": json.dumps(facts["text"]),
            "infill": json.dumps(facts.get("infill", "{mask} " + facts["text"]).replace("{mask}", mask_token)),
            "measurements": measurements,
            "citation": CITATION,
        },
    )
    check_card(card, data)
    return card


def card_data(title: str, facts: dict[str, Any], is_decoder: bool, measurements: list[Measurement]) -> ModelCardData:
    task = "text-generation" if is_decoder else "fill-mask"
    return ModelCardData(
        model_name=title,
        language=facts.get("language"),
        license=facts["license"],
        library_name="transformers",
        pipeline_tag=task,
        base_model=facts.get("base_model"),
        tags=["custom_code", *facts.get("tags", [])],
        eval_results=[
            EvalResult(
                task_type=task,
                dataset_type=row.dataset_id or row.dataset_name,
                dataset_name=row.dataset_name,
                dataset_config=row.dataset_config,
                dataset_split=row.split,
                metric_type=row.metric_type,
                metric_name=row.metric_name,
                metric_value=row.value,
            )
            for row in measurements
        ]
        or None,
    )


def benchmark_entries(measurements: list[Measurement]) -> list[EvalResultEntry]:
    """
    What goes into `.eval_results/*.yaml`, the Hub's format for results on its own data sets: their perplexities, as
    published, and nothing of other text. A task is told by its configuration of the data set.
    """
    return [
        EvalResultEntry(
            dataset_id=row.dataset_id,
            task_id=row.dataset_config,
            value=row.value,
            notes=f"{row.dataset_name}, {row.split}; {row.metric_name}",
        )
        for row in measurements
        if row.dataset_id is not None and row.metric_type == "perplexity"
    ]


def architecture(config: AOGPTConfig) -> str:
    kind = "encoder, full attention" if isinstance(config, MDMEncoderConfig) else "decoder, any order"
    target = {"adaln": "adaLN", "none": "no target input", "sigma": "noise level by adaLN"}
    return (
        f"{kind}; targets: {target.get(config.target_injection, config.target_injection)}; "
        f"positions: {config.position_encoding}; {config.norm}"
    )


def check_card(card: ModelCard, data: ModelCardData) -> None:
    """
    Raises a `ValueError` for a card that is not whole: metadata other than those it was made of when read again,
    results that get lost, gaps in the text. (The Hub checks the metadata once more before it takes a commit.)
    """
    again = ModelCard(str(card)).data
    # Results with the same identifier become one data set's, with the name of the first.
    if again.to_dict() != data.to_dict() or results_of(again) != results_of(data):
        raise ValueError("The card's metadata are not the same when read again.")
    gaps = re.findall(r"\{\{.*?\}\}|\{%.*?%\}|\{mask\}|\{size\}|\bNone\b|\[More Information Needed\]", card.text)
    if gaps:
        raise ValueError(f"The card has gaps: {', '.join(sorted(set(gaps)))}.")
    for name in ("license", "library_name", "pipeline_tag"):
        if not card.data.get(name):
            raise ValueError(f"The card's metadata have no {name}.")


def results_of(data: ModelCardData) -> list[str]:
    return sorted(map(repr, data.eval_results or []))
