# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Perplexity and bits per byte of a model on text that it was not trained on, left to right and in random orders.

    python eval/zero_shot.py MODEL --text_file FILE [...]
    python eval/zero_shot.py MODEL --datasets lambada wikitext2 ptb wikitext103 lm1b [--protocol clean] [--data_dir DIR]
    accelerate launch eval/zero_shot.py MODEL ...

MODEL is an AO-GPT or sigma-GPT, an encoder-only masked diffusion model, or any causal language model of transformers.
Writes results.json to --output_dir. Bits per byte assume a tokenizer that gives back the text it was given, as
byte-level BPE does; each end-of-text counts as one byte. A run that was stopped goes on when the same command is given
again.
"""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from common.commands import Options, Parser, one_line_errors, option
from common.corpora import SampleBy, keep_text, load_files
from common.files import write_json
from common.hardware import hardware, versions
from common.models import identity_of_weights, longest_sequence
from common.processes import in_turn, start_accelerator
from common.sequences import encode_documents, pad, total
from common.tokenization import vocabulary_arguments
from eval.protocols import BLOCK_LENGTH, EVALUATION_SETS, cut_into_blocks, load_texts
from eval.scorers import MEASURES, CausalScorer, Estimators, Scorer, load_scorer
from eval.scoring import Journal, figures, score
from eval.tables import MEASURE_NAMES, PRECISIONS, zero_shot_table
from modeling_aogpt.tokenization import load_tokenizer

TEXT_FILES = "text files"


@dataclass
class ScoringArguments(Options):
    """What to score, and how."""

    text_file: list[str] = option(
        [], "Text, JSONL or Parquet files or patterns, also as .xz or .gz, to score without drops."
    )
    text_column: str = option("text", "Column of the documents of text_file, in anything but plain text.")
    sample_by: SampleBy = option("line", "A document of plain text; `document`: a file.")
    packing: Literal["packed", "documents"] = option(
        "packed",
        "Of text_file. packed: documents end to end, cut into sequences. documents: one per sequence, filled up with "
        "end-of-text, for models that were trained so.",
    )
    datasets: list[str] = option([], f"Benchmark data sets: {', '.join(EVALUATION_SETS)}.")
    protocol: Literal["published", "clean"] = option(
        "published",
        "How data sets are cut. published: as in the paper's tables, which drops text, leaves the first token of a "
        "block to causal models unscored, and scores left to right in bfloat16. clean: everything is scored.",
    )
    data_dir: str | None = option(None, "Folder of the data sets' files; unless given, they come from the Hub.")
    split: str | None = option(None, "Split of all data sets, unless that of the published tables.")
    sequence_length: int | None = option(
        None, "Tokens of a sequence; unless given, as many as the model takes, and for data sets at most 1024."
    )
    tokenizer: str | None = option(None, "Name or folder of the tokenizer; unless given, that of the model.")
    measures: list[str] = option(
        [], f"Of {', '.join(MEASURES)}; unless given, the first two, of an encoder the second."
    )
    num_orders: int = option(1, "Random orders (or maskings) per sequence.", least=1)
    ensemble_size: int = option(8, "Orders of the context that `ensemble` averages predictions over (Eq. 4).", least=2)
    num_ranks: int = option(
        8, "Draws, even, from which `ensemble` is estimated; 0: exactly, from M n^2 / 2 rows.", least=0
    )
    num_times: int = option(32, "Masking times, even, of the bound of an encoder.", least=2)
    seed: int = option(0, "Of the random orders.", least=0)
    tokens_per_batch: int = option(16384, "Tokens per forward pass and process.", least=1)
    dtype: Literal["float32", "bfloat16"] = option("float32", "Of the weights.")
    mixed_precision: Literal["no", "bf16"] | None = option(
        None, "no: everything in dtype. bf16: autocast to bfloat16. Unless given, what the protocol says."
    )
    output_dir: Path | None = option(
        None, "Folder for results.json; unless given, runs/zero_shot/ and a name made of the model's and settings'."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_ranks", "num_times"):
            if getattr(self, name) % 2:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be even: two draws in each stratum.")
        if bool(self.text_file) == bool(self.datasets):
            raise ValueError("Give either text files (--text_file) or data sets (--datasets).")
        of_others = ("data_dir", "split") if self.text_file else ("text_column", "sample_by", "packing")
        for name in of_others:
            if getattr(self, name) != getattr(ScoringArguments, name):
                here, there = ("text files", "data sets") if self.text_file else ("data sets", "text files")
                raise ValueError(f"{name}={getattr(self, name)!r} is for {there}, but {here} are given: leave it out.")
        for name, values, allowed in (
            ("datasets", self.datasets, EVALUATION_SETS),
            ("measures", self.measures, MEASURES),
        ):
            if unknown := [value for value in values if value not in allowed]:
                raise ValueError(f"{name} has {unknown[0]!r}; it may hold {', '.join(allowed)}.")


Texts = dict[str, tuple[list[dict[str, Any]], dict[str, Any]]]  # by name: rows of sequences, and facts for the record


def zero_shot(
    model_name: str,
    arguments: ScoringArguments,
    journal_folder: Path | None = None,
    save: Callable[[dict[str, Any]], None] = lambda results: None,
    identity: str | None = None,
) -> dict[str, Any]:
    """
    Score the text, and return the results: numbers and strings.

    Args:
        model_name: Folder or Hub name of the model.
        arguments: What to score, and how.
        journal_folder: Keeps what is finished until all is saved, see `Journal`; the model's revision and the text add
            to its name.
        save: Writes the results, in the main process.
        identity: The `identity_of_weights` of the model, if it is known: it reads all weights.

    Raises:
        ValueError: For missing or empty data, a tokenizer that is not the model's, a sequence longer than the model
            takes, a text shorter than a block, or a measure that the model has not.
    """
    started = time.perf_counter()
    accelerator = start_accelerator()
    estimators = Estimators(arguments.ensemble_size, arguments.num_ranks, arguments.num_times)
    identity = identity or identity_of_weights(model_name)
    weights, revision = (identity, None) if Path(model_name).is_dir() else (None, identity)
    scorer = load_scorer(model_name, getattr(torch, arguments.dtype), accelerator.device, estimators, revision)
    measures = choose_measures(scorer, arguments.measures)
    tokenizer = load_tokenizer(arguments.tokenizer or model_name)
    check_vocabulary(scorer.model, tokenizer, arguments.tokenizer or model_name)
    length = choose_length(scorer.model, arguments)
    is_published = bool(arguments.datasets) and arguments.protocol == "published"
    if isinstance(scorer, CausalScorer) and not is_published:
        scorer.start_id = tokenizer.eos_token_id
    with in_turn(accelerator):
        texts: Texts = dict(load_all(arguments, tokenizer, length, isinstance(scorer, CausalScorer)))

    precisions = {measure: precision_of(measure, arguments, is_published) for measure in measures}
    if journal_folder is not None:  # the same command may find another revision of the model, or other text
        journal_folder = journal_folder.with_name(f"{journal_folder.name}-{digest_of(revision, texts)}")
    journal = Journal(journal_folder)
    batch_size = max(1, arguments.tokens_per_batch // length)
    found = {}
    for name, (rows, facts) in texts.items():
        nats = score(scorer, rows, arguments.num_orders, arguments.seed, batch_size, precisions, journal, name)
        found[name] = facts | measured(scorer, rows, nats)
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
        "arguments": asdict(arguments),
        "datasets": found,
        "seconds": round(time.perf_counter() - started, 1),
        "hardware": hardware(accelerator),
        "versions": versions(),
    }
    if accelerator.is_main_process:
        save(results)
    journal.remove()
    return results


def digest_of(revision: str | None, texts: Texts) -> str:
    ids = [[row["input_ids"] for row in rows] for rows, _ in texts.values()]
    return hashlib.sha256(json.dumps([revision, ids]).encode()).hexdigest()[:12]


def measured(scorer: Scorer, rows: list[dict[str, Any]], nats: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the figures of each measure of a text, and the number of tokens they are of."""
    num_given = int(isinstance(scorer, CausalScorer) and scorer.start_id is None)  # first tokens without a score
    num_tokens = np.array([row["num_tokens"] - num_given for row in rows])
    num_bytes = np.array([row["num_bytes"] for row in rows])
    measures = {measure: figures(values, num_tokens, num_bytes) for measure, values in nats.items()}
    if num_given:  # their bytes are counted, their bits are not
        for found in measures.values():
            del found["bits_per_byte"], found["bits_per_byte_standard_error"]
    return {"tokens": int(num_tokens.sum()), "measures": measures}


def choose_measures(scorer: Scorer, wanted: Sequence[str]) -> list[str]:
    if missing := [measure for measure in wanted if measure not in scorer.measures]:
        raise ValueError(
            f"A model of type {scorer.model.config.model_type} has no measure {missing[0]!r}; it has "
            f"{', '.join(scorer.measures)} (--measures)."
        )
    return list(wanted or scorer.default_measures)


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Raise a `ValueError` unless the tokenizer can be the model's."""
    given = vocabulary_arguments(tokenizer)["num_valid_tokens"]
    known = getattr(model.config, "num_valid_tokens", None)
    at_most = model.config.get_text_config().vocab_size  # causal models often have more ids than their tokenizers
    if given != known if known is not None else given > at_most:
        raise ValueError(
            f"The tokenizer {name!r} has {given} ids, the model {known or at_most}; name the one the model was trained "
            "with (--tokenizer)."
        )


def choose_length(model: PreTrainedModel, arguments: ScoringArguments) -> int:
    longest = longest_sequence(model.config) or BLOCK_LENGTH
    length = arguments.sequence_length
    if length is None:
        length = min(longest, BLOCK_LENGTH) if arguments.datasets else longest
    if not 1 <= length <= longest:
        raise ValueError(f"sequence_length is {length}; this model takes 1 to {longest} (its max_position_embeddings).")
    return length


def precision_of(measure: str, arguments: ScoringArguments, is_published: bool) -> str:
    if arguments.mixed_precision is not None:
        return arguments.mixed_precision
    return PRECISIONS[measure] if is_published else "no"


def load_all(
    arguments: ScoringArguments, tokenizer: PreTrainedTokenizerBase, length: int, is_causal: bool
) -> Iterator[tuple[str, tuple[list[dict[str, Any]], dict[str, Any]]]]:
    """Yield `Texts`: rows with `input_ids`, `num_tokens` (those that count) and `num_bytes`, and facts."""
    if arguments.text_file:
        texts = keep_text(load_files(arguments.text_file, arguments.sample_by), arguments.text_column)
        rows, facts = make_rows(texts, tokenizer, arguments.packing, length, is_causal)
        yield TEXT_FILES, (rows, {"files": arguments.text_file, "packing": arguments.packing} | facts)
    for name in arguments.datasets:
        texts = load_texts(name, arguments.data_dir, arguments.split)
        rows, facts = make_rows(texts, tokenizer, arguments.protocol, length, is_causal)
        split = arguments.split or EVALUATION_SETS[name].split
        yield name, (rows, {"from": arguments.data_dir or "Hub", "split": split} | facts)


def make_rows(
    texts: Dataset, tokenizer: PreTrainedTokenizerBase, packing: str, length: int, is_causal: bool
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return sequences of `length` ids, and their counts. Those of packed text may end with a shorter one."""
    documents = encode_documents(texts, tokenizer, with_token_bytes=True)
    if packing == "documents":
        rows = pad(documents, length, tokenizer.eos_token_id, "given")[0].to_list()
        if is_causal:  # they have not learned what the padding is
            rows = [row | {"input_ids": row["input_ids"][: row["num_tokens"]]} for row in rows]
    else:
        rows = cut_into_blocks(documents, length, "clean" if packing == "packed" else packing)
    return rows, {
        "documents": len(texts),
        "sequences": len(rows),
        "bytes": sum(row["num_bytes"] for row in rows),
        "dropped_tokens": total(documents, "num_tokens") - sum(row["num_tokens"] for row in rows),
    }


def report(results: dict[str, Any]) -> Iterator[str]:
    """Yield the lines to print."""
    length, orders = results["sequence_length"], results["arguments"]["num_orders"]
    for name, found in results["datasets"].items():
        yield (
            f"{name}: {found['documents']} documents, {found['tokens']} tokens, {found['bytes']} bytes, as "
            f"{found['sequences']} sequences of at most {length} tokens ({found.get('packing', results['protocol'])}); "
            f"{found['dropped_tokens']} tokens dropped; random orders per sequence: {orders}"
        )
        yield f"{'':<16}{'perplexity':<26}{'bits per byte':<26}".rstrip()
        for measure, values in found["measures"].items():
            cells = [f"{MEASURE_NAMES[measure]:<16}"]
            for figure, digits in (("perplexity", 2), ("bits_per_byte", 4)):
                if figure in values:
                    error = values[f"{figure}_standard_error"]
                    shown = "unknown" if error is None else f"{error:.{digits}f}"
                    cells.append(f"{values[figure]:.{digits}f} ± {shown}".ljust(26))
            yield "".join(cells).rstrip()
    if results["arguments"]["datasets"]:
        yield f"\n{zero_shot_table([results])}"


def output_paths(model_name: str, identity: str | None, arguments: ScoringArguments) -> tuple[Path, Path]:
    """
    Return the file of the results of a model, known by its `identity_of_weights`, and the folder in which finished
    batches are kept until then: a function of what is computed.
    """
    computed = asdict(arguments) | {"model": model_name, "weights": identity}
    del computed["output_dir"], computed["tokens_per_batch"]
    digest = hashlib.sha256(json.dumps(computed, sort_keys=True).encode()).hexdigest()[:12]
    path = Path(model_name)
    name = f"{path.resolve().parent.name}-{path.name}" if path.is_dir() else model_name.replace("/", "--")
    folder = arguments.output_dir or Path("runs/zero_shot") / f"{name}-{digest}"
    return folder / "results.json", folder / f".{digest}.unfinished"


@one_line_errors()
def main(argv: list[str]) -> None:
    parser = Parser(ScoringArguments)
    parser.add_argument("model", help="Folder or Hub name of the model.")
    arguments, others = parser.parse(argv)
    identity = identity_of_weights(others.model)
    output, unfinished = output_paths(others.model, identity, arguments)
    if output.parent.is_file():
        raise ValueError(f"output_dir={output.parent} is a file: name a folder.")
    try:
        results = zero_shot(others.model, arguments, unfinished, partial(write_json, output), identity)
    except KeyboardInterrupt:
        sys.exit(f"Stopped. Finished batches are kept in {output.parent}; the same command goes on from there.")
    if PartialState().is_main_process:
        print(*report(results), f"Written: {output}", sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
