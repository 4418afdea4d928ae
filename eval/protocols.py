# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Benchmark datasets for zero-shot perplexity: loading, detokenization, and two protocols that cut sequences.

`published` is the protocol of the paper's tables. It divides the documents among 8 workers. Each worker divides its
documents into batches of 1000. The documents of a batch, each followed by end-of-text, are joined and cut into
sequences. Tokens at the end of a batch that do not fill a sequence are dropped, so the result depends on the number of
workers.

`clean` joins all documents, and cuts them into sequences without dropping tokens. The last sequence may be shorter.
"""

import glob
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, load_dataset
from transformers import PreTrainedConfig

from common.caching import versioned
from common.packing import cut, full_rows, total
from common.text_files import COMPRESSED, find_files, keep_text, load_files
from eval.detokenizers import detokenize_lambada, detokenize_lm1b, detokenize_ptb, detokenize_wikitext
from modeling_aogpt import AOGPTConfig
from modeling_aogpt.validation import check_choice

PUBLISHED_LENGTH = 1024
NUM_WORKERS, ROWS_PER_BATCH = 8, 1000
NUM_RELEASED_SEQUENCES = 16 * 8  # the released script scores 16 batches of 8 sequences in random orders


def _read_wikitext_line(line: str) -> str:
    """Return a line of WikiText in the form of the Hub. Lines with text end with a line break, others are empty."""
    return f"{line}\n" if line.strip() else ""


@dataclass(frozen=True)
class EvaluationSet:
    """A benchmark dataset. In `hub` and `local`, `{split}` stands for a split."""

    title: str  # of the column in the paper's tables
    split: str  # that was used for the published tables
    hub: str  # glob pattern of Parquet files on the Hub, at a fixed revision if possible
    hub_rows: dict[str, int]  # number of documents in each split on the Hub, to check that the right data were loaded
    local: str  # file or glob pattern, relative to `data_dir`; the splits are train, valid and test
    detokenize: Callable[[str], str]  # turns a document into ordinary text
    column: str = "text"  # with the text, on the Hub and in local JSON lines
    read_line: Callable[[str], str] = str.strip  # turns a line of a local file into the document on the Hub

    def local_file(self, split: str) -> str:
        """Return the file or glob pattern of a split, relative to `data_dir`."""
        return self.local.format(split={"validation": "valid"}.get(split, split))


# `datasets` does not run loading scripts. For datasets that have one, Parquet files that the Hub generated are read.
WIKITEXT = "hf://datasets/Salesforce/wikitext@b08601e04326c79dfdd32d625aee71d232d685c3"
LAMBADA = "hf://datasets/EleutherAI/lambada_openai@761609c75432cf25d076cd41b8182b7f3ceaae6e"
PTB = "hf://datasets/ptb-text-only/ptb_text_only@6003d540889b95fc8c8403a3f04619f3b943fc8d"
LM1B = "hf://datasets/billion-word-benchmark/lm1b@refs%2Fconvert%2Fparquet"


def _wikitext(size: int, split: str, num_train: int) -> EvaluationSet:
    """Return WikiText-2 or WikiText-103, which share their validation and test documents."""
    return EvaluationSet(
        f"WikiText{size}",
        split,
        f"{WIKITEXT}/wikitext-{size}-raw-v1/{{split}}-*.parquet",
        {"train": num_train, "validation": 3760, "test": 4358},
        f"wikitext-{size}-raw/wiki.{{split}}.raw",
        detokenize_wikitext,
        read_line=_read_wikitext_line,
    )


EVALUATION_SETS = {
    "lambada": EvaluationSet(
        "LAMBADA",
        "test",
        LAMBADA + "/default/{split}/*.parquet",
        {"test": 5153},
        "lambada/lambada_{split}.jsonl",
        detokenize_lambada,
    ),
    "wikitext2": _wikitext(2, "train", 36718),
    "ptb": EvaluationSet(
        "PTB",
        "test",
        PTB + "/penn_treebank/{split}/*.parquet",
        {"train": 42068, "validation": 3370, "test": 3761},
        "ptb/ptb.{split}.txt",
        detokenize_ptb,
        column="sentence",
    ),
    "wikitext103": _wikitext(103, "test", 1801350),
    "lm1b": EvaluationSet(
        "1BW",
        "test",
        LM1B + "/plain_text/{split}/*.parquet",
        {"train": 30301028, "test": 306688},
        "lm1b/news.en.heldout-*",
        detokenize_lm1b,
    ),
}


def load_texts(name: str, data_dir: str | None = None, split: str | None = None) -> Dataset:
    """Load a dataset of `EVALUATION_SETS`, and return its detokenized documents in the column `text`.

    By default, it is loaded from the Hub. The files in `data_dir` may be compressed (.xz, .gz, .bz2, .zst, .zip).
    `split` is `"train"`, `"validation"` or `"test"`, by default that of the published tables.
    """
    check_choice("name", name, EVALUATION_SETS)
    data_set = EVALUATION_SETS[name]
    split = split or data_set.split
    check_choice("split", split, data_set.hub_rows, f" for {name}")
    rows = _load_hub(name, data_set, split) if data_dir is None else _load_local(name, data_set, split, data_dir)
    return _map_text(rows, data_set.detokenize)


def _map_text(rows: Dataset, function: Callable[[str], str]) -> Dataset:
    return rows.map(versioned(_apply), batched=True, input_columns="text", fn_kwargs={"function": function})


def _apply(texts: list[str], function: Callable[[str], str]) -> dict[str, list[str]]:
    return {"text": list(map(function, texts))}


def _load_hub(name: str, data_set: EvaluationSet, split: str) -> Dataset:
    files = data_set.hub.format(split=split)
    try:
        rows = load_dataset("parquet", data_files={split: files}, split=split)
    except Exception as error:  # a missing network, a missing revision and a damaged file raise different errors
        raise ValueError(
            f"{name} could not be loaded from the Hub ({files}). Without a network, set `data_dir` to a folder that "
            f"contains {data_set.local_file(split)}. (Cause: {error})"
        ) from error
    if len(rows) != data_set.hub_rows[split]:
        raise ValueError(
            f"The {split} split of {name} must have {data_set.hub_rows[split]} documents, but {len(rows)} were loaded "
            f"({files}). Clear the cache of the package datasets, or set `data_dir` to a folder that contains "
            f"{data_set.local_file(split)}."
        )
    return keep_text(rows, data_set.column)


def _load_local(name: str, data_set: EvaluationSet, split: str, data_dir: str) -> Dataset:
    if "{split}" not in data_set.local and split != data_set.split:
        raise ValueError(
            f"With `data_dir`, {name} has only the split {data_set.split!r}, but `split` is {split!r}. Remove `split`."
        )
    path = Path(data_dir) / data_set.local_file(split)
    patterns = [f"{glob.escape(data_dir)}/{data_set.local_file(split)}{suffix}" for suffix in ("", *COMPRESSED)]
    pattern = next(filter(glob.glob, patterns), None)
    if pattern is None:
        raise ValueError(
            f"{path} (the {split} split of {name}) does not exist, and neither does a compressed version of it "
            f"({', '.join(COMPRESSED)}). Check `data_dir`, remove {name} from `datasets`, or set another `split`."
        )
    rows = load_files(find_files([pattern]), text_column=data_set.column)
    if path.suffix != ".jsonl":
        rows = _map_text(rows, data_set.read_line)
    if not any(rows["text"]):
        raise ValueError(f"{path} (the {split} split of {name}) contains no text. Use the complete file.")
    return rows


def _cut_published(documents: Dataset, length: int) -> Iterator[dict[str, Any]]:
    num_workers = min(NUM_WORKERS, len(documents))
    for worker in range(num_workers):
        shard = documents.shard(num_workers, worker, contiguous=True)
        for start in range(0, len(shard), ROWS_PER_BATCH):
            yield from full_rows(shard.select(range(start, min(start + ROWS_PER_BATCH, len(shard)))), length)


PROTOCOLS = {"published": _cut_published, "clean": cut}


def published_precisions(config: PreTrainedConfig) -> dict[str, str]:
    """Return the mixed precision with which the released scripts compute each measure of eval/scorers.py."""
    is_causal = not isinstance(config, AOGPTConfig)  # the configuration of encoders is a subclass
    is_sigma_gpt = not is_causal and config.target_injection == "input"
    return {
        "left_to_right": "no" if is_causal else "bf16",
        "any_order": "bf16" if is_sigma_gpt else "no",
        "ensemble": "no",
    }


def released_subset(name: str, num_sequences: int) -> list[int]:
    """Return the indices of the sequences that the released script of AO-GPT scores in random orders.

    The script stops after 16 batches of 8 sequences, except on PTB. With 2, 4, 8 or 16 processes, PyTorch's
    `DistributedSampler` draws these sequences with seed 0, so all runs use the same ones. With one process, the script
    draws other sequences in every run. This function is then of no use.
    """
    if name == "ptb":
        return list(range(num_sequences))
    generator = torch.Generator().manual_seed(0)
    return sorted(torch.randperm(num_sequences, generator=generator)[:NUM_RELEASED_SEQUENCES].tolist())


def cut_into_sequences(documents: Dataset, length: int, protocol: str) -> list[dict[str, Any]]:
    """Cut encoded documents into sequences of `length` tokens, as a protocol (a key of `PROTOCOLS`) defines.

    Return a dictionary for each sequence, with `input_ids`, `num_tokens` and `num_bytes`. Raise a `ValueError` if the
    text is too short for one sequence.
    """
    sequences = [row | {"num_tokens": len(row["input_ids"])} for row in PROTOCOLS[protocol](documents, length)]
    if not sequences:
        raise ValueError(
            f"The text has only {total(documents, 'num_tokens')} tokens. The published protocol divides the documents "
            f"among {NUM_WORKERS} workers, and joins {ROWS_PER_BATCH} at a time. None of these parts has a sequence of "
            f"{length} tokens. Set `protocol` to clean, or decrease `sequence_length`."
        )
    return sequences
