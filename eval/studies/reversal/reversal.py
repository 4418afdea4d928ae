# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Fraction of questions that models answer about facts they were trained on, also against the direction of the texts.

    python eval/studies/reversal/reversal.py RUN [RUN ...] [--output_dir DIR]

RUN is the folder of a finished run of training/pretrain.py on the corpus of facts.py. Runs that differ only in the seed
form a recipe. Their folders must have the same name, except for `-SEED` at the end. The command writes results.json, a
report (reversal.md) and a chart (reversal.png).
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from common.commands import Options, Parser, command_line, one_line_errors, option
from common.files import make_folder, write_json, write_text
from common.hardware import default_device, versions
from common.models import load_model
from common.reports import markdown_table, save_figure, style_axes
from common.results import check_is_no_run
from eval.studies.reversal import facts
from eval.studies.runner.recipes import (
    COLORS,
    describe_recipe,
    draw_fraction,
    encode_problems,
    format_fraction,
    group_by_recipe,
    read_run,
    recipe_table,
    style_fractions,
    summarize_fractions,
)
from modeling_aogpt.tokenization import load_tokenizer

CORPUS = "eval.studies.reversal.facts:training_texts"
# Kinds of questions, with labels for the chart.
KINDS = {
    "end": "end of a training sentence",
    "start": "start of a training sentence",
    "other form": "end of the reversed sentence",
}

SUMMARY = """# The reversal curse

A training text states a fact about one of {num_people} invented people, such as "{end}"
For a third of the people, all texts begin with the name, for a third with the description, and for a third there are
texts of both forms. The {num_questions} questions of a row are about the people of the first two thirds.

![Answered questions](reversal.png)

{answers}

"Right" is the fraction of questions for which all missing tokens are right (mean over the seeds), and "seeds" is the
range of this fraction over the seeds. The missing tokens are filled in one by one, each with the likeliest token. A
model that was trained left to right writes the sentence from the gap to its end. Other models fill in the gap in the
order of confidence. "Interval" is the 95 % confidence interval (Wilson) over questions, for one run that answers as
many questions as the mean.

A model that predicts left to right does not see the text after a gap, so it cannot be asked for the start of a
sentence. (It could compute the likelihood of the sentence with each of the {num_people} names or descriptions. This
takes {num_people} sentences per question.)

{recipes}
"""


@dataclass
class ReversalArguments(Options):
    """Options of eval/studies/reversal/reversal.py."""

    output_dir: Path = option(Path("runs/reversal"), "Folder for results.json, the report and the chart.")


def answer(run: dict[str, Any]) -> dict[str, float]:
    """Return, for each kind of question, the fraction that the model of a run answers correctly."""
    folder, settings = Path(run["run"]) / "model", run["arguments"]
    model, tokenizer = load_model(folder, dtype=torch.float32).to(default_device()), load_tokenizer(folder)
    is_left_to_right = settings["orders"] == "left_to_right"
    right = {}
    for kind in KINDS:
        if not (is_left_to_right and kind == "start"):
            inputs, solutions = encode_problems(facts.questions(kind), tokenizer, settings["sequence_length"])
            order = "confidence"
            if is_left_to_right:  # the model must not see the period and end-of-text, which follow the missing text
                order, is_missing = "left_to_right", inputs == tokenizer.mask_token_id
                inputs[is_missing.cummax(dim=1).values] = tokenizer.mask_token_id
            end = tokenizer.eos_token_id
            sequences = model.generate(inputs.to(model.device), order=order, do_sample=False, pad_token_id=end)
            right[kind] = (sequences.cpu() == solutions).all(dim=1).double().mean().item()
    return right


def summarize(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return, for each kind of question, a summary of the fractions of all runs (see `summarize_fractions`)."""
    return {
        kind: summarize_fractions([run["right"][kind] for run in runs], len(facts.questions(kind)))
        for kind in runs[0]["right"]
    }


def example(kind: str) -> str:
    """Return the first question of a kind, with five underscores for the missing text."""
    question, _ = facts.questions(kind)[0]
    return re.sub("_+", "_____", question)


def make_report(results: dict[str, Any]) -> str:
    """Return the report in Markdown."""
    answers = [
        (
            recipe,
            KINDS[kind],
            f"`{example(kind)}`",
            *format_fraction(values),
        )
        for recipe, summary in results["summary"].items()
        for kind, values in summary.items()
    ]
    return SUMMARY.format(
        num_people=facts.NUM_PEOPLE,
        end=facts.questions("end")[0][1],
        num_questions=len(facts.questions("end")),
        answers=markdown_table(["recipe", "missing", "example", "right", "seeds", "interval"], answers, align="lllrrr"),
        recipes=recipe_table(results["runs"]),
    )


def plot_results(results: dict[str, Any], path: Path) -> None:
    """Draw a bar chart of the fractions of right answers."""
    summaries = results["summary"]
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(summaries)
    for number, (recipe, summary) in enumerate(summaries.items()):
        color = COLORS[number % len(COLORS)]
        axes.barh(0, 0, color=color, label=describe_recipe(recipe, results["runs"][recipe]))
        for place, kind in enumerate(KINDS):
            row = place + height * (number - (len(summaries) - 1) / 2)
            if kind not in summary:
                axes.text(
                    0.01, row, "not possible: the model does not see the text after a gap", va="center", fontsize=8
                )
                continue
            draw_fraction(axes, row, height, color, summary[kind])
    labels = [f"{label}\n{example(kind)}" for kind, label in KINDS.items()]
    style_fractions(axes, labels, "right answers", results["runs"])
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    style_axes(axes, "Filling in facts, by what is missing")
    save_figure(figure, path)


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(ReversalArguments)
    parser.add_argument("runs", nargs="+", type=Path, help="Folders of finished runs on the corpus of facts.py.")
    options, others = parser.parse(argv)
    recipes = group_by_recipe([read_run(folder, [CORPUS]) for folder in others.runs])
    folder = options.output_dir
    check_is_no_run(folder)
    with make_folder(folder):  # first, so that a wrong folder is an error before the measurements
        for run in (run for runs in recipes.values() for run in runs):
            run["right"] = answer(run)
            print(run["run"], ", ".join(f"{kind}: {right:.1%}" for kind, right in run["right"].items()), flush=True)
    results = {
        "command": command_line(__file__, argv),
        "summary": {name: summarize(runs) for name, runs in recipes.items()},
        "runs": recipes,
        "versions": versions(),
    }
    report = make_report(results)
    plot_results(results, folder / "reversal.png")
    write_json(folder / "results.json", results)
    write_text(folder / "reversal.md", report)
    print(report)


if __name__ == "__main__":
    main(sys.argv[1:])
