# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from common.files import read_json
from common.tokenizers import train_tokenizer
from eval.estimates import wilson_interval
from eval.studies.corpora import path_star
from eval.studies.runner.recipes import encode_problems
from eval.studies.sudoku import corpus as sudoku
from eval.studies.sudoku.puzzles import (
    DECODINGS,
    LeftToRightContext,
    check_characters,
    decode,
    decodings_of,
    main,
    make_table,
)
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from modeling_aogpt.validation import check_orders
from tests.training_runs import TINY, train_recipes

SUDOKU = f"{sudoku.__name__}:sudoku_4"
TEXTS = sudoku.held_out_texts(4, "grid", 3)
TOKENIZER = train_tokenizer(["1234"], 257)
ONLY_FOR_DECODERS = {"random, speculative", "confidence, no cache", "threshold 0.9, no cache"}
MASK = TOKENIZER.mask_token_id

SETTINGS = f"{TINY}vocab_size: 257\nvalidation_fraction: 0.3\n"


@pytest.mark.parametrize("has_puzzle", [False, True])
def test_missing_digits_are_masks(has_puzzle: bool) -> None:
    texts = sudoku.held_out_texts(4, "puzzle" if has_puzzle else "clues", 3)
    ids, solutions = encode_problems(texts, TOKENIZER, None if has_puzzle else 17)
    assert ids.shape == solutions.shape == (3, 33 if has_puzzle else 17)
    for (puzzle, solution), row, filled, (clues, grid) in zip(
        texts, ids.tolist(), solutions.tolist(), sudoku.held_out_puzzles(4, 3), strict=True
    ):
        assert solution.endswith(sudoku.to_text(grid))
        assert solution.startswith(f"{sudoku.to_text(clues)}=") == has_puzzle
        assert [token == MASK for token in row[: len(puzzle)]] == [character == "_" for character in puzzle]
        assert TOKENIZER.decode(filled, skip_special_tokens=True) == solution
        assert puzzle.count("_") == (16 if has_puzzle else clues.count(0))
        assert filled[len(solution) :] == row[len(solution) :] == [TOKENIZER.eos_token_id] * (not has_puzzle)
    with pytest.raises(ValueError, match="the tokenizer merges several characters"):
        check_characters(texts, train_tokenizer(["1234"] * 20, 259))


def test_moves_may_be_in_another_order() -> None:
    texts = sudoku.held_out_texts(4, "moves", 4)
    ids, solutions = encode_problems(texts, TOKENIZER, None)
    lengths = [len(solution) for _, solution in texts]
    assert len(set(lengths)) > 1
    for row, filled, length in zip(ids.tolist(), solutions.tolist(), lengths, strict=True):
        assert row[17:] == [MASK] * (max(lengths) - 17)
        assert filled[length:] == [TOKENIZER.eos_token_id] * (max(lengths) - length)
    written = solutions.clone()
    written[0, 17:20], written[0, 20:23] = solutions[0, 20:23], solutions[0, 17:20]  # two moves change places
    written[1, 17], written[1, 23] = solutions[1, 23], solutions[1, 17]  # only the rows of two moves change places
    written[2, -1] = MASK

    def generate(inputs: torch.LongTensor, **_: object) -> SimpleNamespace:
        history = torch.stack((inputs, written))
        return SimpleNamespace(sequences=written, history=history, num_forward_passes=1, unmasking_steps=None)

    _, is_solved, _ = decode(SimpleNamespace(generate=generate), ids, solutions, "left to right", 0, 17)
    assert is_solved.tolist() == [True, False, False, True]
    _, is_solved, _ = decode(SimpleNamespace(generate=generate), ids, solutions, "left to right", 0)
    assert is_solved.tolist() == [False, False, False, True]


def test_a_puzzle_is_solved_if_all_cells_are_right() -> None:
    ids, solutions = encode_problems(TEXTS, TOKENIZER, 17)
    given = {}

    def generate(inputs: torch.LongTensor, **settings: object) -> SimpleNamespace:
        given.update(settings)
        sequences = solutions.clone()
        last = (inputs[0] == MASK).nonzero()[-1]
        sequences[0, last] = TOKENIZER("5").input_ids[0]  # a single wrong cell
        halfway = inputs.clone()
        halfway[0, last] = sequences[0, last]  # only the first puzzle takes two steps
        return SimpleNamespace(
            sequences=sequences, history=torch.stack((inputs, halfway, sequences)), num_forward_passes=4,
            unmasking_steps=None,
        )  # fmt: skip

    results, is_solved, _ = decode(SimpleNamespace(generate=generate), ids, solutions, "confidence, refined", 7)
    assert is_solved.tolist() == [False, True, True]
    assert results["solved"] == pytest.approx(2 / 3)
    assert results["passes_per_puzzle"] == pytest.approx(4 / 3 * 2)  # two passes in each step
    fewest = min(puzzle.count("_") for puzzle, _ in TEXTS)
    assert (given["order"], given["do_sample"], given["refine_length"]) == ("confidence", False, fewest // 3)
    assert given["generator"].initial_seed() == 7


def test_decodings_fit_the_model() -> None:
    decoder, encoder, rival = (
        decodings_of({"architecture": architecture, "orders": orders}, [])
        for architecture, orders in (("decoder", "context_first"), ("encoder", "random"), ("decoder", "left_to_right"))
    )
    assert decoder == list(DECODINGS)
    assert set(decoder) - set(encoder) == ONLY_FOR_DECODERS
    assert rival == ["left to right", "left to right, sampled", "left to right, best of 16"]
    settings = {"architecture": "encoder", "orders": "random"}
    assert decodings_of(settings, ["random, speculative", "margin", "confidence"]) == ["confidence", "margin"]


@pytest.mark.parametrize("settings", [{"order": "confidence"}, {"unmasking": "threshold", "threshold": 0.3}])
def test_without_a_cache_each_step_starts_again(settings: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 33, "num_valid_tokens": 32, "hidden_size": 32, "num_attention_heads": 2}
    model = AOGPTForAnyOrderLM(AOGPTConfig(**sizes, num_hidden_layers=2, initializer_range=0.3)).double()
    inputs = torch.randint(32, (3, 16)).masked_fill(torch.rand(3, 16) < 0.8, 32)
    settings |= {"do_sample": False, "return_dict_in_generate": True, "output_history": True}
    states = [inputs]
    while (states[-1] == 32).any():
        states.append(model.generate(states[-1], **settings).history[1])  # the first step
    monkeypatch.setattr(model, "decoding_state_class", LeftToRightContext)
    output = model.generate(inputs, **settings)
    monkeypatch.undo()
    assert torch.equal(output.history, torch.stack(states))
    assert torch.equal(output.sequences, states[-1])
    assert torch.equal(output.unmasking_steps, (torch.stack(states) == 32).sum(dim=0) - 1)
    assert output.num_forward_passes == len(states) - 1
    with_cache = model.generate(inputs, **settings)
    assert not torch.equal(output.sequences, with_cache.sequences)
    most_masks = int((inputs == 32).sum(dim=1).max())
    assert (output.num_forward_passes < most_masks) == ("threshold" in settings)


@pytest.mark.parametrize("order", ["left_to_right", "confidence"])
def test_the_likeliest_of_several_solutions_counts(order: str) -> None:
    ids, solutions = encode_problems(TEXTS, TOKENIZER, 17)
    is_masked = ids == MASK
    wrong = torch.where(is_masked, TOKENIZER("5").input_ids[0], solutions)
    samples = [torch.stack((solutions[0], *wrong[1:])), wrong, torch.stack((wrong[0], *solutions[1:]))]

    def generate(inputs: torch.LongTensor, **settings: object) -> SimpleNamespace:
        history = torch.stack((inputs, samples[0]))
        return SimpleNamespace(
            sequences=samples.pop(0), history=history, num_forward_passes=1, unmasking_steps=None
        )  # fmt: skip

    used: list[str | torch.Tensor] = []

    def score(
        sequences: torch.LongTensor, targets: torch.Tensor, orders: str | torch.Tensor, **_: object
    ) -> SimpleNamespace:
        assert torch.equal(targets, is_masked)
        used.append(orders)
        return SimpleNamespace(log_likelihood=-(sequences != solutions).sum(dim=1).double())

    model = SimpleNamespace(generate=generate, log_likelihood=score)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DECODINGS, "best of 3", {"order": order, "do_sample": True, "best_of": 3})
        results, is_solved, _ = decode(model, ids, solutions, "best of 3", 0)
    assert is_solved.all()
    assert results["passes_per_puzzle"] == 3
    if order == "left_to_right":
        assert used == [order] * 3
    else:  # a random order for each puzzle, the same for all solutions
        check_orders("orders", used[0], *ids.shape)
        assert all(torch.equal(orders, used[0]) for orders in used)
        assert len(used) == 3


def test_seeds_of_a_recipe_are_one_row() -> None:
    decodings = {"solved": 0.5, "passes_per_puzzle": 9.0, "seconds_per_puzzle": 0.01}
    runs = [{"decodings": {"margin": decodings | {"solved": solved}}} for solved in (0.5, 0.75)]
    solved = {"mean": 0.625, "interval": wilson_interval(0.625, 10), "values": [0.5, 0.75]}
    expected = {"solved": solved, "passes per puzzle": 9.0, "ms per puzzle": 10.0}
    assert make_table({"any": runs}, num_puzzles=10) == {"any, margin": expected}


@pytest.mark.usefixtures("datasets_cache")
def test_runs_are_compared(tmp_path: Path) -> None:
    context_first = f'corpus: {SUDOKU}_clues\nsequence_length: 17\norders: context_first\ncontext_marks: "[]"\n'
    settings = {
        "any-0": context_first,
        "any-1": f"{context_first}seed: 1\n",
        "encoder": f"corpus: {SUDOKU}\nsequence_length: 17\narchitecture: encoder\nobjective: masked_diffusion\n",
        "rival": f'corpus: {SUDOKU}_puzzles\nsequence_length: 34\norders: left_to_right\ncontext_marks: "[]"\n',
        "moves": f'corpus: {SUDOKU}_moves\nsequence_length: 54\norders: left_to_right\ncontext_marks: "[]"\n',
    }
    runs, out = (
        train_recipes(tmp_path, {name: SETTINGS + lines for name, lines in settings.items()}),
        tmp_path / "results",
    )
    main([*runs, "--num_puzzles", "4", "--output_dir", str(out)])
    results = read_json(out / "puzzles.json", ("runs", "table"), "eval/studies/sudoku/puzzles.py")
    counts = {name: len(runs) for name, runs in results["runs"].items()}
    assert counts == {"any": 2, "encoder": 1, "rival": 1, "moves": 1}
    table = results["table"]
    of_recipes = {recipe: {name for name in DECODINGS if f"{recipe}, {name}" in table} for recipe in counts}
    assert of_recipes["any"] == set(DECODINGS)
    assert of_recipes["encoder"] == set(DECODINGS) - ONLY_FOR_DECODERS
    assert table["rival, left to right"]["passes per puzzle"] == 16
    missing = table["any, margin"]["passes per puzzle"]
    assert missing == table["encoder, random"]["passes per puzzle"]
    assert missing < table["any, confidence, refined"]["passes per puzzle"] <= missing + 4 * (missing // 3)
    main([runs[0], "--num_puzzles=4", "--decodings", "left to right", "margin", f"--output_dir={out}"])
    fewer = read_json(out / "puzzles.json", ("runs",), "eval/studies/sudoku/puzzles.py")["runs"]["any"][0]["decodings"]
    assert list(fewer) == ["margin", "left to right"]
    assert fewer["margin"]["solved"] == results["runs"]["any"][0]["decodings"]["margin"]["solved"]
    with pytest.raises(SystemExit, match="several have the same seed"):
        main([runs[0], runs[0]])
    with pytest.raises(SystemExit, match="`decodings` must be one of 'confidence'"):
        main([runs[0], "--decodings", "best"])
    with pytest.raises(SystemExit, match="rival supports none of the `decodings`"):
        main([*runs, "--decodings", "margin"])
    with pytest.raises(SystemExit, match=r"error: .*rival"):
        main([str(tmp_path / "rival.yaml")])


@pytest.mark.usefixtures("datasets_cache")
def test_path_star_graphs_are_puzzles_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_star, "NUM_DRAWN", 40)
    lines = f'corpus: {path_star.__name__}:path_star_2_5\nsequence_length: 36\ncontext_marks: "[]"\n'
    (run,) = train_recipes(tmp_path, {"star": SETTINGS + lines})
    main([run, "--num_puzzles", "3", "--output_dir", str(tmp_path / "out")])
    table = read_json(tmp_path / "out" / "puzzles.json", ("table",), "eval/studies/sudoku/puzzles.py")["table"]
    assert table["star, confidence"]["passes per puzzle"] == 5
    with pytest.raises(SystemExit, match="`num_clues` can only be set for Sudoku"):
        main([run, "--num_clues", "3"])


def test_at_least_one_token_is_refined() -> None:
    given, inputs, solutions = {}, torch.tensor([[9, 1, 2]]), torch.tensor([[3, 1, 2]])

    def generate(inputs: torch.LongTensor, **settings: object) -> SimpleNamespace:
        given.update(settings)
        history = torch.stack((inputs, solutions))
        return SimpleNamespace(sequences=solutions, history=history, num_forward_passes=1, unmasking_steps=None)

    decode(SimpleNamespace(generate=generate), inputs, solutions, "confidence, refined", 7)
    assert given["refine_length"] == 1
