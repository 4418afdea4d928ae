# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Sequences of a corpus that is read, tokenized and packed while it is trained on.

The files come in an order drawn for each epoch, their documents end to end, epoch after epoch, cut into sequences:
nothing is lost or repeated at their borders. Sequences are shuffled in windows of `window_size`. So the sequence of a
sample is a function of the corpus, the seed and the number of the sample; `Position` only says where to begin to read.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain, count, islice
from typing import Any

import numpy as np
from datasets import IterableDataset
from transformers import PreTrainedTokenizerBase

from common.corpora import sha256
from common.data import Data
from common.sequences import cut, encode_batch
from training.batches import Samples, epoch_permutation, rows_of_samples

DOCUMENTS_AT_A_TIME = 256  # to the tokenizer, which takes them in parallel


@dataclass(frozen=True)
class Position:
    """
    A token of the stream, and the window that begins with it.

    Plain numbers, so that checkpoints hold them and other versions of `datasets` know them.

    Attributes:
        window: its number.
        epoch: full passes over the corpus before.
        shard: files before, in the order of the epoch.
        batch: batches of `DOCUMENTS_AT_A_TIME` documents before, in that file.
        token: tokens before, in that batch.
    """

    window: int = 0
    epoch: int = 0
    shard: int = 0
    batch: int = 0
    token: int = 0


@dataclass(frozen=True)
class Stream:
    """
    A corpus to be read.

    Attributes:
        shards: The documents; its shards are files.
        text_column: The column of their text.
        window_size: Sequences that are shuffled among themselves.
        held_out: SHA-256 of the documents that are not to be trained on.
    """

    shards: IterableDataset
    text_column: str
    tokenizer: PreTrainedTokenizerBase
    sequence_length: int
    window_size: int
    held_out: frozenset[bytes] = frozenset()

    def batches(self, seed: int, start: Position) -> Iterator[tuple[Position, list[int]]]:
        """
        Yield the ids of batches of documents, each with its place, from that of `start` on and without end.

        Raises:
            ValueError: If an epoch has no document to train on.
        """
        first_shard, first_batch, num_shards = start.shard, start.batch, self.shards.num_shards
        for epoch in count(start.epoch):
            is_empty = not first_shard and not first_batch
            for shard in range(first_shard, num_shards):
                documents = self.shards.shard(num_shards, int(epoch_permutation(num_shards, seed, epoch)[shard]))
                batches = documents.with_format("arrow").iter(DOCUMENTS_AT_A_TIME)
                for batch, table in enumerate(islice(batches, first_batch, None), first_batch):
                    ids = self.encode(table[self.text_column].to_pylist())
                    is_empty = is_empty and not ids
                    yield Position(epoch=epoch, shard=shard, batch=batch), ids
                first_batch = 0
            first_shard = 0
            if is_empty:
                raise ValueError("The corpus has no document to train on besides those that are held out.")

    def encode(self, texts: list[str | None]) -> list[int]:
        """Return the ids of documents end to end, each followed by end-of-text."""
        texts = [text for text in texts if text and not (self.held_out and sha256(text) in self.held_out)]
        return list(chain.from_iterable(encode_batch(texts, self.tokenizer, False)["input_ids"])) if texts else []

    def sequences(self, seed: int, start: Position) -> Iterator[tuple[np.ndarray, Position]]:
        """Yield sequences, each with the position behind it."""
        unused: deque[tuple[Position, int]] = deque()  # batches that were read, and their tokens

        def documents() -> Iterator[dict[str, list[int]]]:
            skipped = start.token
            for place, ids in self.batches(seed, start):
                unused.append((place, len(ids)))
                yield {"input_ids": ids[skipped:]}
                skipped = 0

        token = start.token
        for row in cut(documents(), self.sequence_length):
            token += self.sequence_length
            while len(unused) > 1 and token >= unused[0][1]:
                token -= unused.popleft()[1]
            yield np.array(row["input_ids"], dtype=np.int32), replace(unused[0][0], token=token)


class StreamedSamples:
    """
    A map from sample numbers, which must grow from one call to the next, to what the collator takes.

    While a window is trained on, the next one is read, a sequence for each sample; so two are held in memory.

    Args:
        position: Of the window of the first sample, or one before; None: the beginning.
    """

    def __init__(self, stream: Stream, seed: int, position: dict[str, int] | None = None) -> None:
        self.stream, self.seed = stream, seed
        start = Position(**position or {})
        self._unread: Iterator[tuple[np.ndarray, Position]] | None = None  # opened where it is read: in a worker
        # Of the window at hand and the next one, which begins at `start`: the sequences, and where they begin.
        self._sequences: list[np.ndarray] = []
        self._position = replace(start, window=start.window - 1)
        self._next_sequences: list[np.ndarray] = []
        self._next_position = self._end = start

    def rows_of(self, samples: list[int]) -> list[int]:
        """Return the number in the stream of the sequence of each sample."""
        size = self.stream.window_size
        rows = rows_of_samples(samples, size, self.seed)
        return [sample // size * size + row for sample, row in zip(samples, rows, strict=True)]

    def __getitems__(self, samples: list[int]) -> list[dict[str, Any]]:
        return [self._feature(sample, row) for sample, row in zip(samples, self.rows_of(samples), strict=True)]

    def _feature(self, sample: int, row: int) -> dict[str, Any]:
        window, place = divmod(sample, self.stream.window_size)
        while self._position.window < window:
            self._read_ahead(self.stream.window_size)
            self._sequences, self._position = self._next_sequences, self._next_position
            self._next_sequences, self._next_position = [], replace(self._end, window=self._position.window + 1)
        self._read_ahead(place + 1)
        ids = self._sequences[row % self.stream.window_size]
        return {"input_ids": ids, "order_seed": sample, "position": asdict(self._position)}

    def _read_ahead(self, num_sequences: int) -> None:
        if self._unread is None:
            self._unread = self.stream.sequences(self.seed, self._next_position)
        while len(self._next_sequences) < num_sequences:
            ids, self._end = next(self._unread)
            self._next_sequences.append(ids)


def training_samples(data: Data, seed: int, position: dict[str, int] | None = None) -> Samples | StreamedSamples:
    """Return the training sequences by the number of the sample; `position`: of the last batch, under `streaming`."""
    arguments = data.arguments
    if not arguments.streaming:
        return Samples(data.train, seed)
    stream = Stream(
        *(data.train, arguments.text_column, data.tokenizer),
        *(arguments.sequence_length, arguments.shuffle_window, data.held_out),
    )
    return StreamedSamples(stream, seed, position)
