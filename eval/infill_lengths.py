# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
How often the length of a gap is found, and how often the gap is filled in as in the original.

    python eval/infill_lengths.py RUN [--num_documents N] [--output_dir DIR]

RUN is a finished run on padded documents, such as runs/quickstart. A random span of each held-out document is replaced
by a gap of unknown length. Writes results.json and report.md, and prints the latter.
"""

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from common.commands import Options, Parser, one_line_errors, option
from common.data import load_data
from common.files import write_json, write_text
from common.hardware import versions
from common.models import load_model
from common.reports import markdown_table
from common.results import read_finished_run
from common.tokenization import num_unpadded
from modeling_aogpt import AOGPTForAnyOrderLM

GREEDY = {"order": "confidence", "do_sample": False}


@dataclass
class LengthArguments(Options):
    """Options of eval/infill_lengths.py."""

    num_documents: int = option(300, "Number of held-out documents.", least=1)
    max_gap: int = option(4, "Largest number of tokens to remove.", least=1)
    max_length: int = option(8, "Largest number of tokens that a gap may have.", least=1)
    seed: int = option(0, "Seed of the gaps and of random orders.")
    output_dir: Path = option(Path("runs/infill_lengths"), "Folder for results.json and report.md.")


@dataclass
class Gap:
    """
    A document with a gap.

    Attributes:
        ids: The document without padding.
        start: Position of the first token to remove.
        length: Number of tokens to remove.
    """

    ids: list[int]
    start: int
    length: int

    def with_masks(self, count: int, mask: int) -> list[int]:
        """Return the document with `count` masks instead of the removed tokens."""
        return [*self.ids[: self.start], *[mask] * count, *self.ids[self.start + self.length :]]


def make_gaps(documents: list[list[int]], count: int, max_gap: int, seed: int) -> list[Gap]:
    """Return a gap in each of the first `count` documents of two or more tokens, of which at least one remains."""
    rng, gaps = random.Random(seed), []
    for ids in documents:
        if len(ids) > 1 and len(gaps) < count:
            length = rng.randint(1, min(max_gap, len(ids) - 1))
            gaps.append(Gap(ids, rng.randint(0, len(ids) - length), length))
    return gaps


class LengthFinder:
    """Ways to choose the length of a gap from 1 ... `max_length` in documents that are padded to `padded_length`."""

    def __init__(self, model: AOGPTForAnyOrderLM, padded_length: int, max_length: int, seed: int) -> None:
        self.model, self.padded_length, self.max_length = model, padded_length, max_length
        self.generator = torch.Generator().manual_seed(seed)

    def methods(self) -> dict[str, Callable[[Gap], int]]:
        """Return functions from a gap to a length, by name."""
        return {
            "text around the gap": self.by_surroundings,
            "text around the gap, 4 random orders": partial(self.by_surroundings, orders="random", num_orders=4),
            "filled gap, log-probability": partial(self.by_filling, per_token=False),
            "filled gap, log-probability per token": partial(self.by_filling, per_token=True),
        }

    def by_surroundings(self, gap: Gap, **scoring: Any) -> int:
        """Choose the length that makes the tokens around the gap the likeliest, as `infill` does."""
        ids = torch.tensor(gap.with_masks(1, self.model.config.mask_token_id))
        output = self.model.infill(
            ids, range(1, self.max_length + 1), self.padded_length, generator=self.generator, **scoring, **GREEDY
        )
        return int(output.lengths)

    def by_filling(self, gap: Gap, per_token: bool) -> int:
        """Choose the length whose filling has the highest log-probability, in total or per token."""
        counts = range(1, min(self.max_length, self.padded_length - len(gap.ids) + gap.length) + 1)
        output = self.model.generate(
            torch.tensor([self.pad(gap.with_masks(count, self.model.config.mask_token_id)) for count in counts]),
            return_dict_in_generate=True,
            **GREEDY,
        )
        scores = output.token_logprobs.sum(dim=1)
        return counts[int((scores / torch.tensor(counts) if per_token else scores).argmax())]

    def pad(self, ids: list[int]) -> list[int]:
        """Return a document with its padding."""
        return ids + [self.model.config.eos_token_id] * (self.padded_length - len(ids))

    def is_restored(self, gap: Gap, length: int) -> bool:
        """Return whether `length` masks in the gap, filled in with the likeliest tokens, give the original text."""
        ids = self.pad(gap.with_masks(length, self.model.config.mask_token_id))
        return self.model.generate(torch.tensor([ids]), **GREEDY)[0].tolist() == self.pad(gap.ids)


def evaluate(finder: LengthFinder, gaps: list[Gap]) -> dict[str, dict[str, float]]:
    """Return, for each method, the fraction of gaps whose length is found, and that of gaps that are restored."""
    results = {}
    known: dict[str, Callable[[Gap], int]] = {"known": lambda gap: gap.length, "always 1": lambda gap: 1}
    for name, choose in (known | finder.methods()).items():
        chosen = [choose(gap) for gap in gaps]
        is_right = [length == gap.length for length, gap in zip(chosen, gaps, strict=True)]
        restored = [
            right and finder.is_restored(gap, length) for right, length, gap in zip(is_right, chosen, gaps, strict=True)
        ]
        results[name] = {"length": sum(is_right) / len(gaps), "restored": sum(restored) / len(gaps)}
    return results


def make_report(results: dict[str, Any]) -> str:
    """Return the report in Markdown."""
    rows = [
        (name, f"{scores['length']:.1%}", f"{scores['restored']:.1%}") for name, scores in results["methods"].items()
    ]
    return (
        f"Gaps of 1 to {results['max_gap']} tokens in {results['gaps']} held-out documents of {results['run']}, with "
        f"lengths from 1 to {results['max_length']} to choose from. Gaps are filled in with the likeliest tokens.\n\n"
        + markdown_table(["length chosen by", "right length", "original restored"], rows, align="lrr")
        + "\n"
    )


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(LengthArguments)
    parser.add_argument("run", type=Path, help="Folder of a finished run on padded documents.")
    arguments, others = parser.parse(argv)
    run, data = read_finished_run(others.run)
    if data.packing != "documents":
        raise ValueError(f"{others.run} was trained on packed text. Use a run with `packing=documents`.")
    model = load_model(others.run / "model", dtype=torch.float32)
    rows = load_data(data).validation["input_ids"]
    documents = [list(ids[: num_unpadded(ids, model.config.eos_token_id)]) for ids in rows]
    gaps = make_gaps(documents, arguments.num_documents, arguments.max_gap, arguments.seed)
    finder = LengthFinder(model, data.sequence_length, arguments.max_length, arguments.seed)
    results = {
        "run": others.run.name,
        "training_steps": run["steps"],
        "gaps": len(gaps),
        "max_gap": arguments.max_gap,
        "max_length": arguments.max_length,
        "methods": evaluate(finder, gaps),
        "versions": versions(),
    }
    report = make_report(results)
    write_json(arguments.output_dir / "results.json", results)
    write_text(arguments.output_dir / "report.md", report)
    print(report)


if __name__ == "__main__":
    main(sys.argv[1:])
