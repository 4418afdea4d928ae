# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Fraction of held-out puzzles that models solve, by the order in which they fill in the missing tokens.

    python eval/studies/sudoku/puzzles.py RUN [RUN ...] [--num_puzzles N] [--output_dir DIR]

RUN is the folder of a finished run of training/pretrain.py, of a decoder or an encoder, on a corpus of Sudoku or of
path-star graphs. Runs that differ only in the seed form a recipe. Their folders must have the same name, except for
`-SEED` at the end. The command writes puzzles.json, and a report on all JSON files in the folder (see report.py).
"""

import re
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import torch
from transformers import PreTrainedTokenizerBase

from common.commands import Options, Parser, command_line, one_line_errors, option
from common.corpora import find_maker
from common.files import make_folder, write_json
from common.hardware import default_device, device_name, versions
from common.results import check_is_no_run
from eval.studies.corpora import path_star
from eval.studies.runner.recipes import encode_problems, group_by_recipe, read_run, summarize_fractions
from eval.studies.runner.report import write_report
from eval.studies.sudoku import corpus as sudoku
from modeling_aogpt.decoding_state import CachedDecodingState, QueryResult
from modeling_aogpt.generation import AnyOrderGenerationOutput
from modeling_aogpt.loading import Model, load_model
from modeling_aogpt.orders import random_orders
from modeling_aogpt.tokenization import load_tokenizer
from modeling_aogpt.validation import check_choice

# Arguments of `generate`, by name. By default, one token is filled in per step, and it is the likeliest one. Two keys
# are not arguments of `generate`: `best_of` is the number of generated solutions, of which the likeliest counts (see
# `likeliest`), and without `has_cache`, each step reads all known tokens again (see `LeftToRightContext`).
DECODINGS: dict[str, dict[str, Any]] = {
    "confidence": {"order": "confidence"},
    "margin": {"order": "margin"},
    "entropy": {"order": "entropy"},
    **{f"threshold {value}": {"unmasking": "threshold", "threshold": value} for value in (0.8, 0.9, 0.95, 0.98, 0.99)},
    "confidence, no cache": {"has_cache": False, "order": "confidence"},
    "threshold 0.9, no cache": {"has_cache": False, "unmasking": "threshold", "threshold": 0.9},
    "confidence, refined": {"order": "confidence", "refine_rounds": 4, "refine_selection": "least_likely"},
    "confidence, sampled": {"order": "confidence", "do_sample": True},
    "confidence, best of 16": {"order": "confidence", "do_sample": True, "best_of": 16},
    "random": {"order": "random"},
    "random, sampled": {"order": "random", "do_sample": True},
    "random, speculative": {"order": "random", "do_sample": True, "strategy": "speculative"},
    "left to right": {"order": "left_to_right"},
    "left to right, sampled": {"order": "left_to_right", "do_sample": True},
    "left to right, best of 16": {"order": "left_to_right", "do_sample": True, "best_of": 16},
}
# Names of the corpora of puzzles.
CORPORA = [
    f"{module.__name__}:{name}"
    for module in (sudoku, path_star)
    for name, value in vars(module).items()
    if isinstance(value, partial)
]


@dataclass
class PuzzleArguments(Options):
    """Options of eval/studies/sudoku/puzzles.py."""

    num_puzzles: int = option(500, "Number of puzzles.", least=1)
    num_clues: int | None = option(
        None,
        "Number of clues in Sudoku. By default, puzzles are minimal: each clue is needed for a unique solution.",
        least=1,
    )
    decodings: list[str] = option(
        [], f"Decoding methods, from {', '.join(map(repr, DECODINGS))}; by default all that are possible for the model."
    )
    seed: int = option(0, "Seed of random orders and sampled tokens.")
    output_dir: Path = option(Path("runs/puzzles"), "Folder for puzzles.json and the report.")


# ----------------------------------------------------------------------------------------------------------- decoding


def solve(run: dict[str, Any], options: PuzzleArguments) -> dict[str, dict[str, float]]:
    """Solve the held-out puzzles with each decoding method, and return the results by method."""
    settings, folder = run["arguments"], Path(run["run"]) / "model"
    corpus = settings["corpus"][0]
    texts = make_puzzles(corpus, options.num_puzzles, options.num_clues)
    model, tokenizer = load_model(folder, dtype=torch.float32).to(default_device()), load_tokenizer(folder)
    check_characters(texts, tokenizer)
    problems = encode_problems(texts, tokenizer, None if "=" in texts[0][0] else settings["sequence_length"])
    inputs, solutions = (ids.to(model.device) for ids in problems)
    moves_start = texts[0][0].index("=") + 1 if corpus.endswith("_moves") else None
    measured = {}
    for name in decodings_of(settings, options.decodings):
        measured[name], is_solved, _ = decode(model, inputs, solutions, name, options.seed, moves_start)
        print(f"{run['run']} {name}: {int(is_solved.sum())} of {len(texts)} puzzles", flush=True)
    return measured


@cache  # all runs solve the same puzzles
def make_puzzles(corpus: str, num_puzzles: int, num_clues: int | None) -> list[tuple[str, str]]:
    """Return the held-out puzzles of a corpus: texts with `_` for each missing character, and the texts filled in."""
    options = find_maker(corpus).args
    if corpus.startswith(sudoku.__name__):
        return sudoku.held_out_texts(*options, num_puzzles, num_clues)
    if num_clues is not None:
        raise ValueError(f"`num_clues` can only be set for Sudoku, but the corpus is {corpus!r}. Remove it.")
    return path_star.held_out_texts(*options, num_puzzles)


def decodings_of(arguments: dict[str, Any], chosen: list[str]) -> list[str]:
    """Return the names of the decoding methods that are possible for a run with these training arguments.

    If `chosen` is not empty, the others are left out.
    """
    possible = {name: settings for name, settings in DECODINGS.items() if not chosen or name in chosen}
    if arguments["orders"] == "left_to_right":
        return [name for name, settings in possible.items() if settings.get("order") == "left_to_right"]
    is_decoder = arguments["architecture"] == "decoder"
    only_for_decoders = {"strategy", "has_cache"}
    return [name for name, settings in possible.items() if is_decoder or only_for_decoders.isdisjoint(settings)]


def check_characters(texts: list[tuple[str, str]], tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a `ValueError` unless each character of the solutions is one token."""
    solutions = [solution for _, solution in texts]
    encoded = tokenizer(solutions, add_special_tokens=False)["input_ids"]
    if list(map(len, encoded)) != list(map(len, solutions)):
        raise ValueError(
            "Each character must be one token, but the tokenizer merges several characters into one token. Train the "
            "model with `vocab_size` 257 (256 bytes and end-of-text)."
        )


def decode(
    model: Model,
    inputs: torch.LongTensor,
    solutions: torch.LongTensor,
    name: str,
    seed: int,
    moves_start: int | None = None,
) -> tuple[dict[str, float], torch.BoolTensor, torch.LongTensor]:
    """Fill in the masks of all puzzles.

    A puzzle is solved if all tokens are right. If solutions are moves, which start at the position `moves_start`, the
    moves may be in another order.

    Returns:
        The results of the decoding, whether each puzzle is solved (puzzles,), and the step at which each token was
        filled in (puzzles, n), which is negative for tokens of the puzzle.
    """
    generator = torch.Generator().manual_seed(seed)
    settings = {"do_sample": False} | DECODINGS[name]
    is_masked = inputs != solutions
    if "refine_rounds" in settings:
        settings["refine_length"] = max(int(is_masked.sum(dim=1).min()) // 3, 1)
    settings |= {"return_dict_in_generate": True, "output_history": True}
    best_of, has_cache = settings.pop("best_of", 1), settings.pop("has_cache", True)
    started = time.perf_counter()
    with nullcontext() if has_cache else patch.object(model, "decoding_state_class", LeftToRightContext):
        outputs = [model.generate(inputs, generator=generator, **settings) for _ in range(best_of)]
    chosen = likeliest(model, outputs, is_masked, settings["order"], generator) if best_of > 1 else outputs[0].sequences
    chosen, solutions = chosen.cpu(), solutions.cpu()  # waits for a GPU, so the time is that of the whole computation
    seconds = time.perf_counter() - started
    if moves_start is not None:
        chosen, solutions = (_sort_moves(ids, moves_start) for ids in (chosen, solutions))
    is_solved = (chosen == solutions).all(dim=1)
    results = {
        "solved": is_solved.double().mean().item(),
        "passes_per_puzzle": sum(map(passes_per_puzzle, outputs)),
        "seconds_per_puzzle": round(seconds / len(inputs), 5),
    }
    return results, is_solved, outputs[0].unmasking_steps


class LeftToRightContext(CachedDecodingState):
    """Decoding state of a decoder that reads all known tokens again in each step, from left to right."""

    def query(self, num_queries: torch.LongTensor) -> QueryResult:
        """Predict masked ranks (see [`DecodingState.query`])."""
        ranks = torch.arange(self.ids.shape[1], device=self.ids.device)
        is_context = self.ranks_between(torch.zeros_like(self.num_context), self.num_context)
        self.reorder(torch.where(is_context, self.orders, len(ranks) + ranks).argsort(dim=1))
        self.num_cached.zero_()
        return super().query(num_queries)


def _sort_moves(sequences: torch.LongTensor, start: int) -> torch.LongTensor:
    """Return the moves (three tokens each) of each sequence (puzzles, n) as numbers, in increasing order."""
    moves = sequences[:, start:].unflatten(1, (-1, 3))
    return (moves[..., 0] << 40 | moves[..., 1] << 20 | moves[..., 2]).sort(dim=1).values


def likeliest(
    model: Model,
    outputs: list[AnyOrderGenerationOutput],
    is_masked: torch.BoolTensor,
    order: str,
    generator: torch.Generator,
) -> torch.LongTensor:
    """Return, for each puzzle, the sequence with the highest log p(missing tokens | puzzle) among all outputs.

    All candidates of a puzzle are scored in the same order: from left to right, or in a random order.
    """
    candidates = torch.stack([output.sequences for output in outputs])
    orders = "left_to_right" if order == "left_to_right" else random_orders(*is_masked.shape, generator=generator)
    scores = [
        model.log_likelihood(sequences, targets=is_masked, orders=orders, generator=generator).log_likelihood
        for sequences in candidates
    ]
    return candidates[torch.stack(scores).argmax(dim=0), torch.arange(len(is_masked), device=is_masked.device)]


def passes_per_puzzle(output: AnyOrderGenerationOutput) -> float:
    """Return the mean number of passes of a puzzle. A puzzle takes part in the passes of the steps that change it."""
    num_steps = (output.history[1:] != output.history[:-1]).any(dim=2).sum(dim=0).double().mean().item()
    return num_steps * output.num_forward_passes / (len(output.history) - 1)


def make_table(recipes: dict[str, list[dict[str, Any]]], num_puzzles: int) -> dict[str, dict[str, Any]]:
    """Return a row for each recipe and decoding method, with means over the runs."""
    table = {}
    for recipe, runs in recipes.items():
        for name in runs[0]["decodings"]:
            measured = [run["decodings"][name] for run in runs]
            table[f"{recipe}, {name}"] = {
                "solved": summarize_fractions([values["solved"] for values in measured], num_puzzles),
                "passes per puzzle": fmean(values["passes_per_puzzle"] for values in measured),
                "ms per puzzle": 1000 * fmean(values["seconds_per_puzzle"] for values in measured),
            }
    return table


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(PuzzleArguments)
    parser.add_argument("runs", nargs="+", type=Path, help="Folders of finished runs on a corpus of puzzles.")
    options, others = parser.parse(argv)
    for name in options.decodings:
        check_choice("decodings", name, DECODINGS)
    runs = [read_run(folder, CORPORA) for folder in others.runs]
    recipes = group_by_recipe(runs)
    puzzles = {re.sub("_(clues|puzzles|moves)$", "", run["arguments"]["corpus"][0]) for run in runs}
    if len(puzzles) > 1:
        raise ValueError(
            f"The runs are about different puzzles: {', '.join(sorted(puzzles))}. Call the command once each."
        )
    for run in runs:
        if not decodings_of(run["arguments"], options.decodings):
            raise ValueError(f"{run['run']} supports none of the `decodings` ({', '.join(options.decodings)}).")
    folder = options.output_dir
    check_is_no_run(folder)
    with make_folder(folder):  # first, so that a wrong folder is an error before the measurements
        for run in runs:
            run["decodings"] = solve(run, options)
    device = default_device()
    results = {
        "title": f"Solved puzzles ({puzzles.pop().rpartition(':')[2]})",
        "table": make_table(recipes, options.num_puzzles),
        "plotted": ["solved"],
        "command": command_line(__file__, argv),
        **{name: getattr(options, name) for name in ("num_puzzles", "num_clues", "seed")},
        "runs": recipes,
        "gpu": None if device.type == "cpu" else device_name(device),
        "num_threads": torch.get_num_threads(),
        "versions": versions(),
    }
    write_json(folder / "puzzles.json", results)
    write_report(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
