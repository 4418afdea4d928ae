# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Model cards: `template.md`, filled in from the facts of a YAML file, a configuration, and measurements."""

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
    *("base_model", "corpus", "hyperparameters", "infill", "intended_use", "language", "licence_note", "license"),
    *("limits", "published", "summary", "tags", "text", "title", "training_data"),
}


def find_cards() -> dict[str, tuple[Path, str | None]]:
    """Return the file and the size of each card in this folder, by name: `quickstart`, `ao-gpt-small`, ..."""
    cards = {}
    for path in sorted(HERE.glob("*.yaml")):
        sizes = yaml.safe_load(path.read_text(encoding="utf-8")).get("sizes", {})
        cards |= {f"{path.stem}-{size}": (path, size) for size in sizes} or {path.stem: (path, None)}
    return cards


def read_facts(card: str) -> dict[str, Any]:
    """
    Return the facts of a card. `default.yaml` supplies those that the card does not state.

    Args:
        card: Name of a card in this folder, or path of a YAML file.

    Raises:
        ValueError: If there is no such card, its file cannot be read, or it has unknown keys.
    """
    cards = find_cards()
    path, size = cards.get(card, (Path(card), None))
    if not path.is_file():
        raise ValueError(f"There is no card {card!r}. Use one of {', '.join(cards)}, or the path of a YAML file.")
    facts = yaml.safe_load((HERE / "default.yaml").read_text(encoding="utf-8"))
    try:
        own = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read as YAML: {error}") from error
    allowed = ", ".join(sorted(FACTS))
    if not isinstance(own, dict):
        raise ValueError(f"{path} must contain keys with values. Allowed keys are {allowed}.")
    own_size = own.pop("sizes", {}).get(size, {})
    hyperparameters = own.get("hyperparameters", {}) | own_size.get("hyperparameters", {})
    facts |= own | own_size | {"hyperparameters": hyperparameters}
    if unknown := sorted(facts.keys() - FACTS):
        raise ValueError(f"{path} has unknown keys: {', '.join(unknown)}. Allowed keys are {allowed}.")
    return {name: fact.replace("{size}", size or "") if isinstance(fact, str) else fact for name, fact in facts.items()}


def render_card(
    repo_id: str,
    facts: dict[str, Any],
    config: AOGPTConfig,
    num_parameters: int,
    dtype: str,
    mask_token: str,
    measurements: list[Measurement] = (),
    pad_texts: bool = False,
) -> ModelCard:
    """
    Return the card of a model.

    Args:
        repo_id: Name of the repository, from which the snippets of the card load the model.
        facts: Facts as returned by `read_facts`. Keys may have been replaced by those of a training run.
        config: Configuration of the model. An `MDMEncoderConfig` gives the card of an encoder. The card of a converted
            model names its source.
        num_parameters: Number of parameters of the model.
        dtype: Type of the weights.
        mask_token: Mask token of the tokenizer.
        measurements: Results measured with these weights.
        pad_texts: Whether the snippets pad their texts with end-of-text. Needed for a model that was trained on padded
            documents, which would otherwise continue the texts.

    Raises:
        ValueError: If a fact is empty, or the card is incomplete.
    """
    facts = _fill_in_source(facts, config)
    if empty := sorted(name for name, fact in facts.items() if _is_empty(fact)):
        raise ValueError(f"The card is incomplete: {', '.join(empty)} must have values. Add them to the YAML file.")
    is_decoder = not isinstance(config, MDMEncoderConfig)
    title = facts.get("title", repo_id.rpartition("/")[2])
    length = min(config.max_position_embeddings, 64)
    metadata = _make_metadata(title, facts, is_decoder, measurements)
    values = {
        "title": title,
        "repo_id": repo_id,
        "config": config,
        "num_parameters": f"{num_parameters:,}",
        "dtype": dtype,
        "mask_token": mask_token,
        "is_decoder": is_decoder,
        "auto_class": "AutoModel" if is_decoder else "AutoModelForMaskedLM",
        "sample_length": length,
        "sample_steps": -(-length // 4),
        "padding": f'padding="max_length", max_length={config.max_position_embeddings}, ' if pad_texts else "",
        "text": json.dumps(facts["text"]),
        "infill": json.dumps(facts.get("infill", "{mask} " + facts["text"]).replace("{mask}", mask_token)),
        "measurements": measurements,
    }
    card = ModelCard.from_template(metadata, template_path=str(HERE / "template.md"), **facts | values)
    _check_card(card, metadata)
    return card


def _fill_in_source(facts: dict[str, Any], config: AOGPTConfig) -> dict[str, Any]:
    """Return the facts with the name and the licence of the causal language model that a model was converted from."""
    source = getattr(config, "source_config", None)
    if source is None:
        return facts
    name, architectures = source.get("_name_or_path"), source.get("architectures") or [source["model_type"]]
    values = {
        "{source}": f"a local `{architectures[0]}`" if name is None else f"[{name}](https://huggingface.co/{name})",
        "{source_license}": source.get("license", "unknown"),
    }
    filled = {} if name is None else {"base_model": name}
    for key, fact in facts.items():
        for placeholder, value in values.items():
            fact = fact.replace(placeholder, value) if isinstance(fact, str) else fact
        filled[key] = fact
    return filled


def _is_empty(fact: Any) -> bool:
    """Return whether a value of a YAML file, or a value in its lists and dictionaries, is missing."""
    parts = fact.values() if isinstance(fact, dict) else fact if isinstance(fact, list) else []
    return fact in (None, "") or any(map(_is_empty, parts))


def _make_metadata(
    title: str, facts: dict[str, Any], is_decoder: bool, measurements: list[Measurement]
) -> ModelCardData:
    task = "text-generation" if is_decoder else "fill-mask"
    results = [
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
    return ModelCardData(
        model_name=title,
        language=facts.get("language"),
        license=facts["license"],
        library_name="transformers",
        pipeline_tag=task,
        base_model=facts.get("base_model"),
        tags=["custom_code", *facts.get("tags", [])],
        eval_results=results or None,
    )


def _check_card(card: ModelCard, metadata: ModelCardData) -> None:
    """
    Raise a `ValueError` if the text of a card has gaps, or its metadata change when they are read back.

    The Hub also checks the metadata, before it accepts a commit.
    """
    read = ModelCard(str(card)).data
    # The Hub merges results with the same data set and configuration, under the name of the first.
    if read.to_dict() != metadata.to_dict() or _sort_results(read) != _sort_results(metadata):
        raise ValueError(
            "The metadata of the card change when they are read back. Results on different data sets must differ in "
            "`dataset_id` or `dataset_config`."
        )
    gaps = re.findall(
        r"\{\{.*?\}\}|\{%.*?%\}|\{(?:mask|size|source|source_license)\}|\[More Information Needed\]", card.text
    )
    if gaps:
        raise ValueError(f"The card is incomplete: it contains {', '.join(sorted(set(gaps)))}. Fill in the YAML file.")


def _sort_results(metadata: ModelCardData) -> list[str]:
    return sorted(map(repr, metadata.eval_results or []))
