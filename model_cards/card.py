# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Model cards, made from `template.md`, a YAML file of facts, the model's configuration, and measurements."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.utils import validate_repo_id

from common.files import read_yaml
from model_cards.measurements import Measurement
from modeling_aogpt import AOGPTConfig, MDMEncoderConfig

HERE = Path(__file__).parent
PLACEHOLDER = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{(?:mask|size|source|source_license)\}|\[More Information Needed\]")
LICENCE = re.compile(r"[\w.+-]+", re.ASCII)
# Allowed keys of a YAML file, besides `sizes`. Their values are inserted into the template.
FACTS = {
    *("base_model", "corpus", "hyperparameters", "infill", "intended_use", "language", "licence_note", "license"),
    *("limits", "published", "summary", "tags", "text", "title", "training_data"),
}


def find_cards() -> dict[str, tuple[Path, str | None]]:
    """Return the YAML file and the model size of each card in this folder. The size is None for a file without sizes.

    Keys are the names of the cards, such as `quickstart` or `ao-gpt-small`.
    """
    cards = {}
    for path in sorted(HERE.glob("*.yaml")):
        sizes = read_yaml(path).get("sizes", {})
        cards |= {f"{path.stem}-{size}": (path, size) for size in sizes} or {path.stem: (path, None)}
    return cards


def read_facts(card: str, default: str = "default") -> dict[str, Any]:
    """Return the facts of `card`, the name of a card in this folder or the path of a YAML file.

    The card `default` supplies facts that are missing from this file. Facts missing from both come from `default.yaml`.
    Raise a `ValueError` if there is no such card, its file cannot be read, or the file has unknown keys.
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
    for name in facts.keys() - {"hyperparameters", "published"}:  # for instance, YAML reads the language `no` as False
        values = facts[name] if isinstance(facts[name], list) else [facts[name]]
        kind = "a list" if name == "tags" else "text"
        if (isinstance(facts[name], str) and kind != "text") or any(not isinstance(one, str | None) for one in values):
            raise ValueError(f"`{name}` in {path} must be {kind}, but is {facts[name]!r}. Write {kind} (quote `no`).")
    return {name: _fill_in(fact, {"size": size or ""}) for name, fact in facts.items()}


def _fill_in(fact: Any, values: dict[str, str]) -> Any:
    """Return a fact. If it is text, each placeholder `{name}` in it is replaced by `values[name]`."""
    for name, value in values.items():
        fact = fact.replace(f"{{{name}}}", value) if isinstance(fact, str) else fact
    return fact


def task_of(config: AOGPTConfig) -> str:
    """Return the task of a model on the Hub."""
    return "fill-mask" if isinstance(config, MDMEncoderConfig) else "text-generation"


def render_card(
    repo_id: str,
    facts: dict[str, Any],
    config: AOGPTConfig,
    mask_token: str,
    measurements: Sequence[Measurement] = (),
    length: int | None = None,
    **values: Any,
) -> ModelCard:
    """Return the card of a model.

    Args:
        repo_id: Name of the repository. The code examples in the card load the model from it.
        facts: Facts as returned by `read_facts`. Facts of a training run may have replaced some of them.
        config: Configuration of the model. For an `MDMEncoderConfig`, the card describes an encoder. For a converted
            model, the card names the source model.
        mask_token: Mask token of the tokenizer.
        measurements: Results measured with these weights.
        length: Number of tokens in a training sequence. Defaults to the length of the longest sequence of the model.
        values: Other values of the template: `num_parameters` and `dtype` of the weights; `is_left_to_right`, whether
            the model generates from left to right by default; `is_rounded`, whether `dtype` has less precision than the
            measured weights, as in a merged adapter; and `pad_texts`, whether the code examples pad texts with
            end-of-text. A model that was trained on padded documents would otherwise continue the texts.

    Raises:
        ValueError: If a fact is empty, if the licence is no plain name, or if the card has unfilled placeholders.
    """
    facts = _fill_in_source(facts, config)
    if empty := sorted(name for name, fact in facts.items() if _is_empty(fact)):
        raise ValueError(f"The keys {', '.join(empty)} of the card have no values. Add values to the YAML file.")
    if not LICENCE.fullmatch(str(facts["license"])):
        raise ValueError(f"`license` must be an identifier of the Hub, such as mit, but is {facts['license']!r}.")
    words = facts["text"].split()
    middle = (len(words) - 1) // 2
    # The mask replaces a word in the middle, or is before the only word.
    gap = " ".join((*words[:middle], "{mask}", *words[middle + 1 :])) if len(words) > 1 else "{mask}" + facts["text"]
    title = facts.get("title", repo_id.rpartition("/")[2])
    length = length or config.max_position_embeddings
    metadata = ModelCardData(
        model_name=title,
        language=facts.get("language"),
        license=facts["license"],
        library_name="transformers",
        pipeline_tag=task_of(config),
        base_model=facts.get("base_model"),
        tags=["custom_code", *facts.get("tags", [])],
        eval_results=list(measurements) or None,
    )
    values |= {
        "title": title,
        "repo_id": repo_id,
        "config": config,
        "mask_token": mask_token,
        "measurements": measurements,
        "length": length,
        "is_decoder": not isinstance(config, MDMEncoderConfig),
        "sample_length": min(length, 64),
        "sample_steps": -(-min(length, 64) // 4),
        "text": _quote(facts["text"]),
        "infill": _quote(facts.get("infill", gap).replace("{mask}", mask_token)),
        "gap": _quote(gap.replace("{mask}", mask_token)),
    }
    card = ModelCard.from_template(metadata, template_path=str(HERE / "template.md"), **facts | values)
    if unfilled := sorted({*PLACEHOLDER.findall(card.text)}):
        raise ValueError(f"The card has unfilled placeholders: {', '.join(unfilled)}. Replace them in the YAML file.")
    return card


def _fill_in_source(facts: dict[str, Any], config: AOGPTConfig) -> dict[str, Any]:
    """Return the facts with the name and the licence of the model from which a model was converted."""
    source = getattr(config, "source_config", None)
    if source is None:
        return facts
    # These values come from files of other people, and are inserted into Markdown. Only plain names are accepted.
    name, licence = source.get("_name_or_path"), source.get("license", "unknown")
    architecture = (source.get("architectures") or [source["model_type"]])[0]
    if not LICENCE.fullmatch(architecture):
        raise ValueError(f"`architectures` in the `source_config` must be names of classes, but is {architecture!r}.")
    try:
        validate_repo_id(name or "")
        link, base_model = f"[{name}](https://huggingface.co/{name})", {"base_model": name}
    except ValueError:  # a local model, or not a plain name
        link, base_model = f"a local `{architecture}`", {}
    values = {"source": link, "source_license": licence if LICENCE.fullmatch(licence) else "unknown"}
    return base_model | {key: _fill_in(fact, values) for key, fact in facts.items()}


def _quote(text: str) -> str:
    """Return a text as a literal of Python. Keep characters above U+FFFF: JSON would escape each as two."""
    return json.dumps(text, ensure_ascii=False)


def _is_empty(fact: Any) -> bool:
    """Return whether a value of a YAML file is empty, or is a list or dictionary that contains an empty value."""
    parts = fact.values() if isinstance(fact, dict) else fact if isinstance(fact, list) else []
    return fact in (None, "") or any(map(_is_empty, parts))
