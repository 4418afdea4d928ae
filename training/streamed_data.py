# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Training data that is read, tokenized and packed during training.

Every epoch reads the files in a new random order. The documents of all files and epochs are joined and cut into
sequences, so no tokens are lost at the end of a file or epoch. A shuffle window, or window, consists of `window_size`
consecutive sequences, which are shuffled together. The samples, the training sequences of a run, are numbered. A sample
depends only on the corpus, the seed and its number.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain, count, islice
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from common.data import Data
from common.encoding import encode_batch
from common.packing import cut
from common.splitting import Split, has_text
from training.batches import Samples, epoch_permutation, rows_of_samples

logger = logging.get_logger(__name__)

DOCUMENTS_PER_BATCH = 256  # the tokenizer encodes a batch in parallel


@dataclass(frozen=True)
class Position:
    """Position in the stream at which a shuffle window begins. It does not depend on the version of `datasets`."""

    window: int = 0  # index of the window in the run
    epoch: int = 0
    shard: int = 0  # index of the file in the order of the epoch
    batch: int = 0  # index of the batch of `DOCUMENTS_PER_BATCH` documents in the file
    token: int = 0  # index of the window's first token in the tokens of the batch


@dataclass(frozen=True)
class Stream:
    """Corpus that is read as a stream."""

    texts: Split  # its rows are a stream whose shards are files
    tokenizer: PreTrainedTokenizerBase
    sequence_length: int
    window_size: int  # number of sequences that are shuffled together

    def batches(self, seed: int, start: Position) -> Iterator[tuple[Position, list[int]]]:
        """Yield the position and the ids (see `encode`) of each batch of documents from `start` on, without end."""
        first_shard, first_batch, num_shards = start.shard, start.batch, self.texts.rows.num_shards
        for epoch in count(start.epoch):
            for shard in range(first_shard, num_shards):
                texts = self._read_file(int(epoch_permutation(num_shards, seed, epoch)[shard]))
                for batch, documents in enumerate(islice(texts, first_batch, None), first_batch):
                    yield Position(epoch=epoch, shard=shard, batch=batch), self.encode(documents)
                first_batch = 0
            first_shard = 0

    def _read_file(self, file: int) -> Iterator[list[str | None]]:
        """Yield lists of `DOCUMENTS_PER_BATCH` documents of a file. Raise an `OSError` if it cannot be read."""
        rows, column, num_empty, num_rows = self.texts.rows, self.texts.column, 0, 0
        name = f"File {file + 1} of the {rows.num_shards} files of the corpus"
        try:
            for table in rows.shard(rows.num_shards, file).with_format("arrow").iter(DOCUMENTS_PER_BATCH):
                texts = table[column].to_pylist()
                num_empty, num_rows = num_empty + sum(not has_text(text) for text in texts), num_rows + len(texts)
                yield texts
        except Exception as error:  # each builder raises its own kinds of errors
            raise OSError(f"{name} cannot be read. Correct it, and start a new run. (Cause: {error})") from error
        if num_empty:
            # Not again in later epochs
            logger.warning_once(f"{name}: {num_empty} of {num_rows} documents have no text, and are skipped.")

    def encode(self, texts: list[str | None]) -> list[int]:
        """Return the ids of joined documents, each followed by end-of-text. Skip empty and held-out documents."""
        selected = self.texts.select(texts)
        return list(chain.from_iterable(encode_batch(selected, self.tokenizer, False)["input_ids"])) if selected else []

    def sequences(self, seed: int, start: Position) -> Iterator[tuple[np.ndarray, Position]]:
        """Yield each sequence from `start` on, and the position of the first token after the sequence."""
        unused: deque[tuple[Position, int]] = deque()  # (position, length) of batches with unused tokens

        def documents() -> Iterator[dict[str, list[int]]]:
            skipped = start.token
            for position, ids in self.batches(seed, start):
                unused.append((position, len(ids)))
                yield {"input_ids": ids[skipped:]}
                skipped = 0

        token = start.token
        for row in cut(documents(), self.sequence_length):
            token += self.sequence_length
            while len(unused) > 1 and token >= unused[0][1]:
                token -= unused.popleft()[1]
            yield np.array(row["input_ids"], dtype=np.int32), replace(unused[0][0], token=token)


class StreamedSamples:
    """Dataset that maps the number of a sample to the features that a data collator takes as input.

    Samples must be read in increasing order. Whenever a sample of a shuffle window is taken, one sequence of the next
    window is read. `position` is the start of the first sample's window or of an earlier window. It defaults to the
    start of the stream.
    """

    def __init__(self, stream: Stream, seed: int, position: dict[str, int] | None = None) -> None:
        self.stream, self.seed, self._position = stream, seed, Position(**position or {})
        self._unread: Iterator[tuple[np.ndarray, Position]] | None = None  # created on first use, inside a worker
        self._read: list[tuple[np.ndarray, Position]] = []  # this window and the start of the next

    def __getitems__(self, samples: list[int]) -> list[dict[str, Any]]:
        rows = rows_of_samples(samples, self.stream.window_size, self.seed)
        return [self._feature(sample, row) for sample, row in zip(samples, rows, strict=True)]

    def _feature(self, sample: int, row: int) -> dict[str, Any]:
        size = self.stream.window_size
        window, index = divmod(sample, size)
        while self._position.window < window:
            self._read_ahead(size)
            self._position = replace(self._read[size - 1][1], window=self._position.window + 1)
            del self._read[:size]
        self._read_ahead(size + index + 1)
        return {"input_ids": self._read[row][0], "order_seed": sample, "position": asdict(self._position)}

    def _read_ahead(self, num_sequences: int) -> None:
        if self._unread is None:
            self._unread = self.stream.sequences(self.seed, self._position)
        while len(self._read) < num_sequences:
            self._read.append(next(self._unread))


def training_samples(data: Data, seed: int, position: dict[str, int] | None = None) -> Samples | StreamedSamples:
    """Return the training dataset of a run. `position` is a `Position` in a streamed corpus, as a dictionary."""
    arguments = data.arguments
    if not arguments.streaming:
        return Samples(data.train, seed)
    stream = Stream(data.train, data.tokenizer, arguments.sequence_length, arguments.shuffle_window)
    return StreamedSamples(stream, seed, position)
