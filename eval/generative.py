# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Samples of any-order models over a grid of steps, top-p and temperature, and what a judge says of them.

    python eval/generative.py MODEL [MODEL ...] --output-dir DIR [--judge gpt2-large] [--steps 64 128] ...

Writes DIR/samples (JSON lines, one file for each cell of the grid), results.json, table.md in the layout of the paper's
Table 1, and frontier.png. Cells that are finished are taken as they are when the same command is given again; another
judge judges the same samples.
"""

import itertools
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from tqdm import tqdm
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from eval.frontier import draw_frontier
from eval.judging import Judge, Sample, check_mauve
from eval.metrics.sample_entropy.sample_entropy import distinct, unigram_entropy
from eval.scorers import identity_of_weights
from eval.scoring import progress_interval
from eval.tables import GENERATIVE, GENERATIVE_STEPS, generative_table
from modeling_aogpt.generation_settings import AnyOrderGenerationSettings
from modeling_aogpt.mask_token import load_tokenizer
from training.corpora import keep_text, load_files
from training.errors import errors_in_a_line
from training.files import whole_file, write_json, write_text
from training.hardware import hardware, share_cpus, versions
from training.initialization import load_whole, read_config
from training.options import Parser, check_at_least, option
from training.samples import num_kept

MAX_N = 3


@dataclass
class GenerativeArguments:
    """What to sample, and who judges it."""

    output_dir: str = field(metadata={"help": "Folder for samples and results."})
    steps: list[int] = field(
        default_factory=lambda: list(GENERATIVE_STEPS), metadata={"help": "Steps of the reverse process."}
    )
    top_p: list[float] = field(
        default_factory=list,
        metadata={"help": "Values of top-p, each with each temperature; unless given either, Table 1's three pairs."},
    )
    temperature: list[float] = field(default_factory=list, metadata={"help": "Temperatures."})
    top_p_rule: Literal["inclusive", "exclusive"] = option(
        "inclusive", "Whether the token that crosses top-p is kept; the code behind Table 1 does not (exclusive)."
    )
    schedule: Literal["linear", "cosine"] = option("linear", "How the masked share falls.")
    reveal: Literal["bernoulli", "fixed"] = option("bernoulli", "How many positions a step reveals.")
    num_samples: int = option(64, "Samples of each cell.")
    length: int | None = option(None, "Tokens of a sample; unless given, as many as the model takes.")
    batch_size: int = option(16, "Samples made or judged at once.")
    seed: int = option(0, "Of the samples.")
    dtype: Literal["float32", "bfloat16"] = option("float32", "Of the models' and the judge's weights.")
    judge: str = option("openai-community/gpt2-large", "Any causal language model, by name or folder.")
    reference_texts: list[str] = field(
        default_factory=list, metadata={"help": "Text, JSONL or Parquet files to compute MAUVE against."}
    )

    def __post_init__(self) -> None:
        check_at_least(1, self, "num_samples", "batch_size", "length")
        for (top_p, temperature), steps in itertools.product(self.settings(), self.steps):
            AnyOrderGenerationSettings(num_steps=steps, top_p=top_p, temperature=temperature)  # raises what is wrong

    def settings(self) -> list[tuple[float, float]]:
        """The pairs of top-p and temperature."""
        if not self.top_p and not self.temperature:
            return list(GENERATIVE)
        return list(itertools.product(self.top_p or [1.0], self.temperature or [1.0]))


@dataclass(frozen=True)
class Cell:
    """One point of the grid; all that its samples depend on. `weights` tells them from others of the same name."""

    model: str
    weights: str | None
    steps: int
    top_p: float
    temperature: float
    top_p_rule: str
    schedule: str
    reveal: str
    num_samples: int
    length: int
    batch_size: int
    seed: int
    dtype: str

    def path(self, folder: Path) -> Path:
        model = re.sub(r"[^\w.-]+", "--", self.model).strip("-")
        name = f"steps-{self.steps}_top-p-{self.top_p}_temperature-{self.temperature}.jsonl"
        return folder / "samples" / model / name


def sample_cell(
    cell: Cell, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, machine: dict[str, Any]
) -> None:
    """Writes the samples of a cell: a line of what they are and where they were made, then a line for each."""
    generator = torch.Generator().manual_seed(cell.seed)
    started = time.perf_counter()
    samples: list[Sample] = []
    passes = rows = 0
    starts = range(0, cell.num_samples, cell.batch_size)
    for start in tqdm(starts, desc=str(cell.path(Path()).stem), mininterval=progress_interval(), leave=False):
        output = model.generate(
            max_length=cell.length,
            num_steps=cell.steps,
            top_p=cell.top_p,
            temperature=cell.temperature,
            top_p_rule=cell.top_p_rule if cell.top_p < 1 else None,  # it has nothing to choose
            schedule=cell.schedule,
            reveal=cell.reveal,
            num_return_sequences=min(cell.batch_size, cell.num_samples - start),
            generator=generator,
            return_dict_in_generate=True,
        )
        passes, rows = passes + output.num_forward_passes, rows + output.num_rows
        for ids in output.sequences.tolist():
            kept = without_filling(ids, tokenizer.eos_token_id)
            samples.append(Sample(kept, tokenizer.decode(kept)))
    facts = {
        "cell": asdict(cell),
        "seconds": round(time.perf_counter() - started, 2),
        "num_forward_passes": passes,
        "num_rows": rows,
        **machine,
    }
    lines = [facts, *map(asdict, samples)]
    write_text(cell.path(folder), "".join(json.dumps(line) + "\n" for line in lines))


def without_filling(ids: list[int], end_of_text: int) -> list[int]:
    """The ids up to the first of the end-of-texts that they end with: what follows only fills up."""
    return ids[: num_kept(ids, end_of_text) + 1]


def is_finished(cell: Cell, folder: Path) -> bool:
    """Whether there are samples. Raises a `ValueError` if they were made otherwise."""
    if not cell.path(folder).exists():
        return False
    read_cell(cell, folder)
    return True


def read_cell(cell: Cell, folder: Path) -> tuple[dict[str, Any], list[Sample]]:
    """The facts and samples of a finished cell.

    Raises:
        ValueError: if they were made otherwise.
    """
    lines = cell.path(folder).read_text(encoding="utf-8").splitlines()
    facts = json.loads(lines[0])
    if unlike := {name for name, value in asdict(cell).items() if facts["cell"].get(name) != value}:
        raise ValueError(
            f"{cell.path(folder)} holds samples of another {', '.join(sorted(unlike))}; take another --output-dir, or "
            "delete it."
        )
    return facts, [Sample(**json.loads(line)) for line in lines[1:]]


def judge_cell(
    facts: dict[str, Any],
    samples: Sequence[Sample],
    tokenizer: PreTrainedTokenizerBase,
    judge: Judge,
    references: Sequence[str],
) -> dict[str, Any]:
    cell = facts["cell"]
    sequences = judge.encode(samples, tokenizer)
    entropies = [unigram_entropy(sample.ids) for sample in samples]
    found = {
        **facts,
        "judge": judge.name,
        "judge_weights": judge.weights,
        "perplexity": judge.perplexity(sequences, cell["batch_size"]),
        "entropy": sum(entropies) / len(entropies),
        "entropies": entropies,
    }
    ids = [sample.ids for sample in samples]
    found |= {f"distinct_{n}": distinct(ids, n) for n in range(1, MAX_N + 1)}
    if references:
        found["mauve"] = judge.mauve(sequences, references, cell["seed"])
    return found


def load_model(name: str, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """A model that can be sampled. Raises a `ValueError` for others."""
    read_config(name)
    return load_whole(AutoModel, name, dtype=dtype).to(device).eval()


def make_cells(name: str, arguments: GenerativeArguments) -> Iterator[Cell]:
    """The grid of a model. Raises a `ValueError` if it is none that makes samples of this length."""
    shared = {
        key: getattr(arguments, key)
        for key in ("top_p_rule", "schedule", "reveal", "num_samples", "batch_size", "seed", "dtype")
    }
    longest = read_config(name).max_position_embeddings
    length = arguments.length or longest
    if length > longest:
        raise ValueError(f"length is {length}; {name} takes 1 to {longest} (its max_position_embeddings).")
    weights = identity_of_weights(name)
    for (top_p, temperature), steps in itertools.product(arguments.settings(), arguments.steps):
        yield Cell(name, weights, steps, top_p, temperature, length=length, **shared)


def generative(models: Sequence[str], arguments: GenerativeArguments) -> list[dict[str, Any]]:
    """Makes and judges the samples of all cells; returns what is found of each.

    Raises:
        ValueError: for models or judges that do not exist, or samples that were made otherwise.
    """
    folder, dtype = Path(arguments.output_dir), getattr(torch, arguments.dtype)
    accelerator = Accelerator(cpu=share_cpus())
    if accelerator.num_processes > 1:
        raise ValueError("Samples are made and judged in one process: start it with python, not with a launcher.")
    # Whatever can be wrong is met before hours of sampling.
    texts: list[str] = []
    if arguments.reference_texts:
        texts = list(filter(None, keep_text(load_files(arguments.reference_texts), "text")["text"]))
        check_mauve()
    cells = {name: list(dict.fromkeys(make_cells(name, arguments))) for name in models}
    missing = {name: [cell for cell in cells[name] if not is_finished(cell, folder)] for name in cells}
    judge = Judge(arguments.judge, torch.device("cpu"), dtype)

    machine = {"hardware": hardware(accelerator), "versions": versions()}
    for name in filter(missing.get, missing):
        model, tokenizer = load_model(name, dtype, accelerator.device), load_tokenizer(name)
        for cell in tqdm(missing[name], desc=f"Sampling {name}", unit="cell"):
            sample_cell(cell, model, tokenizer, folder, machine)
        del model  # the judge needs the room
    judge.scorer.model.to(accelerator.device)
    return [
        judge_cell(*read_cell(cell, folder), load_tokenizer(name), judge, texts)
        for name in cells
        for cell in tqdm(cells[name], desc=f"Judging {name}", unit="cell")
    ]


def write_results(results: list[dict[str, Any]], arguments: GenerativeArguments) -> None:
    folder = Path(arguments.output_dir)
    write_json(folder / "results.json", {"arguments": asdict(arguments), "cells": results})
    lines = [*generative_table(results), "", *generative_table(results, "pooled")]
    write_text(folder / "table.md", "\n".join(lines) + "\n")
    with whole_file(folder / "frontier.png") as temporary:
        draw_frontier(results, temporary)


@errors_in_a_line()
def main(argv: list[str]) -> None:
    parser = Parser(GenerativeArguments)
    parser.add_argument("models", nargs="+", help="Folders or Hub names of the models.")
    arguments, others = parser.parse(argv)
    results = generative(others.models, arguments)
    write_results(results, arguments)
    print(*generative_table(results), sep="\n")
    print(f"Written: {arguments.output_dir}/samples, results.json, table.md, frontier.png")


if __name__ == "__main__":
    main(sys.argv[1:])
