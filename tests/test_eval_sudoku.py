# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from common import sudoku
from common.files import read_json
from common.tokenization import train_tokenizer
from eval.sudoku import (
    DECODINGS,
    PUZZLE_FIRST,
    Puzzles,
    decode,
    encode_after_puzzles,
    encode_in_place,
    main,
    random_order,
    wilson_interval,
)
from tests.training_runs import train

PUZZLES = Puzzles(4, sudoku.held_out_puzzles(4, 3))
TOKENIZER = train_tokenizer(["1234"], 257)
MASK = TOKENIZER.mask_token_id

TINY = """
packing: documents
vocab_size: 257
validation_fraction: 0.3
hidden_size: 16
num_hidden_layers: 1
num_attention_heads: 2
max_steps: 2
batch_size: 4
warmup_steps: 0
num_samples: 0
tracker: none
"""


def test_wilson_interval() -> None:
    """The values are those of statsmodels' `proportion_confint(..., method="wilson")`."""
    assert wilson_interval(8, 10) == pytest.approx((0.49016, 0.94332), abs=1e-4)
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.27753), abs=1e-4)
    assert wilson_interval(10, 10)[1] == 1.0


def test_clues_come_first_from_left_to_right() -> None:
    is_masked = torch.rand(50, 9, generator=torch.Generator().manual_seed(0)) < 0.5
    orders = random_order(is_masked, seed=1)
    for order, masked in zip(orders, is_masked, strict=True):
        given = (~masked).nonzero()[:, 0].tolist()
        assert order[: len(given)].tolist() == given
        assert sorted(order[len(given) :].tolist()) == masked.nonzero()[:, 0].tolist()
    assert not torch.equal(orders, random_order(is_masked, seed=2))


def test_puzzles_are_encoded_with_masks() -> None:
    in_place, after = encode_in_place(PUZZLES, TOKENIZER), encode_after_puzzles(PUZZLES, TOKENIZER)
    assert in_place.shape == (3, 17)
    assert after.shape == (3, 33)
    for (puzzle, _), ids, with_puzzle in zip(PUZZLES.pairs, in_place, after, strict=True):
        assert torch.equal(ids[:16] == MASK, torch.tensor(puzzle) == 0)
        given = [TOKENIZER.decode(token) for token in ids[:16] if token != MASK]
        assert given == [str(digit) for digit in puzzle if digit]
        assert TOKENIZER.decode(with_puzzle[:17]) == sudoku.to_text(puzzle) + "="
        assert (with_puzzle[17:] == MASK).all()
    with pytest.raises(ValueError, match="the tokenizer merges several characters"):
        encode_in_place(PUZZLES, train_tokenizer(["1234"] * 20, 259))


@pytest.mark.parametrize("encode", [encode_in_place, encode_after_puzzles])
def test_a_puzzle_is_solved_if_all_cells_are_right(encode: callable) -> None:
    inputs = encode(PUZZLES, TOKENIZER)
    solutions = torch.tensor(TOKENIZER([sudoku.to_text(solution) for _, solution in PUZZLES.pairs]).input_ids)

    def generate(inputs: torch.LongTensor, **settings: object) -> SimpleNamespace:
        sequences, steps = inputs.clone(), torch.full_like(inputs, -1)
        start = 0 if encode is encode_in_place else 17
        sequences[:, start : start + 16] = solutions
        last = (inputs[0] == MASK).nonzero()[-1]
        sequences[0, last] = TOKENIZER("5").input_ids[0]  # a single wrong cell
        steps[inputs == MASK] = 7
        steps[0, last] = 9
        return SimpleNamespace(sequences=sequences, unmasking_steps=steps)

    results, _, is_solved = decode(
        SimpleNamespace(generate=generate), inputs, PUZZLES, TOKENIZER, {"order": "margin"}, 0
    )
    assert is_solved.tolist() == [False, True, True]
    assert (results["solved"], results["puzzles"], results["fraction"]) == (2, 3, 2 / 3)
    assert results["passes_per_puzzle"] == 4 / 3


@pytest.mark.usefixtures("datasets_cache")
def test_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "any-order": "corpus: sudoku-4\nsequence_length: 17\norders: context_first\nmin_context: 3\n",
        "rival": 'corpus: sudoku-4-puzzles\nsequence_length: 34\norders: left_to_right\nprompt_end: "="\n',
    }
    for name, lines in settings.items():
        (tmp_path / f"{name}.yaml").write_text(TINY + lines)
        train(tmp_path / f"{name}.yaml", tmp_path / name)
    monkeypatch.setitem(DECODINGS, "confidence", {"order": "confidence", "suppress_tokens": [0]})
    out = tmp_path / "results"
    main([str(tmp_path / "any-order"), str(tmp_path / "rival"), "--num_puzzles", "4", "--output_dir", str(out)])
    first, second = read_json(out / "results.json", ("runs",), "eval/sudoku.py")["runs"]
    assert list(first["decodings"]) == list(DECODINGS)
    assert list(second["decodings"]) == [PUZZLE_FIRST]
    assert second["decodings"][PUZZLE_FIRST]["passes_per_puzzle"] == 16
    report = (out / "sudoku.md").read_text()
    assert "4 held-out puzzles (minimal; " in report
    assert report.count(" to ") >= 7
    assert Image.open(out / "sudoku.png").width > 1000
    with pytest.raises(SystemExit, match=r"error: .*rival"):
        main([str(tmp_path / "rival.yaml")])


def test_the_animation_shows_a_step_per_frame(tmp_path: Path) -> None:
    from eval.sudoku import animate

    animate({"size": 4, "solution": PUZZLES.pairs[0][1], "steps": [-1, 0, 1, 2] * 4}, tmp_path / "steps.gif")
    image = Image.open(tmp_path / "steps.gif")
    assert image.n_frames == 4
