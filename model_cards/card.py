# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Model cards, made from `template.md`, a YAML file of facts, the model's configuration, and measurements."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from common.files import read_yaml
from model_cards.measurements import Measurement
from modeling_aogpt import AOGPTConfig, MDMEncoderConfig

HERE = Path(__file__).parent
# Allowed keys of a YAML file, besides `sizes`. Their values are inserted into the template.
FACTS = {
    *("base_model", "corpus", "hyperparameters", "infill", "intended_use", "language", "licence_note", "license"),
    *("limits", "published", "summary", "tags", "text", "title", "training_data"),
}


def find_cards() -> dict[str, tuple[Path, str | None]]:
    """
    Return the YAML file and the model size of each card in this folder.

    Keys are the names of the cards, such as `quickstart` (size None) or `ao-gpt-small`.
    """
    cards = {}
    for path in sorted(HERE.glob("*.yaml")):
        sizes = read_yaml(path).get("sizes", {})
        cards |= {f"{path.stem}-{size}": (path, size) for size in sizes} or {path.stem: (path, None)}
    return cards


def read_facts(card: str, default: str = "default") -> dict[str, Any]:
    """
    Return the facts of a card as a dictionary.

    Args:
        card: Name of a card in this folder, or path of a YAML file.
        default: Name of the card from which facts are taken that are not in the file of `card`. Facts that are in
            neither are taken from `default.yaml`.

    Raises:
        ValueError: If there is no such card, its file cannot be read, or the file has unknown keys.
    """
    cards = find_cards()
    path, size = cards.get(card, (Path(card), None))
    if not path.is_file():
        raise ValueError(f"There is no card {card!r}. Choose one of {', '.join(cards)}, or pass a YAML file.")
    facts, own = read_yaml(HERE / "default.yaml") | read_yaml(HERE / f"{default}.yaml"), read_yaml(path)
    allowed = ", ".join(sorted(FACTS))
    if not isinstance(own, dict):
        raise ValueError(f"{path} must contain lines of the form `key: value`. Allowed keys are {allowed}.")
    own_size = (own.pop("sizes", None) or {}).get(size, {})
    of_all, of_size = (part.get("hyperparameters", {}) for part in (own, own_size))
    hyperparameters = of_all and of_all | of_size  # None if the file has the key without a value
    facts |= own | own_size | {"hyperparameters": hyperparameters}
    if unknown := sorted(facts.keys() - FACTS):
        raise ValueError(f"{path} has unknown keys: {', '.join(unknown)}. Remove them. Allowed keys are {allowed}.")
    for name, kind in (("license", str), ("tags", list)):
        if not isinstance(facts.get(name), kind | None):
            raise ValueError(f"`{name}` in {path} must be a {kind.__name__}, but is {facts[name]!r}. Correct it.")
    values = {"size": size or "", "license": facts["license"] or ""}
    return {name: _fill_in(fact, values) for name, fact in facts.items()}


def _fill_in(fact: Any, values: dict[str, str]) -> Any:
    """Return a fact. If it is text, each placeholder `{name}` in it is replaced by `values[name]`."""
    for name, value in values.items():
        fact = fact.replace(f"{{{name}}}", value) if isinstance(fact, str) else fact
    return fact


def render_card(
    repo_id: str,
    facts: dict[str, Any],
    config: AOGPTConfig,
    num_parameters: int,
    dtype: str,
    mask_token: str,
    measurements: Sequence[Measurement] = (),
    length: int | None = None,
    pad_texts: bool = False,
    is_left_to_right: bool = False,
) -> ModelCard:
    """
    Return the card of a model.

    Args:
        repo_id: Name of the repository. The code examples in the card load the model from it.
        facts: Facts as returned by `read_facts`. Facts of a training run may have replaced some of them.
        config: Configuration of the model. For an `MDMEncoderConfig`, the card describes an encoder. For a converted
            model, the card names the source model.
        num_parameters: Number of parameters of the model.
        dtype: Data type of the weights.
        mask_token: Mask token of the tokenizer.
        measurements: Results measured with these weights.
        length: Number of tokens in a training sequence. Defaults to the length of the longest sequence of the model.
        pad_texts: Whether the code examples pad texts with end-of-text. Set it for a model that was trained on padded
            documents; otherwise, the model would continue the texts.
        is_left_to_right: Whether the model generates from left to right by default.

    Raises:
        ValueError: If a fact is empty, if the card has unfilled placeholders, or if its metadata are not valid.
    """
    facts = _fill_in_source(facts, config)
    if empty := sorted(name for name, fact in facts.items() if _is_empty(fact)):
        raise ValueError(f"The keys {', '.join(empty)} of the card have no values. Add values to the YAML file.")
    is_decoder = not isinstance(config, MDMEncoderConfig)
    title = facts.get("title", repo_id.rpartition("/")[2])
    length = length or config.max_position_embeddings
    metadata = _make_metadata(title, facts, is_decoder, measurements)
    adds_start = config.start_token_id is not None  # a tokenizer such as Llama's would add it a second time
    options = "add_special_tokens=False, " if adds_start else ""
    options += f'padding="max_length", max_length={length}, ' if pad_texts else ""
    values = {
        "title": title,
        "repo_id": repo_id,
        "config": config,
        "num_parameters": f"{num_parameters:,}",
        "dtype": dtype,
        "mask_token": mask_token,
        "is_decoder": is_decoder,
        "auto_class": "AutoModel" if is_decoder else "AutoModelForMaskedLM",
        "sample_length": min(length, 64),
        "sample_steps": -(-min(length, 64) // 4),
        "adds_start": adds_start,
        "tokenizer_options": options,
        "text": json.dumps(facts["text"]),
        "infill": json.dumps(facts.get("infill", "{mask} " + facts["text"]).replace("{mask}", mask_token)),
        "gap": json.dumps(f"{mask_token} {facts['text']}"),
        "gap_options": f", padded_length={length}" if pad_texts else "",
        "measurements": measurements,
        "is_left_to_right": is_left_to_right,
    }
    card = ModelCard.from_template(metadata, template_path=str(HERE / "template.md"), **facts | values)
    _check_card(card, metadata)
    return card


def _fill_in_source(facts: dict[str, Any], config: AOGPTConfig) -> dict[str, Any]:
    """Return the facts with the name and the licence of the model from which a model was converted."""
    source = getattr(config, "source_config", None)
    if source is None:
        return facts
    name, architectures = source.get("_name_or_path"), source.get("architectures") or [source["model_type"]]
    values = {
        "source": f"a local `{architectures[0]}`" if name is None else f"[{name}](https://huggingface.co/{name})",
        "source_license": source.get("license", "unknown"),
    }
    base_model = {} if name is None else {"base_model": name}
    return base_model | {key: _fill_in(fact, values) for key, fact in facts.items()}


def _is_empty(fact: Any) -> bool:
    """Return whether a value of a YAML file is empty, or is a list or dictionary that contains an empty value."""
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
    Raise a `ValueError` if a card has unfilled placeholders, or if its metadata are lost when the card is parsed again.

    The Hub also checks the metadata before it accepts a commit.
    """
    read = ModelCard(str(card)).data
    # Results with the same dataset and configuration are merged when the card is parsed.
    if read.to_dict() != metadata.to_dict() or _sort_results(read) != _sort_results(metadata):
        raise ValueError(
            "Some metadata of the card are lost or merged when the written card is parsed again. Give results on "
            "different datasets a different `dataset_id` or `dataset_config`."
        )
    unfilled = re.findall(
        r"\{\{.*?\}\}|\{%.*?%\}|\{(?:mask|size|license|source|source_license)\}|\[More Information Needed\]", card.text
    )
    if unfilled:
        raise ValueError(
            f"The card has unfilled placeholders: {', '.join(sorted(set(unfilled)))}. Replace them in the YAML file."
        )


def _sort_results(metadata: ModelCardData) -> list[str]:
    return sorted(map(repr, metadata.eval_results or []))
