# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Model cards: `template.md` filled with what a YAML file says of a model (`quickstart.yaml`, `ao-gpt.yaml`, ...), what
its configuration holds, and what was measured with it.
"""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from model_cards.measurements import Measurement
from modeling_aogpt import AOGPTConfig, MDMEncoderConfig

HERE = Path(__file__).parent
FACTS = {
    *("base_model", "hyperparameters", "infill", "intended_use", "language", "licence_note", "license", "limits"),
    *("published", "summary", "tags", "text", "title", "training_data"),
}


def cards() -> dict[str, tuple[Path, str | None]]:
    """Return file and size of every card of this folder by its name: `quickstart`, `ao-gpt-small`, ..."""
    found = {}
    for path in sorted(HERE.glob("*.yaml")):
        sizes = yaml.safe_load(path.read_text(encoding="utf-8")).get("sizes", {})
        found |= {f"{path.stem}-{size}": (path, size) for size in sizes} or {path.stem: (path, None)}
    return found


def read_facts(card: str) -> dict[str, Any]:
    """
    Return the facts of `default.yaml`, replaced by those of a card of this folder or of a YAML file.

    Raises:
        ValueError: If there is no such card, or it has facts that no card has a place for.
    """
    known = cards()
    path, size = known.get(card, (Path(card), None))
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


def render(
    repo_id: str,
    facts: dict[str, Any],
    config: AOGPTConfig,
    num_parameters: int,
    dtype: str,
    mask_token: str,
    measurements: list[Measurement] = (),
    ends_documents: bool = False,
) -> ModelCard:
    """
    Return the card of a model.

    Args:
        repo_id: Where it will be: the card's snippets load it from there.
        facts: Of `read_facts`; `hyperparameters` may be replaced by those of a run.
        config: Of the model; an `MDMEncoderConfig` makes the card of an encoder.
        num_parameters: Of the weights.
        dtype: Of the weights.
        mask_token: Of the tokenizer.
        measurements: Measured with these weights.
        ends_documents: It was trained on single documents padded with end-of-text, and so are the texts of the card's
            snippets: without it they would go on.

    Raises:
        ValueError: If a fact or a part of it is empty, or the card is not complete (see `check_card`).
    """
    if empty := sorted(name for name, fact in facts.items() if is_empty(fact)):
        raise ValueError(f"The card has gaps: nothing is said of {', '.join(empty)}.")
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
            "padding": f'padding="max_length", max_length={config.max_position_embeddings}, ' if ends_documents else "",
            "text": json.dumps(facts["text"]),
            "infill": json.dumps(facts.get("infill", "{mask} " + facts["text"]).replace("{mask}", mask_token)),
            "measurements": measurements,
        },
    )
    check_card(card, data)
    return card


def is_empty(fact: Any) -> bool:
    """Return whether a value of a YAML file, or of the lists and dictionaries in it, is missing."""
    parts = fact.values() if isinstance(fact, dict) else fact if isinstance(fact, list) else []
    return fact is None or any(map(is_empty, parts))


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


def architecture(config: AOGPTConfig) -> str:
    kind = "encoder, full attention" if isinstance(config, MDMEncoderConfig) else "decoder, any order"
    target = {"adaln": "adaLN", "none": "no target input", "sigma": "noise level by adaLN"}
    return (
        f"{kind}; targets: {target.get(config.target_injection, config.target_injection)}; "
        f"positions: {config.position_encoding}; {config.norm}"
    )


def check_card(card: ModelCard, data: ModelCardData) -> None:
    """
    Raise a `ValueError` for a card that is not complete: metadata that are not the same when read again, lost results,
    gaps in the text. (The Hub checks the metadata once more before it takes a commit.)
    """
    again = ModelCard(str(card)).data
    # Results with the same identifier become one data set's, with the name of the first.
    if again.to_dict() != data.to_dict() or results_of(again) != results_of(data):
        raise ValueError("The card's metadata are not the same when read again.")
    gaps = re.findall(r"\{\{.*?\}\}|\{%.*?%\}|\{mask\}|\{size\}|\[More Information Needed\]", card.text)
    if gaps:
        raise ValueError(f"The card has gaps: {', '.join(sorted(set(gaps)))}.")
    for name in ("license", "library_name", "pipeline_tag"):
        if not card.data.get(name):
            raise ValueError(f"The card's metadata have no {name}.")


def results_of(data: ModelCardData) -> list[str]:
    return sorted(map(repr, data.eval_results or []))
