# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""READMEs of the studies: all have the required parts, commands parse, and links exist."""

import re
import shlex
from pathlib import Path

import pytest

from common.commands import Parser
from eval.generative import GenerativeArguments
from eval.infilling import InfillingArguments
from eval.studies.context_orders.context_orders import Arguments
from eval.studies.infilling.compare import CompareArguments
from eval.studies.names.watch import WatchArguments
from eval.studies.own_orders.own_orders import OwnOrderArguments
from eval.studies.reversal.reversal import ReversalArguments
from eval.studies.rewards.compare import CompareArguments as RewardsArguments
from eval.studies.rewards.likelihoods import LikelihoodArguments
from eval.studies.runner.study import StudyArguments, read_study
from eval.studies.sudoku.puzzles import PuzzleArguments
from tests.test_docs import find_anchors
from training.command_line import parse_arguments, parse_keys

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "eval" / "studies"
PAGES = sorted(STUDIES.rglob("*.md"))
PARSERS = {
    "eval/generative.py": GenerativeArguments,
    "eval/infilling.py": InfillingArguments,
    "eval/studies/context_orders/context_orders.py": Arguments,
    "eval/studies/infilling/compare.py": CompareArguments,
    "eval/studies/names/watch.py": WatchArguments,
    "eval/studies/reversal/reversal.py": ReversalArguments,
    "eval/studies/rewards/compare.py": RewardsArguments,
    "eval/studies/runner/study.py": StudyArguments,
    "eval/studies/sudoku/puzzles.py": PuzzleArguments,
}
RUNS = {
    "eval/studies/own_orders/own_orders.py": OwnOrderArguments,
    "eval/studies/rewards/likelihoods.py": LikelihoodArguments,
}


def find_commands(page: Path) -> list[list[str]]:
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line.removeprefix("$ "), comments=True) for line in lines if line.startswith("$ ")]


def test_each_study_has_the_required_parts_and_is_in_the_index() -> None:
    folders = {path.parent.name for path in STUDIES.glob("*/results")}
    index = re.findall(r"^\| \[(\w+)\]", (STUDIES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(index) == folders
    for name in folders:
        text = (STUDIES / name / "README.md").read_text(encoding="utf-8")
        parts = re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE)
        assert parts[:5] == ["Question", "Command", "Date", "Result", "Status"], name
        assert find_commands(STUDIES / name / "README.md"), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(STUDIES).as_posix())
def test_links_and_pictures_exist(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")) if "://" not in link]
    for file, _, anchor in (link.partition("#") for link in links):
        path = page.parent / file if file else page
        assert path.exists(), file
        assert not anchor or anchor in find_anchors(path), f"{file}#{anchor}"


def test_python_snippets_run() -> None:
    snippets = re.findall(
        r"```python\n(.*?)```", "\n".join(page.read_text(encoding="utf-8") for page in PAGES), re.DOTALL
    )
    assert snippets
    for snippet in snippets:
        exec(snippet, {})


def test_commands_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    commands = [command for page in PAGES for command in find_commands(page)]
    assert len(commands) > 15
    for command in commands:
        if command[0] == "make":
            assert f"\n{command[1]}:" in (ROOT / "Makefile").read_text()
        elif command[1] == "training/pretrain.py":
            parse_arguments(command[2:])
        elif command[1] in RUNS:
            parse_keys(command[2:], RUNS[command[1]])  # without the model of `init_from`
        else:
            parser = Parser(PARSERS[command[1]])
            parser.add_argument("positional", nargs="+")
            _, others = parser.parse(command[2:])
            if command[1].endswith("study.py"):
                read_study(Path(others.positional[0]))
