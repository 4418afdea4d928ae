# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Results of a study: comparisons of arms, as JSON."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.files import read_json, write_json
from common.results import ORDER_KINDS, read_finished_run
from eval.studies.runner.estimates import estimate
from eval.studies.runner.scores import MEASURES, load_scores

FACTS = ("corpus", "held_out", "unigram", "hardware", "versions")  # keys of `TrainedModel.facts`
UNIGRAM = "token frequencies"  # name of the unigram model in reports


@dataclass(frozen=True)
class Question:
    """A comparison of arms.

    Attributes:
        title: Title of the report.
        baseline: Arm with which the other arms are compared, seed by seed.
        arms: Arms to compare; defaults to all arms.
        left_to_right: Arm whose bits per byte left to right are the lower end of the any-order gap. The upper end is
            the bits per byte of `baseline` in random orders. By default, the gap is not computed.
        measure: Key of `MEASURES`: kind of bits per byte whose differences from `baseline` are in the table.
    """

    title: str
    baseline: str
    arms: list[str] = field(default_factory=list)
    left_to_right: str | None = None
    measure: str = "any_order"


@dataclass(frozen=True)
class TrainedModel:
    """A model that was trained in one run, or in several runs that continued each other.

    Attributes:
        num_parameters: Number of parameters.
        tokens: Number of training tokens of all runs.
        seconds: Training time of all runs.
        scores: Final bits per byte, for each key of `MEASURES`.
        curves: For each kind of order, the numbers of training tokens and the bits per byte at all evaluations.
            (Encoders have no left-to-right curve. Their curve for random orders is estimated with random masks.)
        facts: Facts that are the same for all models of a study: corpus, held-out text and its bits per byte under the
            token frequencies of the training text, hardware and versions.
    """

    num_parameters: int
    tokens: int
    seconds: float
    scores: dict[str, float]
    curves: dict[str, tuple[list[int], list[float]]]
    facts: dict[str, Any]


def read_model(folders: Sequence[Path]) -> TrainedModel:
    """Read the results of a model from the folders of its runs. The first call also measures its scores."""
    tokens, seconds, points = 0, 0.0, []
    for folder in folders:
        results = read_finished_run(folder)
        tokens_per_step = results["tokens"] // results["steps"]
        points += [(tokens + scores["step"] * tokens_per_step, scores) for scores in results["evaluations"]]
        tokens, seconds = tokens + results["tokens"], seconds + results["train_seconds"]
    last, scores = results["evaluations"][-1], load_scores(folders[-1])
    return TrainedModel(
        results["num_parameters"],
        tokens,
        seconds,
        {kind: scores[kind] for kind in MEASURES},
        {
            kind: ([at for at, _ in points], [scores[kind] for _, scores in points])
            for kind in ORDER_KINDS
            if kind in last
        },
        {
            "corpus": results["corpus"],
            "held_out": {key: last[key] for key in ("sequences", "bytes")},
            "unigram": scores["unigram"],
            "hardware": results["hardware"],
            "versions": results["versions"],
        },
    )


def read_earlier_models(
    path: Path, settings: dict[str, Any], parts: dict[str, dict[str, dict[str, Any]]]
) -> dict[tuple[str, int], TrainedModel]:
    """Return the models whose results `write_results` wrote to a JSON file before, for each arm and seed.

    Arms that were trained with other settings are left out. In older files, which do not have the training time of each
    model, it is the mean over the seeds.

    Args:
        path: Path of the JSON file. If there is no such file, the result is empty.
        settings: The settings of all arms.
        parts: For each arm, the settings of the arm itself and of all arms that its run continues.
    """
    if not path.exists():
        return {}
    keys = ["settings", "settings_of_arms", "seeds", "arms", *FACTS]
    found = read_json(path, keys, "eval/studies/runner/study.py")
    if found["settings"] != settings:
        return {}
    facts = {key: found[key] for key in FACTS}
    return {
        (arm, seed): TrainedModel(
            entry["num_parameters"],
            entry["tokens"],
            entry.get("seconds_of_seeds", [entry["seconds"]] * len(found["seeds"]))[index],
            {kind: score["values"][index] for kind, score in entry["scores"].items()},
            {kind: (curve["tokens"], curve["values"][index]) for kind, curve in entry["curves"].items()},
            facts,
        )
        for arm, entry in found["arms"].items()
        if arm in parts and parts[arm].items() <= found["settings_of_arms"].items()
        for index, seed in enumerate(found["seeds"])
    }


def compare(question: Question, models: dict[str, list[TrainedModel]]) -> dict[str, dict[str, Any]]:
    """Compare the models of a question.

    Args:
        question: The question.
        models: The models of each arm, one for each seed.

    Returns:
        A dictionary for each arm. `num_parameters`, `tokens` and `seconds` (mean over seeds) are numbers, and
        `seconds_of_seeds` is a list. `scores` and `differences` (scores minus those of the baseline) have a value for
        each measure. `curves` contains the bits per byte during training, for each kind of order. If the question has
        `left_to_right`, `gap` is the bits per byte of the arm in random orders, minus those of the `left_to_right` arm
        in left-to-right order. `gap_closed` is 1 minus the gap divided by the baseline's gap. Scores, differences and
        gaps are computed for each seed, and summarized by `estimate`.

    Raises:
        ValueError: If the arms were evaluated on different text, or trained on different numbers of tokens.
    """
    _check_comparable(question, models)
    compared = {}
    for arm, of_seeds in models.items():
        first, baselines = of_seeds[0], models[question.baseline]
        compared[arm] = entry = {
            "num_parameters": first.num_parameters,
            "tokens": first.tokens,
            "seconds": statistics.fmean(model.seconds for model in of_seeds),
            "seconds_of_seeds": [model.seconds for model in of_seeds],
            "scores": {kind: estimate([model.scores[kind] for model in of_seeds]) for kind in first.scores},
            "differences": {
                kind: estimate(_subtract(kind, of_seeds, baselines))
                for kind in first.scores
                if arm != question.baseline
            },
            "curves": {kind: _align([model.curves[kind] for model in of_seeds]) for kind in first.curves},
        }
        if question.left_to_right not in (None, arm):
            references = [model.scores["left_to_right"] for model in models[question.left_to_right]]
            gaps, baseline_gaps = (
                [model.scores["any_order"] - reference for model, reference in zip(side, references, strict=True)]
                for side in (of_seeds, baselines)
            )
            entry["gap"] = estimate(gaps)
            if arm != question.baseline:
                closed = [1 - gap / whole for gap, whole in zip(gaps, baseline_gaps, strict=True)]
                entry["gap_closed"] = estimate(closed)
    return compared


def _subtract(kind: str, models: list[TrainedModel], baselines: list[TrainedModel]) -> list[float]:
    return [one.scores[kind] - other.scores[kind] for one, other in zip(models, baselines, strict=True)]


def _align(curves: list[tuple[list[int], list[float]]]) -> dict[str, list[Any]]:
    """Return the values of the curves at the numbers of tokens at which all of them were evaluated."""
    points = [dict(zip(tokens, values, strict=True)) for tokens, values in curves]
    shared = sorted(set.intersection(*map(set, points)))  # never empty, because each run is evaluated at its end
    return {"tokens": shared, "values": [[values[tokens] for tokens in shared] for values in points]}


def _check_comparable(question: Question, models: dict[str, list[TrainedModel]]) -> None:
    check_same_tokens({arm: {model.tokens for model in of_seeds} for arm, of_seeds in models.items()})
    expected = _evaluation_text(models[question.baseline][0])
    for arm, of_seeds in models.items():
        for model in of_seeds:
            if (text := _evaluation_text(model)) != expected:
                raise ValueError(
                    f"All models must be evaluated on the same text, but one of {arm} was evaluated on {text}, and one "
                    f"of {question.baseline} on {expected}. Use the same corpus and `eval_sequences`."
                )


def check_same_tokens(tokens: dict[str, set[int]]) -> None:
    """Raise a `ValueError` unless all arms, given with the tokens of their models, have the same number of tokens."""
    if len(set.union(*tokens.values())) > 1:
        numbers = ", ".join(f"{arm}: {' or '.join(map(str, sorted(tokens[arm])))}" for arm in tokens)
        raise ValueError(
            f"The arms of a question must be trained on the same number of tokens, but are not ({numbers}). Change "
            "`max_steps`."
        )


def _evaluation_text(model: TrainedModel) -> tuple[Any, Any]:
    return model.facts["corpus"]["sources"], model.facts["held_out"]


def write_results(
    question: Question, models: dict[str, list[TrainedModel]], details: dict[str, Any], path: Path
) -> None:
    """Write the JSON file of a question.

    Args:
        question: The question.
        models: The models of each arm, one for each seed.
        details: Other values for the JSON file: `command`, `settings`, `settings_of_arms` and `seeds`.
        path: Path of the file.
    """
    facts = models[question.baseline][0].facts
    arms = compare(question, models)
    table = {"table": make_table(question, arms, facts["unigram"]), "plotted": list(MEASURES.values())}
    write_json(path, {"title": question.title, **table, **details, **facts, "arms": arms})


def make_table(question: Question, arms: dict[str, dict[str, Any]], unigram: float | None) -> dict[str, dict[str, Any]]:
    """Return the table for `report.py`: a row for each arm, and one for the token frequencies if they are known."""
    rows = {
        arm: {
            "parameters": entry["num_parameters"],
            "tokens": entry["tokens"],
            "seconds": round(entry["seconds"]),
            **{name: entry["scores"][kind] for kind, name in MEASURES.items()},
            f"{MEASURES[question.measure]}, minus {question.baseline}": entry["differences"].get(question.measure),
            **({"part of the gap closed": entry.get("gap_closed")} if question.left_to_right else {}),
        }
        for arm, entry in arms.items()
    }
    return rows | ({} if unigram is None else {UNIGRAM: dict.fromkeys(MEASURES.values(), estimate([unigram]))})
