# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Fraction of questions that models answer about facts they were trained on, also against the direction of the texts.

    python eval/studies/reversal/reversal.py RUN [RUN ...] [--output_dir DIR]

RUN is the folder of a finished run of training/pretrain.py on the corpus of facts.py. Runs that differ only in the seed
form a recipe. Their folders must have the same name, except for `-SEED` at the end. The command writes reversal.json,
and a report on all JSON files in the folder (see report.py).
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from common.commands import Options, Parser, command_line, one_line_errors, option
from common.files import make_folder, write_json
from common.hardware import default_device, versions
from common.results import check_is_no_run
from eval.studies.reversal import facts
from eval.studies.runner.recipes import encode_problems, group_by_recipe, read_run, summarize_fractions
from eval.studies.runner.report import write_report
from modeling_aogpt.loading import load_model
from modeling_aogpt.tokenization import load_tokenizer

CORPUS = "eval.studies.reversal.facts:training_texts"
# Kinds of questions, with labels for the report.
KINDS = {
    "end": "end of a training sentence",
    "start": "start of a training sentence",
    "other form": "end of the reversed sentence",
}


@dataclass
class ReversalArguments(Options):
    """Options of eval/studies/reversal/reversal.py."""

    output_dir: Path = option(Path("runs/reversal"), "Folder for reversal.json and the report.")


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
        KINDS[kind]: summarize_fractions([run["right"][kind] for run in runs], len(facts.questions(kind)))
        for kind in runs[0]["right"]
    }


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
        "title": "Right answers, by what is missing",
        "table": {name: summarize(runs) for name, runs in recipes.items()},
        "plotted": list(KINDS.values()),
        "command": command_line(__file__, argv),
        "runs": recipes,
        "versions": versions(),
    }
    write_json(folder / "reversal.json", results)
    write_report(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
