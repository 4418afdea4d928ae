# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from common.files import write_json
from eval.studies.runner.recipes import group_by_recipe, read_run


def make_run(folder: str, **arguments: object) -> dict:
    """Return a run with some training arguments."""
    return {"run": folder, "arguments": {"seed": 0, **arguments}}


def test_runs_are_trained_on_certain_corpora(tmp_path: Path) -> None:
    cost = {"num_parameters": 1, "steps": 2, "tokens": 3, "train_seconds": 4.0}
    arguments = {"corpus": ["facts"], "seed": 0, "packing": "documents"}
    results = {"arguments": arguments, **cost, "versions": {}}
    write_json(tmp_path / "results.json", results)
    assert read_run(tmp_path, ["facts"]) == {"run": str(tmp_path), "arguments": results["arguments"], **cost}
    with pytest.raises(ValueError, match=r"must be trained on one of sudoku-4, sudoku-6"):
        read_run(tmp_path, ["sudoku-4", "sudoku-6"])
    write_json(tmp_path / "results.json", results | {"arguments": arguments | {"packing": "packed"}})
    with pytest.raises(ValueError, match=r"trained with `packing=documents`, but .* with"):
        read_run(tmp_path, ["facts"])


def test_names_of_recipes_are_names_of_folders_without_the_seed() -> None:
    first, second = (make_run(f"{name}-1", seed=1, init_from=name, tokenizer=name) for name in ("a/any", "b/any"))
    assert group_by_recipe(
        [first, second | {"run": "c/any-2", "arguments": second["arguments"] | {"seed": 2}}]
    ).keys() == {"any"}
    recipes = group_by_recipe([make_run("runs/any-0"), make_run("other/any-1", seed=1), make_run("any-1")])
    assert {name: [run["run"] for run in runs] for name, runs in recipes.items()} == {
        "any": ["runs/any-0", "other/any-1"],
        "any-1": ["any-1"],  # its seed is 0
    }


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"seed": 1, "learning_rate": 2}, "but differ in learning_rate\\."),
        ({"learning_rate": 2}, "but differ in learning_rate\\."),
        ({}, "but several have the same seed"),
    ],
)
def test_runs_of_a_recipe_differ_only_in_the_seed(others: dict, message: str) -> None:
    first = make_run("a/any-0", learning_rate=1, output_dir="a")
    second = make_run(f"b/any-{others.get('seed', 0)}", **{"learning_rate": 1, "output_dir": "b", **others})
    with pytest.raises(ValueError, match=message):
        group_by_recipe([first, second])
