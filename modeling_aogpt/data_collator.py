# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Batches for any-order training."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from .seeded_orders import OrderDistribution, stream_of


@dataclass
class DataCollatorForAnyOrderLM:
    """
    Pads sequences, draws an order for each and makes labels.

    A feature is a mapping with `input_ids` and, optionally, `labels` (default: the ids), `attention_mask` (0 at
    padding, which is taken off) and `order_seed`, an integer such as the running number of the sample. With an
    `order_seed` the order is a function of `(seed, order_seed)` alone, the same in whatever batch, process or worker;
    without it orders are drawn one after another from a stream of each process and worker. (The `Trainer` drops a
    column `order_seed` unless `remove_unused_columns=False`.)

    Args:
        pad_token_id (`int`, *optional*): Pads sequences of unequal length; may be any valid id, since padding is
            masked.
        left_to_right_fraction (`float`): Share of left-to-right orders, the others are `orders` (Finding 3: 0.1).
        seed (`int`): Of the orders.
        orders (`str`): What the other orders are drawn from: `"uniform"`, all alike; `"blocks-N"`, contiguous blocks of
            N positions one after the other, and uniform within; `"strided-N"`, as well, with blocks of every N-th
            position; `"fixed"`, `"fixed-blocks-N"`, `"fixed-strided-N"`, one such order for all sequences, the same
            within each block (Finding 2); `"left_to_right"`.
        pad_to_multiple_of (`int`, *optional*): Rounds the length of a batch up.

    Returns, when called with a list of features, a dict of `input_ids`, `orders`, `labels` (batch, n; -100 at padding)
    and, if anything was padded, `attention_mask`. Padding stands on the right, and last in each order.

    Raises:
        ValueError: If lengths differ and there is no `pad_token_id`, a feature has no `input_ids`, a sequence is empty
            or no list of integers, its labels are not as long, or the fraction or the name of the orders is none.
    """

    pad_token_id: int | None = None
    left_to_right_fraction: float = 0.1
    seed: int = 0
    pad_to_multiple_of: int | None = None
    orders: str = "uniform"
    _stream: tuple[tuple[int, int], torch.Generator] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.pad_token_id, int | None):
            given = type(self.pad_token_id).__name__
            raise ValueError(f"pad_token_id is a {given}, but must be an id, such as tokenizer.pad_token_id, or None.")
        if self.pad_to_multiple_of is not None and self.pad_to_multiple_of < 1:
            raise ValueError(f"pad_to_multiple_of={self.pad_to_multiple_of} must be at least 1, or None: no rounding.")
        self._distribution = OrderDistribution.named(self.orders, self.left_to_right_fraction)

    def __call__(self, features: Sequence[Mapping[str, object]]) -> dict[str, torch.Tensor]:
        with torch.device("cpu"):  # whatever the default device: a loader's workers can reach no other
            return self._batch(features)

    def _batch(self, features: Sequence[Mapping[str, object]]) -> dict[str, torch.Tensor]:
        if not features:
            raise ValueError("There are no features to make a batch of; give at least one.")
        ids, labels = zip(*(_read(feature, index) for index, feature in enumerate(features)), strict=True)
        lengths = [len(row) for row in ids]
        if min(lengths) == 0:
            raise ValueError(
                f"Sequence {lengths.index(0)} of the batch is empty; leave empty texts out of the data set."
            )
        longest = self._padded_length(max(lengths))
        if min(lengths) < longest and self.pad_token_id is None:
            raise ValueError(
                f"Sequences of {min(lengths)} to {longest} tokens cannot be stacked: give the collator a pad_token_id "
                "(tokenizer.pad_token_id, or any valid id), or make them equally long."
            )
        samples = torch.tensor([self._order_seed(feature) for feature in features])
        batch = {
            "input_ids": _pad(ids, longest, self.pad_token_id or 0),
            "orders": self._distribution.draw(self.seed, samples, torch.tensor(lengths), longest),
            "labels": _pad(labels, longest, -100),
        }
        if min(lengths) < longest:
            batch["attention_mask"] = (torch.arange(longest) < torch.tensor(lengths)[:, None]).long()
        return batch

    def _padded_length(self, length: int) -> int:
        multiple = self.pad_to_multiple_of or 1
        return -(-length // multiple) * multiple

    def _order_seed(self, feature: Mapping[str, object]) -> int:
        """That of the feature, as a signed 64-bit integer, or the next of the stream of this process and worker."""
        given = feature.get("order_seed")
        if given is not None:
            return (int(given) + 2**63) % 2**64 - 2**63
        # Every process and, in every epoch, every worker of a loader has a stream of its own.
        worker = torch.utils.data.get_worker_info()
        place = (int(os.environ.get("RANK", "0")), worker.seed if worker else -1)
        if self._stream is None or self._stream[0] != place:
            seed = stream_of(int(stream_of(self.seed, torch.tensor(place[0]))), torch.tensor(place[1]))
            self._stream = place, torch.Generator().manual_seed(int(seed) % 2**63)
        return int(torch.randint(-(2**63), 2**63 - 1, (), generator=self._stream[1]))


def _read(feature: Mapping[str, object], index: int) -> tuple[torch.LongTensor, torch.LongTensor]:
    """Ids and labels of a feature, without its padding."""
    if not isinstance(feature, Mapping) or "input_ids" not in feature:
        given = f"has {', '.join(feature)}" if isinstance(feature, Mapping) else f"is a {type(feature).__name__}"
        raise ValueError(
            f"Feature {index} {given}, but must be a mapping with input_ids: give a list of tokenized texts, such as "
            '[{"input_ids": ids} for ids in tokenizer(texts).input_ids].'
        )
    ids = torch.as_tensor(feature["input_ids"])
    labels = torch.as_tensor(feature.get("labels", ids))
    keep = torch.as_tensor(feature.get("attention_mask", torch.ones_like(ids)))
    if ids.dim() != 1 or ids.shape != labels.shape or ids.shape != keep.shape:
        raise ValueError(
            f"Feature {index} has input_ids of shape {tuple(ids.shape)}, labels of {tuple(labels.shape)} and "
            f"attention_mask of {tuple(keep.shape)}: each must be one sequence, all equally long."
        )
    if len(ids) and (ids.is_floating_point() or labels.is_floating_point()):
        raise ValueError(f"Feature {index} has input_ids or labels that are no integers ({ids.dtype}, {labels.dtype}).")
    return ids[keep != 0].long(), labels[keep != 0].long()


def _pad(rows: Sequence[torch.Tensor], length: int, value: int) -> torch.Tensor:
    return torch.stack([torch.nn.functional.pad(row, (0, length - len(row)), value=value) for row in rows])
