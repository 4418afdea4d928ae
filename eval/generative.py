# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Generative perplexity of any-order models for several numbers of steps, values of top-p and temperatures.

    python eval/generative.py MODEL [MODEL ...] --output_dir DIR [--judge gpt2-large] [--steps 64 128] ...
    accelerate launch eval/generative.py MODEL ...

The judge is the causal language model that computes the perplexity of the samples. It does not score the first token
of a sample. A cell is one combination of model, number of steps, top-p and temperature. The command writes to DIR:
samples/ (a file of JSON lines for each cell), results.json, table.md (in the layout of the paper's Table 1) and
frontier.png. If the command is run again with the same DIR, even with another --judge or number of processes, it reuses
the samples in DIR, also those of a stopped run.
"""

import itertools
import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import PartialState
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from common.commands import Options, Parser, one_line_errors, option, progress_bar
from common.files import write_json, write_text
from common.hardware import hardware, versions
from common.models import identity_of_configs, identity_of_weights
from common.processes import check_same_everywhere, start_accelerator, together
from common.reports import Panel, save_panels
from common.results import check_is_no_run, default_length
from eval.journal import Journal, make_generator, name_by_content
from eval.judging import Judge, Sample, distinct, make_samples, unigram_entropy
from eval.tables import GENERATIVE, GENERATIVE_STEPS, generative_table
from modeling_aogpt.generation_config import AnyOrderGenerationConfig
from modeling_aogpt.loading import find_model, load_model, read_config
from modeling_aogpt.tokenization import load_matching_tokenizer, load_tokenizer
from modeling_aogpt.unmasking import SCORE_UNMASKING

MAX_N = 3  # largest n of distinct-n
# Settings that determine the samples of a cell, with the identity of the model's weights, by their JSON text.
Cells = dict[str, dict[str, Any]]


@dataclass
class GenerativeArguments(Options):
    """Options of eval/generative.py."""

    output_dir: Path = field(metadata={"help": "Folder for samples and results."})
    steps: list[int] = option(list(GENERATIVE_STEPS), "Numbers of generation steps.")
    top_p: list[float] = option([], "Values of top-p. Each is combined with every temperature.")
    temperature: list[float] = option(
        [],
        "Temperatures. If neither `temperature` nor `top_p` is set, the pairs (top-p, temperature) of Table 1 are "
        "used. If only one of them is set, the other is 1.",
        least=1e-6,
    )
    top_p_rule: Literal["inclusive", "exclusive"] = option(
        "inclusive",
        "Whether the token at which the cumulative probability reaches top-p is kept (inclusive) or not (exclusive, "
        "as in the paper's Table 1).",
    )
    schedule: Literal["linear", "cosine"] = option("linear", "How the masked fraction decreases over the steps.")
    unmasking: Literal["bernoulli", "fixed_count", "euler", "analytic"] = option(
        "bernoulli", "How a step chooses positions to unmask. euler and analytic need a SEDD model."
    )
    order: str | None = option(
        None, "Order of the positions, such as random or confidence (docs/generation.md). Defaults to the model's."
    )
    block_length: int | None = option(None, "Length of blocks that are filled in one after another.")
    num_samples: int = option(64, "Number of samples for each combination of settings.", least=1)
    length: int | None = option(
        None, "Tokens per sample. Defaults to the run's sequence length or, without one, the model's maximum.", least=1
    )
    batch_size: int = option(16, "Number of samples that are generated or judged at once.", least=1)
    seed: int = option(0, "Seed of the samples.", least=0)
    dtype: Literal["float32", "bfloat16"] = option("float32", "Data type of the weights of models and judge.")
    judge: str = option("openai-community/gpt2-large", "Folder or Hub name of any causal language model.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for (top_p, temperature), steps in itertools.product(self.settings(), self.steps):
            values = {"num_steps": steps, "top_p": top_p, "temperature": temperature}
            AnyOrderGenerationConfig(**values, order=self.order, block_length=self.block_length)  # checks the values
        if self.top_p_rule == "exclusive" and all(top_p == 1 for top_p, _ in self.settings()):
            raise ValueError(
                "`top_p_rule` has no effect without a value of `top_p` below 1. Set `top_p`, or remove `top_p_rule`."
            )

    def settings(self) -> list[tuple[float, float]]:
        """Return the pairs (top-p, temperature) to evaluate."""
        if not self.top_p and not self.temperature:
            return list(GENERATIVE)
        return list(itertools.product(self.top_p or [1.0], self.temperature or [1.0]))


def path_of_samples(cell: dict[str, Any], folder: Path) -> Path:
    """Return the path in `folder` of the file with the samples of a cell."""
    model = re.sub(r"[^\w.-]+", "--", cell["model"]).strip("-")
    name = "steps-{steps}_top-p-{top_p}_temperature-{temperature}.jsonl".format(**cell)
    return folder / "samples" / model / name


def sample_cells(
    cells: Cells, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, journal: Journal
) -> dict[str, tuple[dict[str, Any], list[Sample]]]:
    """Return the settings and costs, and the samples of each cell. The seed of a batch depends on its first index."""
    names = ("order", "block_length", "stride", "suppress_tokens")
    own = {name: getattr(model.generation_config, name) for name in names}

    def sample(key: str, indices: list[int]) -> list[tuple[dict[str, Any], list[float]]]:
        cell, started = cells[key], time.perf_counter()
        given = {name: cell[name] for name in ("order", "block_length") if cell[name] is not None}
        output = model.generate(
            max_length=cell["length"],
            num_steps=cell["steps"],
            top_p_rule=cell["top_p_rule"] if cell["top_p"] < 1 else None,  # not allowed if top_p is 1
            **{name: cell[name] for name in ("top_p", "temperature", "schedule", "unmasking")},
            generation_config=AnyOrderGenerationConfig(**own | given),  # without other settings of the model
            num_return_sequences=len(indices),
            generator=make_generator(cell["seed"], indices[0]),
            return_dict_in_generate=True,
        )
        samples = map(asdict, make_samples(output.sequences.tolist(), tokenizer, model.config))
        costs = [time.perf_counter() - started, output.num_forward_passes, output.num_rows]
        return list(zip(samples, [costs, *[[0, 0, 0]] * (len(indices) - 1)], strict=True))

    sampled = {}
    first, *_ = cells.values()
    sizes, desc = {key: cell["num_samples"] for key, cell in cells.items()}, f"Sampling {first['model']}"
    for key, values in journal.complete(sizes, first["batch_size"], sample, desc=desc, unit="batch").items():
        samples, costs = zip(*values, strict=True)
        seconds, passes, rows = map(sum, zip(*costs, strict=True))
        facts = {"seconds": round(seconds, 2), "num_forward_passes": passes, "num_rows": rows}
        sampled[key] = {"cell": cells[key], **facts}, [Sample(**sample) for sample in samples]
    return sampled


def read_cell(cell: dict[str, Any], folder: Path) -> tuple[dict[str, Any], list[Sample]] | None:
    """Return the settings and costs, and the samples of a cell, or None if they have not been generated yet."""
    path = path_of_samples(cell, folder)
    if not path.exists():
        return None
    lines = path.read_text(encoding="utf-8").splitlines()
    facts = json.loads(lines[0])
    if different := sorted(name for name, value in cell.items() if facts["cell"].get(name) != value):
        raise ValueError(
            f"The samples in {path} were generated with another value of {', '.join(different)}. Set another "
            "`output_dir`, or delete the file."
        )
    return facts, [Sample(**json.loads(line)) for line in lines[1:]]


def judge_cell(
    facts: dict[str, Any], samples: Sequence[Sample], tokenizer: PreTrainedTokenizerBase, judge: Judge
) -> dict[str, Any]:
    """Return the settings and costs in `facts`, with the perplexity, entropies and distinct-n of the samples."""
    entropies = [unigram_entropy(sample.ids) for sample in samples]
    ids, cell = [sample.ids for sample in samples], facts["cell"]
    try:
        perplexity = judge.perplexity(judge.encode(samples, tokenizer), cell["batch_size"])
    except ValueError as error:
        name = ", ".join(f"{key} {cell[key]}" for key in ("model", "steps", "top_p", "temperature"))
        raise ValueError(f"The samples of {name} cannot be judged: {error}") from error
    return {
        **facts,
        "judge": judge.name,
        "judge_weights": judge.weights,
        "perplexity": perplexity,
        "entropy": sum(entropies) / len(entropies),
        "entropies": entropies,
        **{f"distinct_{n}": distinct(ids, n) for n in range(1, MAX_N + 1)},
    }


def _make_cells(name: str, arguments: GenerativeArguments) -> Cells:
    """Return the cells of a model. Raise a `ValueError` if the model does not support `length` or `unmasking`."""
    config = read_config(name)
    load_matching_tokenizer(config, name)  # raises a `ValueError` if the tokenizer does not match
    if arguments.unmasking in SCORE_UNMASKING and config.target_injection != "sigma":
        raise ValueError(
            f"`unmasking` ({arguments.unmasking}) needs a SEDD model, but {name} predicts no score. Set `unmasking` to "
            "bernoulli or fixed_count, or use a SEDD model."
        )
    longest = config.max_position_embeddings
    length = arguments.length or default_length(name, config)
    if length > longest:
        raise ValueError(
            f"`length` must be at most {longest}, the `max_position_embeddings` of {name}, but is {length}. "
            "Decrease `length`."
        )
    varied = ("output_dir", "steps", "top_p", "temperature", "judge")
    of_model = {"model": name, "weights": identity_of_weights(name), "configs": identity_of_configs(name)}
    shared = {key: value for key, value in asdict(arguments).items() if key not in varied} | {"length": length}
    cells = (
        of_model | {"steps": steps, "top_p": top_p, "temperature": temperature} | shared
        for (top_p, temperature), steps in itertools.product(arguments.settings(), arguments.steps)
    )
    return {json.dumps(cell): cell for cell in cells}


def generative(models: Sequence[str], arguments: GenerativeArguments) -> list[dict[str, Any]]:
    """Generate the samples that are missing, judge all samples, and return a dictionary of results for each cell."""
    folder, dtype = arguments.output_dir, getattr(torch, arguments.dtype)
    check_is_no_run(folder)
    accelerator = start_accelerator()
    # Errors in settings, existing samples or the judge are found here, before sampling, which may take hours.
    cells = {name: _make_cells(name, arguments) for name in models}
    sampled = {key: read_cell(cell, folder) for name in cells for key, cell in cells[name].items()}
    missing = {name: {key: cell for key, cell in cells[name].items() if sampled[key] is None} for name in cells}
    check_same_everywhere(missing=sum(map(len, missing.values())))
    judge = Judge(find_model(arguments.judge), torch.device("cpu"), dtype)
    journal = Journal(name_by_content(folder / ".unfinished", ()))

    machine = {"hardware": hardware(accelerator), "versions": versions()}
    for name in filter(missing.get, missing):
        model, tokenizer = load_model(name, dtype=dtype).to(accelerator.device), load_tokenizer(name)
        new = sample_cells(missing[name], model, tokenizer, journal)
        sampled |= {key: (facts | machine, samples) for key, (facts, samples) in new.items()}
        with together(accelerator):
            for key, cell in missing[name].items() if accelerator.is_main_process else ():
                lines = [sampled[key][0], *map(asdict, sampled[key][1])]
                write_text(path_of_samples(cell, folder), "".join(json.dumps(line) + "\n" for line in lines))
        del model  # frees memory for the judge
    journal.remove()
    judge.scorer.model.to(accelerator.device)
    return [
        judge_cell(*sampled[key], load_tokenizer(name), judge)
        for name in cells
        for key in progress_bar(
            cells[name], desc=f"Judging {name}", unit="cell", disable=not accelerator.is_main_process
        )
    ]


def draw_frontier(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot generative perplexity against the mean unigram entropy of the samples.

    There is one line for each model and number of steps. Each point of a line is a pair of top-p and temperature.
    """
    panels = []
    for average, title in (("mean", "mean over samples"), ("pooled", "pooled over tokens")):
        lines = defaultdict(list)
        for result in results:
            name = f"{result['cell']['model']}, {result['cell']['steps']} steps"
            lines[name].append((result["entropy"], result["perplexity"][average]))
        axes = "mean unigram entropy of a sample (nats)", f"generative perplexity by {results[0]['judge']}"
        panels.append(Panel(title, *axes, lines, has_log_x=False))
    save_panels(panels, path)


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(GenerativeArguments)
    parser.add_argument("models", nargs="+", help="Folders of models or runs, or Hub names.")
    arguments, others = parser.parse(argv)
    results = generative([find_model(name) for name in others.models], arguments)
    if PartialState().is_main_process:
        folder, table = arguments.output_dir, generative_table(results)
        write_json(folder / "results.json", {"arguments": asdict(arguments), "cells": results})
        write_text(folder / "table.md", f"{table}\n\n{generative_table(results, 'pooled')}\n")
        draw_frontier(results, folder / "frontier.png")
        print(table, f"Written: {folder}/samples, results.json, table.md, frontier.png", sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
