# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The reports in docs/results are those that the current code makes from the JSON files next to them."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from common.commands import Parser
from eval import infilling, puzzles, reversal
from eval.benchmarks import context_orders, likelihood_estimators, quickstart_report, speed_report, training_speed
from eval.benchmarks.study import read_study
from eval.benchmarks.study_results import _format_report
from eval.tables import generative_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8"))


def make_puzzle_report(path: Path) -> str:
    results = read(path)
    has_picture = any(run["shown"] for runs in results["runs"].values() for run in runs)
    return puzzles.make_report(results) + (puzzles.SOLUTION if has_picture else "")


def make_generative_report(path: Path) -> str:
    cells = read(path)["cells"]
    return f"{generative_table(cells)}\n\n{generative_table(cells, 'pooled')}\n"


def make_context_report(path: Path) -> str:
    results = read(path)
    for model in results["models"].values():
        for name in {"bits_per_byte", "minus_encoder"} & model.keys():
            model[name] = {int(size): value for size, value in model[name].items()}
    options = shlex.split(results["command"])
    first = next((index for index, word in enumerate(options) if word.startswith("--")), len(options))
    (arguments,) = Parser(context_orders.Arguments).parse(options[first:])
    return context_orders._format_report(results, arguments)


def make_study_report(path: Path) -> str:
    study = read_study(ROOT / "training" / "configs" / f"{path.parent.name}.yaml")
    return _format_report(study.questions[path.stem], read(path), path.stem)


# Pattern of JSON files, the report next to each of them, and a function that makes it.
REPORTS = [
    ("sudoku*/**/results.json", "sudoku.md", make_puzzle_report),
    ("infilling/**/results.json", "report.md", lambda path: infilling.make_report(read(path))),
    ("reversal/results.json", "reversal.md", lambda path: reversal.make_report(read(path))),
    ("context_orders*/context_orders.json", "context_orders.md", make_context_report),
    ("speed/*/speed.json", "speed.md", lambda path: speed_report.to_markdown(read(path))),
    ("training_speed/**/results.json", "README.md", lambda path: training_speed.format_report(read(path))),
    ("quickstart/report.json", "quickstart.md", lambda path: quickstart_report.to_markdown(read(path))),
    ("generative*/results.json", "table.md", make_generative_report),
    ("likelihood/*-16-64.json", "report.md", lambda path: likelihood_estimators.format_report(path.parent)),
]
CASES = [(path, path.with_name(name), make) for pattern, name, make in REPORTS for path in RESULTS.glob(pattern)]
CASES += [
    (path, path.with_suffix(".md"), make_study_report)
    for path in RESULTS.glob("study_*/*.json")
    # Others are trends, or have arms with settings that no longer exist.
    if "arms" in read(path) and not any("neighbors" in arm or "combination" in arm for arm in read(path)["arms"])
]


@pytest.mark.parametrize(("path", "report", "make"), CASES, ids=[str(path.relative_to(RESULTS)) for path, *_ in CASES])
def test_a_report_follows_from_its_numbers(path: Path, report: Path, make: Any) -> None:
    assert report.read_text("utf-8").strip() == make(path).strip()


def test_all_kinds_of_reports_are_checked() -> None:
    checked = {path.relative_to(RESULTS).parts[0] for path, *_ in CASES}
    others = {"entropy", "generation", "overview", "speed_quality"}  # have no report
    assert checked | others == {path.name for path in RESULTS.iterdir() if path.is_dir()}
