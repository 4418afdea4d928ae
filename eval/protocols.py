# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
The benchmark data sets of zero-shot perplexity: where they come from, how their rows become text, and text sequences.

Two ways of cutting. `published`: that of the paper's tables. Rows end with end-of-text and are joined and cut into
blocks in batches of 1000 rows by each of 8 workers; what does not fill a block at the end of a batch is dropped, so the
number of workers is a part of the protocol. `clean`: all rows joined and cut, nothing dropped, the last block shorter.
"""

import glob
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset

from common.corpora import COMPRESSED, keep_text, load_files
from common.sequences import cut, full_rows, total
from eval.detokenizers import detokenize_lambada, detokenize_lm1b, detokenize_ptb, detokenize_wikitext

BLOCK_LENGTH = 1024
NUM_WORKERS, ROWS_PER_BATCH = 8, 1000


def wikitext_line(line: str) -> str:
    """The Hub's row of a line: blank ones are empty, others end in a line break."""
    return f"{line}\n" if line.strip() else ""


@dataclass(frozen=True)
class EvaluationSet:
    """
    Attributes:
        title: heads the column of the paper's tables.
        split: the one that the published tables are of.
        hub: Parquet files on the Hub at a fixed revision; `{split}` stands for the split.
        hub_rows: rows of the splits there, for a check that it is the data set we mean.
        local: the file below a data folder, or a pattern; `{split}` is train, valid or test.
        column: that holds the text on the Hub, and in local JSON lines.
        read_line: from a line of the local file to the row that the Hub has for it.
        detokenize: from a row to ordinary text.
    """

    title: str
    split: str
    hub: str
    hub_rows: dict[str, int]
    local: str
    detokenize: Callable[[str], str]
    column: str = "text"
    read_line: Callable[[str], str] = str.strip


# `datasets` runs no loading scripts: data sets that have one are read from the Hub's own conversion to Parquet.
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
        read_line=wikitext_line,
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
        read_line=wikitext_line,
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
    The detokenised rows of a data set, in the column `text`.

    Args:
        name: one of `EVALUATION_SETS`.
        data_dir: folder of local files, see `EvaluationSet.local`, also packed (.xz, .gz, .bz2, .zst). None: the Hub.
        split: train, validation or test, unless that of the published tables.

    Raises:
        ValueError: for an unknown name or split, a missing or empty file, or a data set that cannot be loaded or has
            another number of rows than it should.
    """
    if name not in EVALUATION_SETS:
        raise ValueError(f"{name!r} is none of the data sets: {', '.join(EVALUATION_SETS)}.")
    found = EVALUATION_SETS[name]
    split = split or found.split
    if split not in found.hub_rows:
        raise ValueError(f"{name} has no split {split!r}; it has {', '.join(found.hub_rows)}.")
    rows = load_hub(name, found, split) if data_dir is None else load_local(name, found, split, data_dir)
    return rows.map(detokenize, batched=True, fn_kwargs={"name": name}, desc="Detokenising")


def detokenize(rows: dict[str, list[str]], name: str) -> dict[str, list[str]]:
    return {"text": list(map(EVALUATION_SETS[name].detokenize, rows["text"]))}


def load_hub(name: str, found: EvaluationSet, split: str) -> Dataset:
    files = found.hub.format(split=split)
    try:
        rows = load_dataset("parquet", data_files={split: files}, split=split)
    except Exception as error:  # no network, no such revision, a damaged file: each has its own error
        raise ValueError(
            f"{name} could not be loaded from the Hub ({files}): {error}. Without a network give --data_dir, a folder "
            f"that holds {local_file(found, split)}."
        ) from error
    if len(rows) != found.hub_rows[split]:
        raise ValueError(
            f"{name} ({files}) has {len(rows)} rows, but its {split} split has {found.hub_rows[split]}: clear the "
            "cache of `datasets`, or give the files as --data_dir."
        )
    return keep_text(rows, found.column)


def local_file(found: EvaluationSet, split: str) -> str:
    return found.local.format(split={"validation": "valid"}.get(split, split))


def load_local(name: str, found: EvaluationSet, split: str, data_dir: str) -> Dataset:
    if not Path(data_dir).is_dir():
        raise ValueError(f"There is no folder {data_dir!r} (data_dir).")
    if "{split}" not in found.local and split != found.split:
        raise ValueError(f"{name} has no local files of its {split} split, those of {found.split} alone; see --split.")
    path = Path(data_dir) / local_file(found, split)
    candidates = [f"{glob.escape(data_dir)}/{local_file(found, split)}{packed}" for packed in ("", *COMPRESSED)]
    pattern = next((candidate for candidate in candidates if glob.glob(candidate)), None)
    if pattern is None:
        raise ValueError(
            f"There is no {path} (nor packed as {', '.join(COMPRESSED)}), where the {split} split of {name} should be. "
            "Put it there, leave this data set out, or take another split (--split)."
        )
    if path.suffix == ".jsonl":
        rows = keep_text(load_files([pattern]), found.column)
    else:
        rows = load_files([pattern]).map(read_lines, batched=True, fn_kwargs={"name": name}, desc="Reading")
    if not any(rows["text"]):
        raise ValueError(f"{path}, the {split} split of {name}, has no text; give the whole file.")
    return rows


def read_lines(rows: dict[str, list[str]], name: str) -> dict[str, list[str]]:
    return {"text": list(map(EVALUATION_SETS[name].read_line, rows["text"]))}


def published_blocks(documents: Dataset, length: int) -> Iterator[dict[str, Any]]:
    """Whole blocks as the published tables have them; `documents` as of `encode_documents`."""
    num_workers = min(NUM_WORKERS, len(documents))
    for worker in range(num_workers):
        share = documents.shard(num_workers, worker, contiguous=True)
        for start in range(0, len(share), ROWS_PER_BATCH):
            yield from full_rows(share.select(range(start, min(start + ROWS_PER_BATCH, len(share)))), length)


PROTOCOLS = {"published": published_blocks, "clean": cut}


def cut_into_blocks(documents: Dataset, length: int, protocol: str) -> list[dict[str, Any]]:
    """Rows with `input_ids`, `num_tokens` and `num_bytes`.

    Raises:
        ValueError: if no batch of documents fills a block.
    """
    rows = [row | {"num_tokens": len(row["input_ids"])} for row in PROTOCOLS[protocol](documents, length)]
    if not rows:
        raise ValueError(
            f"The text has {total(documents, 'num_tokens')} tokens and fills no block of {length} in any batch of "
            f"{ROWS_PER_BATCH} rows of {NUM_WORKERS} workers, which the published protocol drops: use --protocol "
            "clean, or a smaller --sequence_length."
        )
    return rows
