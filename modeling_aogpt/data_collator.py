# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Data collator for any-order training. It makes batches, and draws an order for each sample.

The order of a sample depends on two seeds: the seed of the run and the seed of the sample. It does not depend on the
batch, the process or the worker. Each sample has its own stream of random numbers from SplitMix64 (Steele, Lea and
Flood, "Fast splittable pseudorandom number generators", 2014). SplitMix64 can compute any number of a stream without
the numbers before it, so all orders of a batch are computed at once.
"""

import operator
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
import torch.nn.functional as F

from .orders import Orders, group_orders
from .validation import check_integer, check_number, find_tokens, is_integer, logger, remove_token_types

TrainingOrder = Literal["left_to_right", "random", "shared", "context_first", "gaps_last"]
TRAINING_ORDERS = get_args(TrainingOrder)

# With this fraction of left-to-right sequences, left-to-right and any-order losses improve (the paper's Finding 3).
LEFT_TO_RIGHT_FRACTION = 0.1

# With `max_gap_length`: fraction of random orders among the sequences that are not left to right. Without random
# orders, the model would predict ends of gaps in other orders, too.
RANDOM_FRACTION = 0.25

GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # SplitMix64's increment, as a signed integer
LAST_KEY = torch.iinfo(torch.int64).max  # sort key of padding
SHARED_SAMPLE = -1  # sample seed of `orders="shared"`, where all samples have the same order


def mix_bits(states: torch.LongTensor) -> torch.LongTensor:
    """Return SplitMix64's output for each 64-bit state. Different states have different outputs."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        states = (states ^ shift_right(states, shift)) * (factor - 2**64)
    return states ^ shift_right(states, 31)


def shift_right(values: torch.LongTensor, bits: int) -> torch.LongTensor:
    """Shift 64-bit integers right by `bits`, and fill the upper bits with zeros, as for unsigned integers."""
    return (values >> bits) & (2 ** (64 - bits) - 1)


def make_streams(seed: int, samples: torch.LongTensor) -> torch.LongTensor:
    """Return the initial SplitMix64 state of each sample's stream, in the shape of `samples`."""
    return mix_bits((int(seed) * GOLDEN + 2**63) % 2**64 - 2**63 + samples)


def draw_integers(streams: torch.LongTensor, count: int) -> torch.LongTensor:
    """Return the first `count` random 64-bit integers of each stream, in a tensor (*streams.shape, count)."""
    return mix_bits(streams[..., None] + GOLDEN * torch.arange(1, count + 1, device=streams.device))


def to_uniform(integers: torch.LongTensor) -> torch.Tensor:
    """Convert random 64-bit integers to float64 numbers that are uniform in [0, 1)."""
    return shift_right(integers, 11).double() * 2.0**-53


@dataclass
class OrderDistribution:
    """Distribution from which the orders of training samples are drawn.

    Args:
        orders (`str`, defaults to `"random"`): `"random"`: every order is equally likely; `"shared"`: one random order
            for all sequences of the run (Finding 2 of the paper); `"left_to_right"`; `"context_first"`: first a random
            subset of the positions from left to right, then the other positions in random order; `"gaps_last"`: first
            all positions outside random gaps, then those in the gaps, both from left to right. Text and gaps alternate,
            and both have the same mean length, which is drawn for each sequence, uniformly on a log scale, between 2
            and the number of tokens.
        block_length (`int`, *optional*): Predict contiguous blocks of this length one after another, from left to
            right. `orders` applies within each block. With `"shared"`, every block has the same order.
        stride (`int`, *optional*): Like `block_length`, but with strided blocks: first the positions 0, stride, 2
            stride, ..., then 1, stride + 1, ...
        left_to_right_fraction (`float`, *optional*): Probability that a sequence gets the left-to-right order instead.
            Defaults to 0.1 for `"random"` without blocks (Finding 3 of the paper), and to 0 otherwise.
        min_context (`int`, *optional*): Only for `"context_first"`: smallest number of positions in the subset. The
            number is drawn uniformly from `min_context` to `max_context`, both included. Defaults to 0.
        max_context (`int`, *optional*): Only for `"context_first"`: largest number of positions in the subset. The
            default, and the limit for short sequences, is the number of tokens minus 1.
        max_gap_length (`int`, *optional*): Only for `"gaps_last"` in the data collator: largest number of slots to add
            to each gap. The number is uniform in 0 ... `max_gap_length`. A model can then predict the end of such gaps.

    Raises:
        ValueError: If a value is not allowed.
    """

    orders: str = "random"
    block_length: int | None = None
    stride: int | None = None
    left_to_right_fraction: float | None = None
    min_context: int | None = None
    max_context: int | None = None
    max_gap_length: int | None = None

    def __post_init__(self) -> None:
        has_blocks = self._order.has_blocks
        needs = {"min_context": "context_first", "max_context": "context_first", "max_gap_length": "gaps_last"}
        for name, orders in needs.items():
            if (value := getattr(self, name)) is not None:
                check_integer(name, value, int(name != "min_context"))
                if self.orders != orders:
                    raise ValueError(
                        f"`{name}` has no effect without `orders={orders!r}`. Set `orders`, or remove `{name}`."
                    )
        if self.max_context is not None and (self.min_context or 0) > self.max_context:
            raise ValueError(
                f"`min_context` ({self.min_context}) is more than `max_context` ({self.max_context}). Change one."
            )
        if self.orders in ("context_first", "gaps_last") and has_blocks:
            raise ValueError(
                f"`block_length` and `stride` cannot be combined with `orders={self.orders!r}`. Remove these arguments."
            )
        if self.left_to_right_fraction is None:
            self.left_to_right_fraction = LEFT_TO_RIGHT_FRACTION if self._order.is_uniform else 0.0
        check_number("left_to_right_fraction", self.left_to_right_fraction, most=1)

    @property
    def _order(self) -> Orders:
        return Orders(self.orders, self.block_length, self.stride, names=TRAINING_ORDERS, takes_tensor=False)

    def draw(
        self,
        seed: int,
        samples: torch.LongTensor,
        lengths: torch.LongTensor,
        width: int,
        fractions: torch.Tensor | None = None,
        given_context: torch.BoolTensor | None = None,
        has_given: torch.BoolTensor | None = None,
        turns: torch.LongTensor | None = None,
    ) -> tuple[torch.LongTensor, torch.BoolTensor]:
        """Return the order (batch, width) of each sample, and a boolean mask (batch, width) of its context.

        The context comes first, from left to right. Padding comes last.

        Args:
            seed: Seed of the run.
            samples: Seed (batch,) of each sample, such as its index.
            lengths: Number (batch,) of tokens of each sample. Later positions are padding.
            width: Number of positions.
            fractions: Probability (batch, 1) of the left-to-right order. Defaults to `left_to_right_fraction`.
            given_context: Context (batch, width) given by the data. With `"gaps_last"`, the other positions are gaps.
            has_given: Whether (batch, 1) the context of a sample is given; it may be empty. With `"context_first"`,
                other samples get a random one, unless their order is left to right.
            turns: Turn number (batch, width) of each position. Turns follow one another, each with its context first.
        """
        positions = torch.arange(width, device=samples.device)
        is_padding = positions >= lengths[:, None]
        fractions = self.left_to_right_fraction if fractions is None else fractions
        is_left_to_right = to_uniform(draw_integers(make_streams(seed, samples), 1)) < fractions
        keys = self._draw_keys(seed, samples, lengths, positions)
        is_context = torch.zeros_like(is_padding)
        if self.orders == "context_first":
            num_context = self._draw_context_sizes(seed, samples, lengths).masked_fill(is_left_to_right[:, 0], 0)
            ranks = keys.masked_fill(is_padding, LAST_KEY).argsort(dim=-1, stable=True).argsort(dim=-1)
            is_context = ranks < num_context[:, None]
        if given_context is not None:
            is_context = torch.where(has_given, given_context, is_context)
            keys = torch.where(has_given & (self.orders == "gaps_last"), positions, keys)
        keys = torch.where(is_left_to_right, positions, keys)
        keys = torch.where(is_context, positions - width, keys)
        orders = keys.masked_fill(is_padding, LAST_KEY).argsort(dim=-1, stable=True)
        if self._order.has_blocks:
            blocks = self._order.blocks(positions).masked_fill(is_left_to_right, 0)
            orders = group_orders(orders, blocks.masked_fill(is_padding, width))
        if turns is not None:
            orders = group_orders(orders, turns.masked_fill(is_padding, width))
        return orders, is_context

    def _draw_context_sizes(self, seed: int, samples: torch.LongTensor, lengths: torch.LongTensor) -> torch.LongTensor:
        """Draw the number (batch,) of positions that come first with `"context_first"`."""
        most = lengths - 1 if self.max_context is None else (lengths - 1).clamp(max=self.max_context)
        least = most.clamp(max=self.min_context or 0)
        # The orders do not use the number for a stream's initial state, so the number does not depend on them.
        uniform = to_uniform(mix_bits(make_streams(seed, samples)))
        return least + (uniform * (most - least + 1)).long()

    def _draw_keys(
        self, seed: int, samples: torch.LongTensor, lengths: torch.LongTensor, positions: torch.LongTensor
    ) -> torch.LongTensor:
        """Return nonnegative sort keys of positions, (batch, width) or (width,). Lower keys come first."""
        if self.orders == "left_to_right":
            return positions
        if self.orders == "shared":  # positions at the same offset in their blocks get the same key
            offsets = positions // (self.stride or 1) if self.block_length is None else positions % self.block_length
            stream = make_streams(seed, torch.tensor(SHARED_SAMPLE, device=positions.device))
            return shift_right(draw_integers(stream, len(positions))[offsets], 1)
        streams = make_streams(seed, samples)
        if self.orders == "gaps_last":
            return positions + draw_gaps(streams, lengths, len(positions))[0] * len(positions)
        # The first number of each stream decides whether the order is left to right, so it is not used here.
        return shift_right(draw_integers(streams, len(positions) + 1)[:, 1:], 1)


def draw_gaps(
    streams: torch.LongTensor, lengths: torch.LongTensor, width: int
) -> tuple[torch.BoolTensor, torch.DoubleTensor]:
    """Return random gaps (batch, width), and 1 / the mean length (batch, 1) of gaps and of text between them."""
    positions = torch.arange(width, device=streams.device)
    # The first number of each stream decides whether the order is left to right, so it is not used here.
    uniform = to_uniform(draw_integers(streams, width + 2)[:, 1:])
    # Probability of a change between text and gap at a position. The first position is in a gap with probability 0.5.
    rates = 0.5 * (2 / lengths[:, None].double()) ** uniform[:, :1]
    is_change = uniform[:, 1:] < torch.where(positions == 0, 0.5, rates)
    return is_change.cumsum(dim=-1) % 2 == 1, rates


def draw_slots(
    streams: torch.LongTensor,
    lengths: torch.LongTensor,
    may_be_missing: torch.BoolTensor,
    most: int,
    is_example: torch.BoolTensor,
) -> tuple[torch.BoolTensor, torch.LongTensor]:
    """Return random gaps (batch, width), and the number (batch, width) of slots to add after the end of each gap.

    The number is uniform in 0 ... `most` for every gap. The total number of slots of a gap therefore says nothing about
    the length of its text (up to `most`). The position where the sequence ends says nothing, either, because sequences
    keep their length. A gap that does not fit with its slots and a token after them becomes text. Some other gaps of
    [`draw_gaps`] also become text, so that about half of the slots are in gaps.

    If `is_example` (batch, 1), all tokens that may be missing are in gaps, which get only slots that fit.
    """
    width = may_be_missing.shape[1]
    positions = torch.arange(width, device=streams.device)
    is_gap, rates = draw_gaps(streams, lengths, width)
    is_gap = (is_gap | is_example) & may_be_missing
    # Draw two numbers per position from another stream, so that they do not depend on `width`.
    uniform = to_uniform(draw_integers(mix_bits(streams), 2 * width)).unflatten(1, (width, 2))
    starts = (positions * (is_gap & ~F.pad(is_gap[:, :-1], (1, 0)))).cummax(dim=1).values
    is_gap &= is_example | (uniform[..., 0].gather(1, starts) < 4 / (4 + most * rates))
    is_last = is_gap & ~F.pad(is_gap[:, 1:], (0, 1))
    slots = is_last * (uniform[..., 1] * (most + 1)).long()
    room = (lengths[:, None] - 2 - (is_last * positions).amax(dim=1, keepdim=True)).clamp(min=0)  # for all gaps
    slots = torch.where(is_example, F.pad(slots.cumsum(dim=1).minimum(room), (1, 0)).diff(dim=1), slots)
    fits = is_last & (is_example | (positions + slots.cumsum(dim=1) < lengths[:, None] - 1))
    is_gap &= positions <= torch.where(fits, positions, -1).amax(dim=1, keepdim=True)
    return is_gap, slots * is_gap


def insert_slots(
    ids: torch.LongTensor,
    labels: torch.LongTensor,
    lengths: torch.LongTensor,
    is_gap: torch.BoolTensor,
    slots: torch.LongTensor,
    end: int,
) -> dict[str, torch.LongTensor]:
    """Return `input_ids`, `orders` and `labels` (batch, width) of sequences whose gaps have additional `slots`.

    First comes the text outside the gaps, then the gaps, both from left to right. A gap with slots ends with `end`.
    """
    width = ids.shape[1]
    positions = torch.arange(width, device=ids.device)
    columns = positions + slots.cumsum(dim=1) - slots
    is_kept = columns < lengths[:, None]
    ends = torch.where(slots > 0, columns + 1, width)
    columns = torch.where(is_kept, columns, width)  # a further column, for what is cut off

    def place(values: torch.Tensor, of_ends: int | torch.Tensor, of_others: int) -> torch.LongTensor:
        placed = torch.full((len(ids), width + 1), of_others, device=ids.device).scatter(1, columns, values)
        return placed.scatter(1, ends, of_ends)[:, :width]

    keys = torch.where(positions < lengths[:, None], columns + is_gap * width, LAST_KEY)
    return {
        "input_ids": place(ids, end, end),
        "orders": place(keys, ends + width, LAST_KEY).argsort(dim=1, stable=True),
        "labels": place(labels.masked_fill(~is_kept, -100), end, -100),
    }


@dataclass
class DataCollatorForAnyOrderLM(OrderDistribution):
    """Data collator that pads sequences, draws an order for each sequence, and makes labels.

    The collator takes a list of features. A feature is the mapping of one sequence, with these keys:

    * `input_ids`: token ids.
    * `labels` (optional): ids to predict; defaults to `input_ids`.
    * `attention_mask` (optional): 0 at padding. The collator removes this padding.
    * `order_seed` (optional): an integer, such as the index of the sample. The order is then a function of `seed` and
      `order_seed`. Without an `order_seed`, the order comes from a random stream that is different in each process and
      worker, and begins again when the `Trainer` resumes a run, which then differs from an uninterrupted one. Give one
      to evaluation data, so that each evaluation has the same orders.
    * `left_to_right_fraction` (optional): replaces the argument of the same name for this sequence. With it, the
      fraction can change during training.
    * `in_turns` (optional): whether each part of the context is read just before the tokens that follow it, as in a
      chat. Otherwise, the whole context is read first, so the text after a gap is read before the gap is filled in.
      With this key, a feature without a given context gets no random one.

    Pass `remove_unused_columns=False` to `TrainingArguments`. Otherwise, the `Trainer` removes the last three keys.

    The collator returns a dict with `input_ids`, `orders` and `labels` (-100 at padding), all of shape (batch, n). If a
    sequence was padded, the dict also has an `attention_mask`. Padding is on the right, and is last in each order.

    With `orders="context_first"`, the positions that come first are the context. Their labels are -100. If the given
    `labels` of a feature are -100 at some positions, these positions are its context. Otherwise, the context is drawn.
    With `orders="gaps_last"`, a context that is given in this way also comes first, and the other positions are the
    gaps, which follow from left to right.

    With `max_gap_length`, the model learns to predict where a gap ends. Each gap gets 0 to `max_gap_length`
    additional slots between its last token and the text after it. The first of them has the label `eos_token_id`. The
    others are last in the order, and have no label. Sequences do not become longer: text at their end is cut off.
    End-of-text tokens of the text are not part of gaps. A quarter of the sequences that are not left to right get
    random orders instead, unless their context is given.

    Args:
        orders (`str`, defaults to `"random"`): Together with `block_length`, `stride`, `left_to_right_fraction`,
            `min_context`, `max_context` and `max_gap_length`, the distribution of the orders (see
            [`OrderDistribution`]).
        pad_token_id (`int`, *optional*): Id with which shorter sequences are padded. Any id of the vocabulary can be
            used, because no token attends to padding.
        seed (`int`, defaults to 0): Seed of the run, from which orders are drawn.
        pad_to_multiple_of (`int`, *optional*): Round the length of the sequences up to a multiple of this number.
        start_token_id (`int`, *optional*): `config.start_token_id` of the model. If a sequence begins with this token,
            the label of the token becomes -100, because it has no loss. Otherwise, the `Trainer` counts it as a label.
        eos_token_id (`int`, *optional*): Id of end-of-text. Needed with `max_gap_length`.

    Raises:
        ValueError: If a value is not allowed. Calling the collator also raises it if a feature has no `input_ids` or is
            not a single sequence of integers, or if a sequence must be padded but `pad_token_id` is None.

    Examples:
        >>> collator = DataCollatorForAnyOrderLM(pad_token_id=0)
        >>> batch = collator([{"input_ids": [5, 6, 7], "order_seed": 0}, {"input_ids": [8, 9], "order_seed": 1}])
        >>> batch["labels"]
        tensor([[   5,    6,    7],
                [   8,    9, -100]])
    """

    pad_token_id: int | None = None
    seed: int = 0
    pad_to_multiple_of: int | None = None
    start_token_id: int | None = None
    eos_token_id: int | None = None
    _stream: tuple[tuple[int, int], random.Random] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pad_token_id is not None and not is_integer(self.pad_token_id):
            raise ValueError(
                f"`pad_token_id` must be an integer, such as tokenizer.pad_token_id, but has type "
                f"{type(self.pad_token_id).__name__}."
            )
        if not is_integer(self.seed):
            raise ValueError(f"`seed` must be an integer, but is {self.seed!r}.")
        if self.pad_to_multiple_of is not None:
            check_integer("pad_to_multiple_of", self.pad_to_multiple_of)
        if self.max_gap_length is not None and self.eos_token_id is None:
            raise ValueError("`max_gap_length` needs `eos_token_id`, which ends a gap. Set both, or remove both.")

    def __call__(self, features: Sequence[Mapping[str, object]]) -> dict[str, torch.Tensor]:
        """Make a batch from a list of features."""
        with torch.device("cpu"):  # workers of a data loader may not be able to use torch's default device
            return self._make_batch(features)

    def _make_batch(self, features: Sequence[Mapping[str, object]]) -> dict[str, torch.Tensor]:
        if not features:
            raise ValueError("The batch has no features. Pass at least one feature.")
        ids, labels = zip(*(_read_feature(feature, index) for index, feature in enumerate(features)), strict=True)
        lengths = [len(row) for row in ids]
        if min(lengths) == 0:
            raise ValueError(f"Feature {lengths.index(0)} has no tokens. Remove empty texts from the dataset.")
        multiple = self.pad_to_multiple_of or 1
        width = -(-max(lengths) // multiple) * multiple
        if min(lengths) < width and self.pad_token_id is None:
            raise ValueError(
                f"Sequences of {min(lengths)} tokens need padding to {width}. Set `pad_token_id` to "
                "tokenizer.pad_token_id or to any other id of the vocabulary, or make all sequences equally long."
            )
        samples = torch.tensor([self._order_seed(feature) for feature in features])
        given = [feature.get("left_to_right_fraction") for feature in features]
        fractions = [self.left_to_right_fraction if fraction is None else float(fraction) for fraction in given]
        for fraction in fractions:
            check_number("left_to_right_fraction", fraction, most=1)
        padded_labels = _pad(labels, width, -100)
        num_tokens = torch.tensor(lengths)
        is_token = torch.arange(width) < num_tokens[:, None]
        is_given = has_given = turns = None
        if self.orders in ("context_first", "gaps_last"):
            is_given = is_token & (padded_labels == -100)
            is_example = torch.tensor([["in_turns" in feature] for feature in features])
            has_given = is_example | is_given.any(dim=1, keepdim=True)
            in_turns = torch.tensor([bool(feature.get("in_turns", False)) for feature in features])
            is_start = is_given & ~F.pad(is_given[:, :-1], (1, 0))
            turns = is_start.cumsum(dim=1) * in_turns[:, None]
        fractions = torch.tensor(fractions, dtype=torch.float64)[:, None]
        batch = {"input_ids": _pad(ids, width, self.pad_token_id or 0)}
        is_start_token = torch.zeros_like(is_token)
        if self.start_token_id is not None:
            is_start_token[:, 0] = batch["input_ids"][:, 0] == self.start_token_id
        if self.max_gap_length is None:
            drawn = self.draw(self.seed, samples, num_tokens, width, fractions, is_given, has_given, turns)
            batch |= {"orders": drawn[0], "labels": padded_labels.masked_fill(drawn[1], -100)}
        elif turns.any():
            raise ValueError("`max_gap_length` cannot be combined with `in_turns`. Remove one of them.")
        else:
            streams = make_streams(self.seed, samples)
            choice = to_uniform(draw_integers(streams, 1))
            has_gaps = choice >= fractions + RANDOM_FRACTION * ~has_given * (1 - fractions)
            may_be_missing, is_end = is_token & ~is_given & ~is_start_token, batch["input_ids"] == self.eos_token_id
            if (may_be_missing & is_end & has_given).any():
                raise ValueError("A gap of a feature has `eos_token_id` as a label. Give the label -100 to this token.")
            may_be_missing &= ~is_end
            gaps = draw_slots(streams, num_tokens, may_be_missing & has_gaps, self.max_gap_length, has_given)
            batch = insert_slots(batch["input_ids"], padded_labels, num_tokens, *gaps, self.eos_token_id)
            others, _ = OrderDistribution().draw(self.seed, samples, num_tokens, width, fractions)
            batch["orders"] = torch.where(has_gaps, batch["orders"], others)
        batch["labels"].masked_fill_(is_start_token, -100)
        if min(lengths) < width:
            batch["attention_mask"] = is_token.long()
        return batch

    def _order_seed(self, feature: Mapping[str, object]) -> int:
        """Return the feature's `order_seed` as a signed 64-bit integer, or a random seed if the feature has none."""
        given = feature.get("order_seed")
        if given is not None:
            try:
                return (operator.index(given) + 2**63) % 2**64 - 2**63
            except TypeError:
                raise ValueError(f"`order_seed` must be an integer, but is {given!r}.") from None
        # `RANK` differs between processes. `worker.seed` differs between workers of a data loader, and between epochs.
        worker = torch.utils.data.get_worker_info()
        key = (int(os.environ.get("RANK", "0")), worker.seed if worker else -1)
        if self._stream is None or self._stream[0] != key:
            seed = make_streams(int(make_streams(self.seed, torch.tensor(key[0]))), torch.tensor(key[1]))
            self._stream = key, random.Random(int(seed) % 2**64)  # workers cannot always read a torch.Generator
        return self._stream[1].getrandbits(64) - 2**63


def _read_feature(feature: Mapping[str, object], index: int) -> tuple[torch.LongTensor, torch.LongTensor]:
    """Check a feature, and return its ids and labels (n,) without padding. `index` is for error messages."""
    if not isinstance(feature, Mapping) or "input_ids" not in feature:
        given = f"has {', '.join(feature)}" if isinstance(feature, Mapping) else f"has type {type(feature).__name__}"
        raise ValueError(
            f"Feature {index} must be a mapping with `input_ids`, but {given}. Pass a list of tokenized texts, such as "
            '[{"input_ids": ids} for ids in tokenizer(texts).input_ids].'
        )
    if "orders" in feature:
        raise ValueError(f"Feature {index} contains `orders`, but the collator draws them. Remove `orders`.")
    remove_token_types(dict(feature))
    ids = torch.as_tensor(feature["input_ids"])
    labels, mask = feature.get("labels"), feature.get("attention_mask")
    for name in ("assistant_masks", "completion_mask"):  # of Transformers and TRL
        if labels is None and feature.get(name) is not None:
            logger.warning_once(f"`{name}` has no effect: all tokens are learned. Pass `labels`, with -100 at prompts.")
    labels = ids if labels is None else torch.as_tensor(labels)
    mask = torch.ones_like(ids) if mask is None else torch.as_tensor(mask)
    if ids.dim() != 1 or ids.shape != labels.shape or ids.shape != mask.shape:
        raise ValueError(
            f"Feature {index} must be one sequence. Its `input_ids`, `labels` and `attention_mask` must have the same "
            f"shape (n,), but `input_ids` has shape {tuple(ids.shape)}, `labels` {tuple(labels.shape)} and "
            f"`attention_mask` {tuple(mask.shape)}."
        )
    if len(ids) and (ids.is_floating_point() or labels.is_floating_point()):
        raise ValueError(
            f"Feature {index} must hold integers, but has {ids.dtype} and labels of {labels.dtype}. Convert them."
        )
    is_token = find_tokens(ids, mask)
    return ids[is_token].long(), labels[is_token].long()


def _pad(rows: Sequence[torch.Tensor], length: int, value: int) -> torch.Tensor:
    return torch.stack([F.pad(row, (0, length - len(row)), value=value) for row in rows])
