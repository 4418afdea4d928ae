# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Benchmark data sets of zero-shot perplexity: loading, detokenization, and the two protocols that cut them into blocks.

`published` is the protocol of the paper's tables. It joins the rows, each followed by end-of-text, and cuts them into
blocks in batches of 1000 rows, separately for each of 8 workers. It drops tokens at the end of a batch that do not fill
a block, so the number of workers changes the result. `clean` joins all rows, drops nothing, and ends with a shorter
block.
"""

import glob
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, load_dataset
from transformers import PreTrainedConfig

from common.corpora import COMPRESSED, keep_text, load_files
from common.sequences import cut, full_rows, total
from eval.detokenizers import detokenize_lambada, detokenize_lm1b, detokenize_ptb, detokenize_wikitext
from modeling_aogpt import AOGPTConfig
from modeling_aogpt.validation import check_choice

BLOCK_LENGTH = 1024
NUM_WORKERS, ROWS_PER_BATCH = 8, 1000
NUM_RELEASED_BLOCKS = 16 * 8  # batches and blocks per batch of the released script for random orders


def _read_wikitext_line(line: str) -> str:
    """Return the row that the Hub has for a line: blank lines are empty, others end with a line break."""
    return f"{line}\n" if line.strip() else ""


@dataclass(frozen=True)
class EvaluationSet:
    """
    A benchmark data set.

    Attributes:
        title: Column title in the paper's tables.
        split: Split of the published tables.
        hub: Parquet files on the Hub, at a fixed revision where there is one; contains `{split}`.
        hub_rows: Number of rows of each split on the Hub, to check that the right data were loaded.
        local: File or pattern below a data folder; `{split}` stands for train, valid or test.
        detokenize: Function that turns a row into ordinary text.
        column: Column of the text on the Hub and in local JSON lines.
        read_line: Function that turns a line of a local text file into the row that the Hub has for it.
    """

    title: str
    split: str
    hub: str
    hub_rows: dict[str, int]
    local: str
    detokenize: Callable[[str], str]
    column: str = "text"
    read_line: Callable[[str], str] = str.strip

    def local_file(self, split: str) -> str:
        """Return the local file or pattern of a split."""
        return self.local.format(split={"validation": "valid"}.get(split, split))


# `datasets` does not run loading scripts. Data sets with such a script are read from the Hub's conversion to Parquet.
WIKITEXT = "hf://datasets/Salesforce/wikitext@b08601e04326c79dfdd32d625aee71d232d685c3"
LAMBADA = "hf://datasets/EleutherAI/lambada_openai@761609c75432cf25d076cd41b8182b7f3ceaae6e"
PTB = "hf://datasets/ptb-text-only/ptb_text_only@6003d540889b95fc8c8403a3f04619f3b943fc8d"
LM1B = "hf://datasets/billion-word-benchmark/lm1b@refs%2Fconvert%2Fparquet"

EVALUATION_SETS = {
    "lambada": EvaluationSet(
        "LAMBADA",
        "test",
        LAMBADA + "/default/{split}/*.parquet",
        {"test": 5153},
        "lambada/lambada_{split}.jsonl",
        detokenize_lambada,
    ),
    "wikitext2": EvaluationSet(
        "WikiText2",
        "train",
        WIKITEXT + "/wikitext-2-raw-v1/{split}-*.parquet",
        {"train": 36718, "validation": 3760, "test": 4358},
        "wikitext-2-raw/wiki.{split}.raw",
        detokenize_wikitext,
        read_line=_read_wikitext_line,
    ),
    "ptb": EvaluationSet(
        "PTB",
        "test",
        PTB + "/penn_treebank/{split}/*.parquet",
        {"train": 42068, "validation": 3370, "test": 3761},
        "ptb/ptb.{split}.txt",
        detokenize_ptb,
        column="sentence",
    ),
    "wikitext103": EvaluationSet(
        "WikiText103",
        "test",
        WIKITEXT + "/wikitext-103-raw-v1/{split}-*.parquet",
        {"train": 1801350, "validation": 3760, "test": 4358},
        "wikitext-103-raw/wiki.{split}.raw",
        detokenize_wikitext,
        read_line=_read_wikitext_line,
    ),
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
    """
    Load a data set, and return its detokenized rows in the column `text`.

    Args:
        name: One of `EVALUATION_SETS`.
        data_dir: Folder of local files, which may be compressed (.xz, .gz, .bz2, .zst). Defaults to the Hub.
        split: Train, validation or test. Defaults to the split of the published tables.
    """
    check_choice("name", name, EVALUATION_SETS)
    data_set = EVALUATION_SETS[name]
    split = split or data_set.split
    check_choice("split", split, data_set.hub_rows, f" for {name}")
    rows = _load_hub(name, data_set, split) if data_dir is None else _load_local(name, data_set, split, data_dir)
    return rows.map(_map_text, batched=True, fn_kwargs={"function": data_set.detokenize}, desc="Detokenizing")


def _map_text(rows: dict[str, list[str]], function: Callable[[str], str]) -> dict[str, list[str]]:
    return {"text": list(map(function, rows["text"]))}


def _load_hub(name: str, data_set: EvaluationSet, split: str) -> Dataset:
    files = data_set.hub.format(split=split)
    try:
        rows = load_dataset("parquet", data_files={split: files}, split=split)
    except Exception as error:  # a missing network, a missing revision and a damaged file raise different errors
        raise ValueError(
            f"{name} could not be loaded from the Hub ({files}): {error}. Without a network, set `data_dir` to a "
            f"folder that contains {data_set.local_file(split)}."
        ) from error
    if len(rows) != data_set.hub_rows[split]:
        raise ValueError(
            f"{name} ({files}) has {len(rows)} rows, but its {split} split has {data_set.hub_rows[split]}. Clear the "
            "cache of `datasets`, or set `data_dir` to a folder with the files."
        )
    return keep_text(rows, data_set.column)


def _load_local(name: str, data_set: EvaluationSet, split: str, data_dir: str) -> Dataset:
    if not Path(data_dir).is_dir():
        raise ValueError(f"`data_dir` ({data_dir!r}) is not a folder.")
    if "{split}" not in data_set.local and split != data_set.split:
        raise ValueError(
            f"{name} has local files of its {data_set.split} split only, but `split` is {split!r}. Remove it."
        )
    path = Path(data_dir) / data_set.local_file(split)
    candidates = [f"{glob.escape(data_dir)}/{data_set.local_file(split)}{suffix}" for suffix in ("", *COMPRESSED)]
    pattern = next((candidate for candidate in candidates if glob.glob(candidate)), None)
    if pattern is None:
        raise ValueError(
            f"{path}, the {split} split of {name}, does not exist, and neither does a compressed one "
            f"({', '.join(COMPRESSED)}). Put it there, leave out this data set, or set another `split`."
        )
    if path.suffix == ".jsonl":
        rows = keep_text(load_files([pattern]), data_set.column)
    else:
        rows = load_files([pattern])
        rows = rows.map(_map_text, batched=True, fn_kwargs={"function": data_set.read_line}, desc="Reading")
    if not any(rows["text"]):
        raise ValueError(f"{path}, the {split} split of {name}, contains no text. Use the complete file.")
    return rows


def _published_blocks(documents: Dataset, length: int) -> Iterator[dict[str, Any]]:
    num_workers = min(NUM_WORKERS, len(documents))
    for worker in range(num_workers):
        shard = documents.shard(num_workers, worker, contiguous=True)
        for start in range(0, len(shard), ROWS_PER_BATCH):
            yield from full_rows(shard.select(range(start, min(start + ROWS_PER_BATCH, len(shard)))), length)


PROTOCOLS = {"published": _published_blocks, "clean": cut}


def published_precisions(config: PreTrainedConfig) -> dict[str, str]:
    """Return the mixed precision of each measure in the released evaluation scripts, by the kind of the model."""
    is_causal = not isinstance(config, AOGPTConfig)  # also the base class of MDMEncoderConfig
    is_sigma_gpt = not is_causal and config.target_injection == "input"
    return {
        "left_to_right": "no" if is_causal else "bf16",
        "any_order": "bf16" if is_sigma_gpt else "no",
        "ensemble": "no",
    }


def released_subset(name: str, num_blocks: int) -> list[int]:
    """
    Return the blocks of a data set that the released script of AO-GPT scores in random orders.

    It stops after 16 batches of 8 blocks, except on PTB. Started with 2, 4, 8 or 16 processes, it takes the first
    blocks of PyTorch's `DistributedSampler`, whose seed is 0. (With one process, every run takes other blocks.)
    """
    if name == "ptb":
        return list(range(num_blocks))
    generator = torch.Generator().manual_seed(0)
    return sorted(torch.randperm(num_blocks, generator=generator)[:NUM_RELEASED_BLOCKS].tolist())


def cut_into_blocks(documents: Dataset, length: int, protocol: str) -> list[dict[str, Any]]:
    """Return blocks of `length` tokens of encoded documents, with `input_ids`, `num_tokens` and `num_bytes`."""
    blocks = [block | {"num_tokens": len(block["input_ids"])} for block in PROTOCOLS[protocol](documents, length)]
    if not blocks:
        raise ValueError(
            f"The text has {total(documents, 'num_tokens')} tokens, and no batch of {ROWS_PER_BATCH} rows (from one of "
            f"{NUM_WORKERS} workers) fills a block of {length}, so the published protocol drops everything. Set "
            "`protocol='clean'`, or a smaller `sequence_length`."
        )
    return blocks
