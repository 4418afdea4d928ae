# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Zero-shot perplexity and bits per byte of a model, left to right and in random orders.

    python eval/zero_shot.py MODEL --text_file FILE [...]
    python eval/zero_shot.py MODEL --datasets lambada wikitext2 ptb wikitext103 lm1b [--protocol clean] [--data_dir DIR]
    accelerate launch eval/zero_shot.py MODEL ...

MODEL is an AO-GPT or sigma-GPT, an encoder-only masked diffusion model, or any causal language model of Transformers.
The command writes results.json to --output_dir. If a run was stopped, the same command continues it. Bits per byte
assume that the tokenizer is lossless, as byte-level BPE is. Each end-of-text counts as one byte. The columns of the
printed table are `COLUMNS` in eval/tables.py.
"""

import hashlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from common.commands import Options, Parser, one_line_errors, option
from common.data_arguments import SampleBy
from common.encoding import encode_documents
from common.files import write_json
from common.hardware import hardware, versions
from common.models import check_own_tokenizer, identity_of_configs, identity_of_weights, longest_sequence
from common.packing import leave_out_long, pad, total
from common.processes import in_turn, start_accelerator
from common.results import check_is_no_run, default_length, settings_of_run
from common.text_files import check_sample_by, find_files, kind_of, load_files
from eval.estimates import bits_per_byte_over, perplexity_over
from eval.journal import Journal, name_by_content, score_sequences
from eval.protocols import (
    EVALUATION_SETS,
    PUBLISHED_LENGTH,
    cut_into_sequences,
    load_texts,
    published_precisions,
    released_subset,
)
from eval.scorers import MEASURES, RANDOM_MEASURES, AnyOrderScorer, CausalScorer, ModelScorer, load_scorer
from eval.tables import paper_table, zero_shot_table
from modeling_aogpt.loading import find_model
from modeling_aogpt.tokenization import load_tokenizer
from modeling_aogpt.validation import check_choice, check_even, check_integer

TEXT_FILES = "text files"


@dataclass
class ScoringArguments(Options):
    """Options of eval/zero_shot.py."""

    text_file: list[str] = option(
        [], "Text, JSONL, CSV or Parquet files, which may be compressed (.xz, .gz, .bz2, .zst, .zip), or glob patterns."
    )
    text_column: str | None = option(
        None, "Column of the documents, if files have columns. Defaults to that of the run, or text.", needs="text_file"
    )
    sample_by: SampleBy | None = option(
        None, "Part of a plain text file that is one document. Defaults to that of the run, or line.", needs="text_file"
    )
    packing: Literal["packed", "documents"] | None = option(
        None,
        "packed: concatenate the documents of text files, and cut the result into sequences. documents: one document "
        "per sequence, padded with end-of-text. Defaults to that of the run, or packed.",
        needs="text_file",
    )
    datasets: list[str] = option([], f"Benchmark datasets to score: {', '.join(EVALUATION_SETS)}.")
    protocol: Literal["published", "clean"] = option(
        "published", "published: cut datasets into sequences as for the paper's tables. clean: score every token once."
    )
    released_subset: bool = option(
        False, "Score random orders only on the sequences that AO-GPT's released script scores (128, or all of PTB)."
    )
    data_dir: str | None = option(None, "Folder with local copies of datasets; defaults to the Hub.", needs="datasets")
    split: str | None = option(None, "Split of all datasets. Defaults to that of published tables.", needs="datasets")
    sequence_length: int | None = option(
        None,
        "Number of tokens in a sequence. Defaults to the run's value or, for other models, to the model's maximum; for "
        "datasets, at most 1024.",
    )
    tokenizer: str | None = option(None, "Folder or Hub name of the tokenizer. Defaults to the model's.")
    measures: list[str] = option(
        [], f"Kinds of log-likelihood: {', '.join(MEASURES)}. Defaults to the first two; for an encoder, to any_order."
    )
    num_orders: int = option(1, "Number of random orders (for an encoder: estimates) per sequence.", least=1)
    ensemble_size: int = option(8, "Number of orders of each context for `ensemble` (Eq. 4).", least=2)
    num_ranks: int = option(
        8, "Even number of random contexts from which `ensemble` is estimated. 0: compute it at all ranks.", least=0
    )
    num_times: int = option(32, "Even number of diffusion times from which an encoder's bound is estimated.", least=2)
    seed: int = option(0, "Seed of the random orders.", least=0)
    tokens_per_batch: int = option(16384, "Number of tokens in a forward pass of a process.", least=1)
    dtype: Literal["float32", "bfloat16"] = option("float32", "Data type of the weights.")
    mixed_precision: Literal["no", "bf16"] | None = option(
        None, "no: compute in `dtype`. bf16: autocast to bfloat16. Defaults to the setting of the protocol."
    )
    output_dir: Path | None = option(None, "Folder for results.json. Defaults to a new folder in runs/zero_shot/.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_even("num_times", self.num_times)
        if self.num_ranks:
            check_even("num_ranks", self.num_ranks)
        if bool(self.text_file) == bool(self.datasets):
            given = "both are" if self.text_file else "neither is"
            raise ValueError(f"Set either `text_file` or `datasets`, but not both ({given} set).")
        if self.released_subset and not self.is_published:
            raise ValueError(
                "`released_subset` has no effect without `datasets` and `protocol='published'`. Set these, or remove "
                "`released_subset`."
            )
        for name, allowed in (("datasets", EVALUATION_SETS), ("measures", MEASURES)):
            for value in getattr(self, name):
                check_choice(name, value, allowed)

    @property
    def is_published(self) -> bool:
        """Whether the texts are cut, and the precision chosen, as for the paper's tables."""
        return bool(self.datasets) and self.protocol == "published"


def zero_shot(
    model_name: str,
    arguments: ScoringArguments,
    journal_folder: Path | None = None,
    output: Path | None = None,
    identity: str | None = None,
) -> dict[str, Any]:
    """Evaluate a model, and return the results, which are also written to the file `output`.

    `journal_folder` keeps finished batches until the results are written (see `Journal`). Its name gets a hash of the
    revision, configurations and sequences. `identity` is the result of `identity_of_weights`, by default computed here.
    """
    started = time.perf_counter()
    accelerator = start_accelerator()
    identity = identity or identity_of_weights(model_name)
    weights, revision = (identity, None) if Path(model_name).is_dir() else (None, identity)
    settings = {name: getattr(arguments, name) for name in ("ensemble_size", "num_ranks", "num_times")}
    scorer = load_scorer(model_name, getattr(torch, arguments.dtype), accelerator.device, revision, **settings)
    precisions = _choose_precisions(scorer, arguments)
    tokenizer = _load_tokenizer(model_name, scorer, arguments)
    length = choose_length(scorer.model, arguments, default_length(model_name, scorer.model.config))
    if isinstance(scorer, CausalScorer):
        if arguments.is_published:  # the protocol does not score the first token of a sequence
            check_integer("sequence_length", length, least=2)
        else:
            scorer.start_id = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    with in_turn(accelerator):
        texts, is_causal = {}, isinstance(scorer, CausalScorer)
        for name, documents, facts in _load_texts(arguments, settings_of_run(model_name)):
            how = facts.get("packing", arguments.protocol)
            sequences, counts = _cut(documents, how, tokenizer, length, is_causal, facts.get("context_marks"))
            texts[name] = sequences, facts | counts
    ids = (one["input_ids"] for sequences, _ in texts.values() for one in sequences)
    content = chain([revision, identity_of_configs(model_name)], ids)
    journal = Journal(journal_folder and name_by_content(journal_folder, content))
    results = {
        "model": model_name,
        "revision": revision,
        "weights": weights,
        "model_type": scorer.model.config.model_type,
        "num_parameters": scorer.model.num_parameters(),
        "tokenizer": {"name": arguments.tokenizer or model_name, "num_ids": tokenizer.mask_token_id},
        "protocol": arguments.protocol if arguments.datasets else "clean",
        "sequence_length": length,
        "mixed_precision": precisions,
        "published_precision": published_precisions(scorer.model.config),
        "arguments": asdict(arguments),
        "datasets": {
            name: facts | _score_text(name, sequences, scorer, precisions, length, arguments, journal)
            for name, (sequences, facts) in texts.items()
        },
        "seconds": round(time.perf_counter() - started, 1),
        "hardware": hardware(accelerator),
        "versions": versions(),
    }
    if accelerator.is_main_process and output is not None:
        write_json(output, results)
    journal.remove()
    return results


def _choose_precisions(scorer: ModelScorer, arguments: ScoringArguments) -> dict[str, str]:
    """Return the measures to compute, each with its mixed precision.

    Raise a `ValueError` if the model does not support a measure, or if no measure uses an option that is set.
    """
    for measure in arguments.measures:
        check_choice("measures", measure, scorer.measures, f" for a model of type {scorer.model.config.model_type}")
    measures = arguments.measures or scorer.default_measures
    is_encoder = isinstance(scorer, AnyOrderScorer) and scorer.is_encoder
    measures_of_options = dict.fromkeys(("num_orders", "seed"), RANDOM_MEASURES)
    measures_of_options |= dict.fromkeys(("ensemble_size", "num_ranks"), ("ensemble",))
    measures_of_options |= {"released_subset": ("any_order",), "num_times": ("any_order",) if is_encoder else ()}
    for name, used_by in measures_of_options.items():
        if getattr(arguments, name) != getattr(ScoringArguments, name) and not set(used_by) & set(measures):
            raise ValueError(
                f"`{name}` has no effect, because this model is scored only with {', '.join(measures)}. Remove "
                f"`{name}`, or change `measures`."
            )
    published = published_precisions(scorer.model.config) if arguments.is_published else {}
    return {measure: arguments.mixed_precision or published.get(measure, "no") for measure in measures}


def _load_tokenizer(model_name: str, scorer: ModelScorer, arguments: ScoringArguments) -> PreTrainedTokenizerBase:
    """Load the tokenizer. Raise a `ValueError` if its number of ids shows that it does not belong to the model."""
    name, config = arguments.tokenizer or model_name, scorer.model.config
    tokenizer = load_tokenizer(name)
    num_ids = tokenizer.mask_token_id  # all lower ids stand for text
    expected = getattr(config, "num_valid_tokens", None)
    vocab_size = config.get_text_config().vocab_size  # causal models may have more ids than the tokenizer
    if (num_ids > vocab_size) if expected is None else (num_ids != expected):
        raise ValueError(
            f"The tokenizer {name!r} has {num_ids} ids, but the model has {expected or vocab_size}. Set `tokenizer` to "
            "the tokenizer with which the model was trained."
        )
    check_own_tokenizer(model_name, tokenizer, name)
    return tokenizer


def choose_length(model: PreTrainedModel, arguments: ScoringArguments, default: int | None) -> int:
    """Return the number of tokens in a sequence. It defaults to `default`; for datasets, at most to `PUBLISHED_LENGTH`.

    Raise a `ValueError` if the model does not support the length.
    """
    longest = longest_sequence(model.config) or PUBLISHED_LENGTH
    if (length := arguments.sequence_length) is None:
        length = min(default or PUBLISHED_LENGTH, PUBLISHED_LENGTH if arguments.datasets else sys.maxsize)
    check_integer("sequence_length", length, most=longest)
    return length


def _load_texts(arguments: ScoringArguments, settings: dict[str, Any]) -> Iterator[tuple[str, Dataset, dict[str, Any]]]:
    """Yield the name, documents and facts of each text to score. `settings` are those of the run, or {}."""
    if arguments.text_file:
        files = find_files(arguments.text_file)
        check_sample_by(arguments.sample_by or "line", files)
        defaults = {"sample_by": "line", "text_column": "text", "packing": "packed"}
        used = {name: getattr(arguments, name) or settings.get(name, value) for name, value in defaults.items()}
        if arguments.sample_by is None and "text" not in map(kind_of, files):
            used["sample_by"] = "line"
        marks = settings.get("context_marks") if used["packing"] == "documents" else None
        facts = {"files": arguments.text_file, "context_marks": marks, **used}
        yield TEXT_FILES, load_files(files, used["sample_by"], used["text_column"]), facts
    for name in arguments.datasets:
        facts = {"from": arguments.data_dir or "Hub", "split": arguments.split or EVALUATION_SETS[name].split}
        yield name, load_texts(name, arguments.data_dir, arguments.split), facts


def _cut(
    texts: Dataset, how: str, tokenizer: PreTrainedTokenizerBase, length: int, is_causal: bool, marks: str | None
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Tokenize documents without the context marks `marks`. Cut them into sequences by the protocol or packing `how`.

    Return the sequences and total counts. A sequence is a dictionary with `input_ids`, `num_tokens` (without padding)
    and `num_bytes`.
    """
    documents = encode_documents(texts, tokenizer, with_token_bytes=True, context_marks=marks)
    if marks:  # the context is scored, too
        documents = documents.remove_columns("labels")
    if how == "documents":
        documents, _ = leave_out_long(documents, length, "given", drop_long_documents=False)
        sequences = pad(documents, length, tokenizer.eos_token_id).to_list()
        if is_causal:  # causal models were not trained on the padding
            sequences = [one | {"input_ids": one["input_ids"][: one["num_tokens"]]} for one in sequences]
    else:
        sequences = cut_into_sequences(documents, length, "clean" if how == "packed" else how)
    return sequences, {
        "documents": len(documents),
        "sequences": len(sequences),
        "bytes": sum(one["num_bytes"] for one in sequences),
        "dropped_tokens": total(documents, "num_tokens") - sum(one["num_tokens"] for one in sequences),
    }


def _score_text(
    name: str,
    sequences: list[dict[str, Any]],
    scorer: ModelScorer,
    precisions: dict[str, str],
    length: int,
    arguments: ScoringArguments,
    journal: Journal,
) -> dict[str, Any]:
    """Return the number of scored tokens of a text, and the results of each measure, which eval/tables.py shows."""

    def count_tokens(rows: list[dict[str, Any]]) -> np.ndarray:
        return np.array([row["num_tokens"] - scorer.num_unscored for row in rows])

    batch_size = max(1, arguments.tokens_per_batch // length)
    measures = {}
    for measure, precision in precisions.items():
        is_subset = arguments.released_subset and measure == "any_order"
        scored = [sequences[index] for index in released_subset(name, len(sequences))] if is_subset else sequences
        options = arguments.num_orders, arguments.seed, batch_size, precision, journal, name
        nats = score_sequences(scorer, [one["input_ids"] for one in scored], measure, *options)
        measures[measure] = {"sequences": len(scored), **perplexity_over(nats, count_tokens(scored))}
        # `num_bytes` includes the first token. If it is not scored, bits per byte would be too low. Leave them out.
        if not scorer.num_unscored:
            measures[measure] |= bits_per_byte_over(nats, np.array([one["num_bytes"] for one in scored]))
    return {"tokens": int(count_tokens(sequences).sum()), "measures": measures}


def output_paths(model_name: str, identity: str | None, arguments: ScoringArguments) -> tuple[Path, Path]:
    """Return the path of the results, and the folder for finished batches.

    Both names contain a hash of the model's name, of its weights, and of all arguments that affect results. If
    `output_dir` is set, it is the folder of the results.
    """
    settings = asdict(arguments) | {"model": model_name, "weights": identity}
    del settings["output_dir"], settings["tokens_per_batch"]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    path = Path(model_name)
    name = f"{path.resolve().parent.name}-{path.name}" if path.is_dir() else model_name.replace("/", "--")
    folder = arguments.output_dir or Path("runs/zero_shot") / f"{name}-{digest}"
    check_is_no_run(folder)
    return folder / "results.json", folder / f".{digest}.unfinished"


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(ScoringArguments)
    parser.add_argument("model", help="Folder of a model or a run, or Hub name.")
    arguments, others = parser.parse(argv)
    name = find_model(others.model)
    identity = identity_of_weights(name)
    output, unfinished = output_paths(name, identity, arguments)
    if output.parent.is_file():
        raise ValueError(f"`output_dir` ({output.parent}) is a file. Set it to a folder.")
    try:
        results = zero_shot(name, arguments, unfinished, output, identity)
    except KeyboardInterrupt:
        sys.exit(f"Stopped. Finished batches are kept in {output.parent}. To continue, run the same command again.")
    if PartialState().is_main_process:
        print(zero_shot_table([results]))
        if arguments.datasets:
            print(f"\n{paper_table([results])}")
        print(f"Written: {output}")


if __name__ == "__main__":
    main(sys.argv[1:])
