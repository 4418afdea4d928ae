# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Prompts and rewards of Sudoku and Countdown, for training/grpo.py."""

from pathlib import Path
from typing import Any

import pytest
import torch

from common.data_arguments import DataArguments
from common.encoding import split_context
from common.tokenizers import train_tokenizer
from eval.studies.countdown import countdown
from eval.studies.rewards import compare
from eval.studies.sudoku import corpus, rewards
from training.command_line import parse_keys
from training.grpo import GRPOArguments, load_prompts

MASK = "<|mask|>"
STUDIES = Path(__file__).parents[2] / "eval" / "studies"


def test_rewards_of_sudoku(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewards, "cached_texts", lambda size, form, stride: corpus.training_texts(size, form))
    prompts = rewards.puzzles_4()
    for (key, prompt), (name, text) in zip(prompts, corpus.training_texts(4, "clues"), strict=True):
        grid, is_clue = split_context(text, "[]")
        assert (key, prompt.count(MASK)) == (name, is_clue.count(False))
        other = grid.translate(str.maketrans("1234", "2341"))  # a solution of another puzzle
        twice = grid[:15] + grid[14]
        completions = [grid, other, twice, grid[:-1], grid + "1", "", grid[:-1] + "x"]
        assert rewards.solved([prompt] * 7, completions) == [1, 0, 0, 0, 0, 0, 0]


def test_rewards_of_countdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(countdown, "NUM_PROBLEMS", 300)
    prompts, texts = dict(countdown.prompts()), dict(countdown.solutions())
    assert len(prompts) == 300
    for key, prompt in prompts.items():
        text, is_context = split_context(texts[key], "[]")
        given = prompt.replace(MASK, "")
        assert given == text[: is_context.count(True)]
        assert len(given) + prompt.count(MASK) == countdown.LENGTH + 1 > len(text)
        assert countdown.solved([prompt] * 2, [text, text + "+1"]) == [1, 0]


@pytest.mark.parametrize(
    ("expression", "reward"),
    [
        *(("5*7+2", 1), ("2+(7*5)", 1), ("(2+7*5)", 1), ("2 + 7*5", 1)),
        *(("5*7+2+2-2", 0), ("5*7", 0), ("37", 0), ("2*5+7", 0), ("25+7+5", 0), ("", 0), ("5*7+", 0), ("-(2-5)*7", 0)),
        *(("5**7**2", 0), ("5*7+True*2", 0), ("f(2, 5, 7)", 0), ("[5, 7, 2]", 0), ("((((" * 30, 0), ("5*7+2.0", 0)),
    ],
)
def test_expressions_of_countdown(expression: str, reward: float) -> None:
    prompt = "2 5 7=37:"
    assert countdown.solved([prompt + MASK], [prompt + expression]) == [reward]


def test_countdown_is_measured_with_held_out_prompts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A model that fills in the right expression of every second problem solves half of them."""
    monkeypatch.setattr(countdown, "NUM_PROBLEMS", 2000)
    tokenizer = train_tokenizer(["text"], 257)
    tokenizer.save_pretrained(tmp_path)
    data = load_prompts(DataArguments(corpus=[f"{countdown.__name__}:prompts"], tokenizer=str(tmp_path)))
    countdown.held_out_prompts.cache_clear()
    held_out = countdown.held_out_prompts(10)
    assert held_out == data.validation["text"][:10]
    texts = [split_context(dict(countdown.solutions())[prompt.split(":")[0]], "[]")[0] for prompt in held_out]
    answers = [text if row % 2 else text[:-1] + "0" for row, text in enumerate(texts)]

    class Model:
        def generate(self, inputs: torch.LongTensor, **options: Any) -> torch.LongTensor:
            assert inputs.eq(tokenizer.mask_token_id).sum(dim=1).tolist() == [text.count(MASK) for text in held_out]
            ids = [tokenizer.encode(text) for text in answers]
            return torch.tensor([row + [tokenizer.eos_token_id] * (inputs.shape[1] - len(row)) for row in ids])

    assert compare.solve_countdown(Model(), tokenizer, "random", 10) == {"solved": 0.5}


@pytest.mark.parametrize("names", [compare.SUDOKU, compare.COUNTDOWN])
def test_table_of_arms(names: tuple[str, ...]) -> None:
    """Each problem has its own decodings. Differences are those of a seed by the first decoding."""
    solved = {"start": {0: 0.5, 1: 0.25}, "exact": {0: 0.75}, "coupled": {0: 0.5, 1: 0.75}}
    passes = {"passes_per_puzzle": 2.0} if names == compare.SUDOKU else {}
    arms = {
        arm: {
            seed: {name: {"solved": value, **passes} for name in names} | {"seconds": 1} for seed, value in runs.items()
        }
        for arm, runs in solved.items()
    }
    table = compare.make_table(arms)
    assert table["coupled"][f"{names[0]}, minus start"]["mean"] == 0.25
    assert table["coupled"][f"{names[0]}, minus exact"]["mean"] == -0.25
    assert ("passes, threshold 0.9" in table["start"]) == (names == compare.SUDOKU)


@pytest.mark.parametrize("study", ["sudoku", "countdown"])
def test_recipes(study: str) -> None:
    _, data, training, _ = parse_keys([str(STUDIES / study / "grpo.yaml")], GRPOArguments)
    assert training.batch_size % training.group_size == 0
    assert data.corpus[0].startswith(f"eval.studies.{study}.")
    assert training.reward.startswith(f"eval.studies.{study}.")
