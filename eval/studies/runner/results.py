# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Results of a study: comparisons of arms and trends, as JSON, tables and figures."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common.files import read_json, write_json, write_text
from common.reports import FINE_TICKS, GREY, label_log_axis, markdown_table, save_figure, style_axes
from common.results import ORDER_KINDS, read_finished_run
from eval.studies.runner.estimates import estimate, format_estimate
from eval.studies.runner.scores import MEASURES, load_scores

SIZES = {"tokens": "million training tokens", "num_parameters": "million parameters"}  # `Trend.size`: name in reports
FACTS = ("corpus", "held_out", "unigram", "hardware", "versions")  # keys of `TrainedModel.facts`
UNIGRAM = "token frequencies"  # name of the unigram model in reports


@dataclass(frozen=True)
class Question:
    """
    A comparison of arms.

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
class Trend:
    """
    A comparison of questions that differ in the number of parameters or of training tokens.

    Attributes:
        title: Title of the report.
        size: Key of `SIZES`: the number in which the questions differ.
        questions: Names of the questions. All have `left_to_right`, and the same number of arms. The arms
            `left_to_right` of all questions are one line of the figure, and so are the arms `baseline`, the first other
            arms, and so on. A line has the shortest name of its arms.
    """

    title: str
    size: str
    questions: list[str]


@dataclass(frozen=True)
class TrainedModel:
    """
    A model that was trained in one run, or in several runs that continued each other.

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
    """
    Return the models whose results `write_results` wrote to a JSON file before, for each arm and seed.

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


def has_results(question: Question, path: Path) -> bool:
    """Return whether a JSON file has results of all arms of a question, also of arms that were added to it later."""
    return (
        path.exists() and {*question.arms} <= read_json(path, ("arms",), "eval/studies/runner/study.py")["arms"].keys()
    )


def compare(question: Question, models: dict[str, list[TrainedModel]]) -> dict[str, dict[str, Any]]:
    """
    Compare the models of a question.

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
    """
    Write the table (.md), the figure (.png) and the numbers (.json) of a question.

    Args:
        question: The question.
        models: The models of each arm, one for each seed.
        details: Other values for the JSON file: `command`, `settings`, `settings_of_arms` and `seeds`.
        path: Path of the files without a suffix.
    """
    facts = models[question.baseline][0].facts
    results = {"title": question.title, **details, **facts, "arms": compare(question, models)}
    _plot(results, path.with_suffix(".png"))
    write_text(path.with_suffix(".md"), _format_report(question, results, path.name))
    write_json(path.with_suffix(".json"), results)  # last, so that the table and figure exist if this file exists


def _format_report(question: Question, results: dict[str, Any], name: str) -> str:
    header, rows = _make_table(question, results)
    parts = [
        f"# {question.title}",
        f"![Held-out bits per byte]({name}.png)",
        f"The table shows bits per byte on {results['held_out']['bytes']:,} held-out bytes, computed with the moving "
        f"averages of the weights. Lower is better. {_describe_spread(results)} Seconds are the training time of one "
        "model. In the figure, a thin line is one seed, a thick line is the mean over the seeds, and a bar is the "
        "confidence interval.",
        markdown_table(header, rows, "l" + "r" * (len(header) - 1)),
        "\n".join(f"* {note}" for note in _make_notes(question, results)),
        "Settings of each arm, in addition to those that all arms share:",
        "\n".join(
            f"* {arm}: " + (", ".join(f"`{key}: {value}`" for key, value in settings.items()) or "none")
            for arm, settings in results["settings_of_arms"].items()
        ),
        f"Written by `{results['command']}`.",
    ]
    return "\n\n".join(parts) + "\n"


def _make_table(question: Question, results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows: one for each arm, and one for the token frequencies if they are known."""
    difference = f"{MEASURES[question.measure]}, minus {question.baseline}"
    header = ["arm", "parameters", "tokens", "seconds", *MEASURES.values(), difference]
    rows = [
        [
            arm,
            f"{entry['num_parameters'] / 1e6:.2f} M",
            f"{entry['tokens'] / 1e6:.2f} M",
            f"{entry['seconds']:.0f}",
            *(format_estimate(entry["scores"][kind]) for kind in MEASURES),
            format_estimate(entry["differences"].get(question.measure)),
        ]
        for arm, entry in results["arms"].items()
    ]
    if question.left_to_right is not None:
        header.append("gap closed")
        for row, entry in zip(rows, results["arms"].values(), strict=True):
            row.append(format_estimate(entry.get("gap_closed"), 100, "%"))
    if results["unigram"] is not None:
        row = [UNIGRAM, "", "", "", *[f"{results['unigram']:.3f}"] * len(MEASURES)]
        rows.append(row + [""] * (len(header) - len(row)))
    return header, rows


def _describe_spread(results: dict[str, Any]) -> str:
    num_seeds, num_sequences = len(results["seeds"]), results["held_out"]["sequences"]
    if num_seeds == 1:
        return "There is only one seed, so the spread over seeds is unknown."
    return (
        f"Values are means over {num_seeds} seeds ± half the width of the 95 % confidence interval (Student's t). "
        "Differences are computed for each seed. The intervals show only how results vary between seeds, because all "
        f"models are scored on the same {num_sequences} sequences in the same random orders."
    )


def _make_notes(question: Question, results: dict[str, Any]) -> Iterator[str]:
    """Yield explanations of the columns and rows of the table."""
    if question.left_to_right is not None:
        yield (
            f"The gap of an arm is its bits per byte in random orders, minus those of `{question.left_to_right}` left "
            f"to right. *Gap closed* is 1 minus the gap divided by the gap of `{question.baseline}`."
        )
    if any("left_to_right" not in entry["curves"] for entry in results["arms"].values()):
        yield (
            "The learning curve of an encoder is estimated with random masks, and has no left-to-right values. The "
            "values of the table are exact."
        )
    if results["unigram"] is not None:
        yield (
            f"*{UNIGRAM.capitalize()}*: a model that predicts each token with its frequency in the training text. Its "
            "bits per byte are the same in all orders."
        )
    has_gaps = any(settings.get("orders") == "gaps_last" for settings in results["settings_of_arms"].values())
    exception = " Arms with `orders: gaps_last` predict it from left to right." if has_gaps else ""
    yield (
        f"*{MEASURES['infilling'].capitalize()}*: the tokens of a sequence are divided into two random halves, and "
        f"each half is predicted in random order, given the other.{exception} A decoder reads the other half from left "
        "to right."
    )
    yield (
        f"*{MEASURES['own_orders'].capitalize()}*: the held-out text in orders like those in which the arm was "
        "trained. If some training sequences were left to right, this is the mean over left-to-right and other "
        "sequences, weighted as at the end of the training."
    )


def write_trend(trend: Trend, questions: dict[str, Question], command: str, path: Path) -> None:
    """
    Write the table (.md) and the figure (.png) of a trend, from the JSON files of its questions.

    Args:
        trend: The trend.
        questions: All questions of the study, by name.
        command: The command that writes the files.
        path: Path of the files without a suffix. The JSON files are in the same folder.
    """
    results = [read_json(path.with_name(f"{name}.json"), ("arms", "seeds"), command) for name in trend.questions]
    # Each line of the figure has a label and an arm of each question. The first two are `left_to_right` and `baseline`.
    groups = zip(*(_sort_arms(questions[name]) for name in trend.questions), strict=True)
    lines = [
        (min(names, key=len), [part["arms"][name] for part, name in zip(results, names, strict=True)])
        for names in groups
    ]
    kinds = ["left_to_right", *["any_order"] * (len(lines) - 1)]
    scores = [
        (f"{label}, {ORDER_KINDS[kind]}", [(_size(entry, trend), entry["scores"][kind]) for entry in entries])
        for kind, (label, entries) in zip(kinds, lines, strict=True)
    ]
    closed = [
        (label, [(_size(entry, trend), entry["gap_closed"]) for entry in entries]) for label, entries in lines[2:]
    ]
    _plot_trend(trend, scores, closed, path.with_suffix(".png"))
    labels = [*(label for label, _ in scores), *(f"gap closed by {label}" for label, _ in closed)]
    header = [SIZES[trend.size], "seeds", *labels]
    columns = [
        [f"{size:.2f}" for size, _ in scores[0][1]],
        [str(len(part["seeds"])) for part in results],
        *([format_estimate(value) for _, value in points] for _, points in scores),
        *([format_estimate(value, 100, "%") for _, value in points] for _, points in closed),
    ]
    reports = ", ".join(f"[{name}]({name}.md)" for name in trend.questions)
    parts = [
        f"# {trend.title}",
        f"![Bits per byte and gap closed]({path.name}.png)",
        markdown_table(header, list(zip(*columns, strict=True)), "r" * len(header)),
        "Values are bits per byte of held-out text, and the part of the any-order gap that an arm closes. After ± is "
        "half the width of the 95 % confidence interval over seeds. Each row is from one of these reports, which "
        f"define the gap: {reports}.",
        f"Written by `{command}`.",
    ]
    write_text(path.with_suffix(".md"), "\n\n".join(parts) + "\n")


def _sort_arms(question: Question) -> list[str]:
    first = [question.left_to_right, question.baseline]
    return first + [arm for arm in question.arms if arm not in first]


def _size(entry: dict[str, Any], trend: Trend) -> float:
    return entry[trend.size] / 1e6


def _plot_trend(
    trend: Trend,
    scores: list[tuple[str, list[tuple[float, dict[str, Any]]]]],
    closed: list[tuple[str, list[tuple[float, dict[str, Any]]]]],
    path: Path,
) -> None:
    figure = Figure(figsize=(11, 4), layout="constrained")
    for axes, lines in zip(figure.subplots(1, 2), (scores, closed), strict=True):
        for number, (label, points) in enumerate(lines, start=len(scores) - len(lines)):
            sizes, values = zip(*points, strict=True)
            means, errors = [value["mean"] for value in values], [value["half_width"] or 0.0 for value in values]
            axes.errorbar(sizes, means, errors, marker="o", markersize=4, capsize=3, label=label, color=f"C{number}")
        ticks = [size for size, _ in scores[0][1]]
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{size:.2g}" for size in ticks])
        axes.set_xlabel(SIZES[trend.size])
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    style_axes(figure.axes[0], "Bits per byte of held-out text")
    style_axes(figure.axes[1], "Part of the any-order gap that is closed")
    figure.axes[1].yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    save_figure(figure, path)


def _plot(results: dict[str, Any], path: Path) -> None:
    """Plot learning curves, and the final bits per byte of each arm with their confidence intervals."""
    arms, unigram = results["arms"], results["unigram"]
    figure = Figure(figsize=(13, 3.6 + 0.22 * len(arms)), layout="constrained")
    *held_out, final = figure.subplots(1, 3)
    colors = dict(zip(arms, colormaps["tab10"].colors * len(arms), strict=False))
    for kind, axes in zip(ORDER_KINDS, held_out, strict=True):
        for arm, entry in arms.items():
            if kind in entry["curves"]:
                _plot_curves(axes, entry["curves"][kind], colors[arm], arm)
        axes.set(xlabel="million training tokens", ylabel="bits per byte")
        axes.set_yscale("log")
        label_log_axis(axes.yaxis, FINE_TICKS)
        style_axes(axes, f"Held-out text, {ORDER_KINDS[kind]}")
    if unigram is not None:
        for axes, draw in zip((*held_out, final), ("axhline", "axhline", "axvline"), strict=True):
            getattr(axes, draw)(unigram, color=GREY, linestyle=":", linewidth=1)
        final.plot([], [], color=GREY, linestyle=":", label=UNIGRAM)
    for marker, (kind, name) in zip("<o*|", MEASURES.items(), strict=True):
        final.plot([], [], marker, color="black", label=name)
        for height, (arm, entry) in enumerate(arms.items()):
            score = entry["scores"][kind]
            final.errorbar(score["mean"], height, xerr=score["half_width"], fmt=marker, color=colors[arm])
    final.set(xlabel="bits per byte", yticks=range(len(arms)), yticklabels=list(arms))
    final.invert_yaxis()
    figure.legend(*final.get_legend_handles_labels(), loc="outside lower right", ncols=5, frameon=False, fontsize=8)
    style_axes(final, "At the end of training")
    for label, color in zip(final.get_yticklabels(), colors.values(), strict=True):
        label.set_color(color)
    save_figure(figure, path)


def _plot_curves(axes: Axes, curve: dict[str, Any], color: Any, label: str) -> None:
    """Plot the mean over seeds as a thick line, and each seed as a thin line."""
    tokens = [count / 1e6 for count in curve["tokens"]]
    for values in curve["values"]:
        axes.plot(tokens, values, color=color, linewidth=0.6, alpha=0.4)
    means = [statistics.fmean(values) for values in zip(*curve["values"], strict=True)]
    axes.plot(tokens, means, color=color, marker="o", markersize=3, label=label)
