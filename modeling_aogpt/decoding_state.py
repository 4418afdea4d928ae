# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Decoding state: the sequences of a generation, with the operations *query*, *commit*, *reorder* and *remask*.

Sequences are stored by rank: rank k of a sequence is the k-th position in its order. A query runs the model to predict
masked ranks given all unmasked tokens. A commit fills tokens in. Adaptive orders reorder masked ranks, and refinement
re-masks generated tokens. Samplers use only these four operations, so they work for decoders with a cache and for
encoders. Only speculative decoding also uses *verify*, which only decoders have.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from .configuration_aogpt import AOGPTConfig
from .cpu_inference import copy_for_cpu, gains_from_packing, pack_weights
from .cuda_graphs import Recordings, can_record
from .devices import MASK_ALIGNMENT, execution_device, is_compiled, mask_for_kernels, product_dtype, to_device
from .orders import group_orders, index_by_position, index_by_rank, token_positions

# Index (sequences, ranks) into tensors (batch, n) that are indexed by rank.
Indices = tuple[torch.LongTensor, torch.LongTensor]

# Attributes of a decoding state that have shape (batch, n) and are indexed by rank.
VALUES_BY_RANK = ("ids", "orders", "positions", "blocks", "unmasking_steps", "token_logprobs")

# A generation that is expected to take at least this number of passes packs the weights on a CPU (see `pack_weights`).
MIN_PASSES_TO_PREPARE = 32

# A generation that is expected to take at least this number of passes records them on a GPU (see `cuda_graphs.py`).
# Making a recording takes about as long as a pass that is not recorded.
MIN_PASSES_TO_RECORD = 4

# Smallest number of expected passes for which recorded passes use the attention kernels of cuDNN. On an NVIDIA H200,
# cuDNN needs 50 to 110 ms once for each new shape, in each thread. Each pass of AO-GPT small is then about 0.5 ms
# faster, so a generation gains time even in a thread that ends with it.
MIN_PASSES_FOR_CUDNN = 256

# Limits of a recorded pass, over all sequences: its rows, and the slots of the cache. Larger passes gain little, as the
# CPU launches their operations faster than the GPU runs them.
MAX_RECORDED_ROWS = 2**14
MAX_RECORDED_SLOTS = 2**19

# Recorded passes of more than one row have at least this number of rows of each kind, over all sequences. A GPU takes
# about as long for so many rows as for fewer, but every number of rows needs its own recording.
NUM_FREE_ROWS = 16

# If all passes of a generation together would read at least this number of bytes of the cache, which takes a GPU about
# 0.3 s, recorded passes read only the first quarters of the slots that they need. Each quarter takes recordings of its
# own, and execution plans of cuDNN.
MIN_BYTES_TO_SLICE, MIN_SLOTS_PER_SLICE = 2**40, 256

# Largest number of rows of a sequence per pass. It limits the size of the attention mask.
MAX_ROWS_PER_PASS = 2048

# PyTorch compiles one graph for each number of rows and each shape of the batch. Its default limit is 8 graphs.
MAX_COMPILED_GRAPHS = 64


class QueryResult(NamedTuple):
    """Result of [`DecodingState.query`]: one entry for each predicted rank. The entries of a sequence are adjacent."""

    hidden_states: torch.Tensor  # (queries, hidden_size): last hidden states, the inputs of the head
    sequences: torch.LongTensor  # (queries,): index of the sequence
    ranks: torch.LongTensor  # (queries,): the predicted rank

    @property
    def indices(self) -> Indices:
        """Return (sequences, ranks), an index into tensors (batch, n) that are indexed by rank."""
        return self.sequences, self.ranks

    def split(self, size: int) -> list["QueryResult"]:
        """Split into results of at most `size` entries. If there are no entries, return a single empty result."""
        return [QueryResult(*parts) for parts in zip(*(values.split(size) for values in self), strict=True)]


def leading_indices(counts: torch.LongTensor, device: torch.device) -> Indices:
    """Return the indices (sequences, columns), on `device`, of the first `counts[b]` columns of each sequence b."""
    is_leading = torch.arange(int(counts.max()), device=counts.device) < counts[:, None]
    sequences, columns = is_leading.nonzero(as_tuple=True)
    return to_device(sequences, device), to_device(columns, device)


class DecodingState:
    """Base class of decoding states: sequences stored by rank, with unmasked ranks before masked ranks.

    Each sequence consists of its unmasked ranks, followed by its masked ranks and its padding. Subclasses implement
    [`query`]. The CPU keeps the numbers of these ranks, so that it need not wait for an accelerator in every step.

    Args:
        model (`PreTrainedModel`): The model to query.
        ids (`torch.LongTensor` of shape `(batch, n)`): Tokens by position; `config.mask_token_id` at masked ones.
        orders (`torch.LongTensor` of shape `(batch, n)`): Orders of all positions. Only two parts matter: the
            order of the unmasked positions, in which a decoder reads them, and the order of the masked positions, in
            which they are filled in.
        blocks (`torch.LongTensor` of shape `(batch, n)`): Index of the block of each position. A block is filled in
            before all blocks with higher indices.
        is_token (`torch.BoolTensor` of shape `(batch, n)`): False at padding, indexed by position.
    """

    num_calls_before_recording = 1  # see `Recordings`

    def __init__(
        self,
        model: PreTrainedModel,
        ids: torch.LongTensor,
        orders: torch.LongTensor,
        blocks: torch.LongTensor,
        is_token: torch.BoolTensor,
    ) -> None:
        self.model, self.is_token = copy_for_cpu(model), is_token
        is_masked = ids == model.config.mask_token_id
        is_given = is_token & ~is_masked
        # Values (batch, n), by rank. `orders` contains columns of `ids`. In `positions`, padding does not count.
        self.orders = group_orders(orders, torch.where(is_token, is_masked.long(), 2))
        self.blocks = index_by_rank(blocks, self.orders)
        # The other values are parts of one tensor, so that one operation reads or writes several of them. At its end
        # are the id and the position of a start row.
        self._values = torch.cat((ids.new_zeros(4 * ids.numel() + 1), ids.new_full((1,), -1)))
        self.ids, self.positions, self.unmasking_steps, bits = self._values[:-2].view(4, *ids.shape)
        self.ids.copy_(index_by_rank(ids, self.orders))  # a masked rank may contain the mask, a draft or an old token
        self.positions.copy_(index_by_rank(token_positions(is_token), self.orders))
        self.unmasking_steps.fill_(-1)  # step that filled in the rank; -1 if none
        self.token_logprobs = bits.view(torch.float64)
        # Numbers of ranks, (batch,) on the CPU. Ranks from `num_context` to `ends` - 1 are masked. `ends` is lower than
        # `num_tokens` in sequences that have ended with an end-of-text token.
        self.num_context = is_given.sum(dim=-1).cpu()  # unmasked
        self.num_given = self.num_context.clone()  # given by the caller
        self.num_tokens = is_token.sum(dim=-1).cpu()
        self.ends = self.num_tokens.clone()
        self.num_forward_passes = self.num_rows = 0
        self._is_compiled = is_compiled(model.model)
        can_be_recorded = ids.numel() <= MAX_RECORDED_SLOTS and can_record(model.model, ids.device)
        self._recordings: Recordings | None = None
        if can_be_recorded:
            self._recordings = Recordings(model.model, ids.device, self.num_calls_before_recording)
        self.expects_recordings = False  # becomes True if many passes are expected and can be recorded
        # Tables of the adaLN modulations of all positions. Computing them takes at most as long as one full pass.
        num_targets = min(ids.shape[1], model.config.max_position_embeddings)  # a start token needs no position
        self.precomputed = self.model.model.precompute(ids.device, num_targets)
        columns = torch.arange(ids.shape[1], device=ids.device)
        first_masked = torch.where(is_masked & is_token, columns, ids.shape[1]).amin(dim=1)
        last_given = torch.where(is_given, columns, -1).amax(dim=1)
        self.continues_prompt = last_given < first_masked  # (batch,): all given tokens are left of all masks

    def query(self, num_queries: torch.LongTensor) -> QueryResult:
        """Predict the next `num_queries[b]` (on the CPU) masked positions in the order of each sequence b.

        Each prediction sees all unmasked tokens, and none of the other predictions.
        """
        raise NotImplementedError

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the logits (queries, vocab_size) of `hidden_states`, with minus infinity at ids that are not text."""
        logits = self.model.apply_head(hidden_states)
        logits[:, self.model.config.num_valid_tokens :].fill_(float("-inf"))
        return logits

    def commit(
        self,
        tokens: torch.LongTensor,
        indices: Indices,
        num_unmasked: torch.LongTensor,
        token_logprobs: torch.Tensor,
        step: int,
    ) -> None:
        """Fill in `tokens` at `indices`, the next `num_unmasked[b]` masked ranks of each sequence b."""
        self.store(tokens, indices, token_logprobs)
        self.unmask(indices, num_unmasked, step)

    def store(self, tokens: torch.LongTensor, indices: Indices, token_logprobs: torch.Tensor) -> None:
        """Store predicted tokens and their log-probabilities for masked ranks. Do not unmask these ranks."""
        self.ids[indices] = tokens
        self.token_logprobs[indices] = token_logprobs

    def unmask(self, indices: Indices, num_unmasked: torch.LongTensor, step: int) -> None:
        """Unmask the ranks at `indices`, the next `num_unmasked[b]` of each sequence b. Stored tokens become final."""
        # Assigning an integer would make the CPU wait for an accelerator.
        self.unmasking_steps[indices] = torch.full_like(indices[0], step)
        self.num_context += num_unmasked

    def next_ranks(self, counts: torch.LongTensor) -> Indices:
        """Return the index of the next `counts[b]` masked ranks of each sequence b. `counts` is on the CPU."""
        sequences, columns = leading_indices(counts, self.ids.device)
        return sequences, to_device(self.num_context, self.ids.device)[sequences] + columns

    def arrange(self, values: torch.Tensor, result: QueryResult, width: int) -> torch.Tensor:
        """Arrange `values` (queries, ...) of a `result` in a tensor (batch, width, ...): masked rank j in column j."""
        columns = result.ranks - to_device(self.num_context, result.ranks.device)[result.sequences]
        arranged = values.new_zeros(len(self.ids), width, *values.shape[1:])
        arranged[result.sequences, columns] = values
        return arranged

    def check_finite(self) -> None:
        """Raise a `ValueError` if the log-probability of a token is not finite.

        The CPU waits for an accelerator, so this check follows the last step instead of each step.
        """
        if not torch.isfinite(self.token_logprobs).all():
            raise ValueError(
                "The logits are not finite (NaN or infinity), so no token can be drawn. Check the weights, "
                f"their dtype after loading ({self.model.dtype}), and that no logits processor forbids all tokens."
            )

    def reorder(self, ranks: torch.LongTensor) -> None:
        """Permute the ranks: in sequence b, rank `ranks[b, k]` becomes rank k. `ranks` has shape (batch, n)."""
        for name in VALUES_BY_RANK:  # in place, because recordings read and write fixed addresses
            values = getattr(self, name)
            values.copy_(values.gather(1, ranks))

    def reorder_masked(self, columns: torch.LongTensor) -> None:
        """Permute the first masked ranks of each sequence b. Masked rank number `columns[b, j]` becomes number j."""
        num_ranks, width = self.ids.shape[1], columns.shape[1]
        context = to_device(self.num_context, columns.device)[:, None]
        # Columns past the end of a sequence, which must keep their place, are cut off.
        ranks = torch.arange(num_ranks + width, device=columns.device).repeat(len(columns), 1)
        ranks.scatter_(1, context + ranks[:, :width], context + columns)
        self.reorder(ranks[:, :num_ranks])

    def remask(self, is_selected: torch.BoolTensor, orders: torch.LongTensor) -> None:
        """Re-mask the positions in `is_selected` (batch, n). They will be filled in again, in the order in `orders`."""
        is_moved = index_by_rank(is_selected, self.orders)
        priority = index_by_rank(orders.argsort(dim=-1), self.orders)
        ranks = torch.arange(is_moved.shape[1], device=is_moved.device)
        is_padding = ranks >= to_device(self.num_tokens, ranks.device)[:, None]
        key = torch.where(is_moved, len(ranks) + priority, ranks).masked_fill(is_padding, 3 * len(ranks))
        self.num_context -= is_moved.sum(dim=-1).cpu()
        self.reorder(key.argsort(dim=-1, stable=True))

    def end_after_eos(
        self, eos_token_ids: torch.LongTensor, pad_token_id: int, in_blocks: bool, may_end: torch.BoolTensor
    ) -> None:
        """End sequences in `may_end` at a generated end-of-text token without masks before it. Pad the rest.

        Without `in_blocks`, a sequence ends right after its first end-of-text token. With `in_blocks`, it ends with the
        block of this token, once the whole block is unmasked: earlier tokens of the block may have been predicted from
        its later tokens.
        """
        is_eos = self.ranks_between(self.num_given, self.num_context)
        is_eos &= torch.isin(self.ids, to_device(eos_token_ids, self.ids.device))
        is_masked = self.ranks_between(self.num_context, self.ends)
        places = self.blocks if in_blocks else self.orders
        first_eos, first_masked = (  # first selected block or column; n if there is none
            torch.where(selected, places, self.ids.shape[1]).amin(dim=1) for selected in (is_eos, is_masked)
        )
        has_ended = (first_eos < first_masked) & may_end
        is_behind = self.ranks_between(self.num_given, self.num_tokens) & (places > first_eos[:, None])
        is_erased = is_behind & has_ended[:, None]
        self.ids.masked_fill_(is_erased, pad_token_id)
        self.unmasking_steps.masked_fill_(is_erased, -1)
        self.token_logprobs.masked_fill_(is_erased, 0.0)
        self.ends = torch.where(has_ended.cpu(), self.num_context, self.ends)

    def end_gaps(self, end: torch.LongTensor) -> None:
        """Leave the rest of each gap (ranks with the same block) masked if its newest token is one of the ids `end`."""
        newest = to_device(self.num_context - 1, self.ids.device).clamp(min=0)[:, None]
        has_ended = torch.isin(self.ids.gather(1, newest), end) & (self.unmasking_steps.gather(1, newest) >= 0)
        is_masked = self.ranks_between(self.num_context, self.ends)
        is_skipped = is_masked & has_ended & (self.blocks == self.blocks.gather(1, newest))
        if is_skipped.any():
            is_behind = ~self.ranks_between(torch.zeros_like(self.ends), self.ends)
            self.reorder((is_skipped + 2 * is_behind.long()).argsort(dim=1, stable=True))
            self.ends = self.ends - is_skipped.sum(dim=1).cpu()

    def expected_passes(self, num_queries: torch.LongTensor) -> int:
        """Return the number of passes of the generation, if every later pass has `num_queries` (batch,) queries."""
        num_remaining = int(torch.where(num_queries > 0, self.num_masked / num_queries.clamp(min=1), 0).max())
        return self.num_forward_passes + num_remaining

    def should_record(self, num_rows: int, num_queries: torch.LongTensor) -> bool:
        """Return whether to run a pass as a CUDA graph. The pass has `num_rows` rows over all sequences."""
        # Do not record the first pass, because it may contain a prompt.
        if self._recordings is None or self._recordings.has_failed or not self.num_forward_passes:
            return False
        if not self.expects_recordings:
            num_passes = self.expected_passes(num_queries)
            self.expects_recordings = num_passes >= MIN_PASSES_TO_RECORD
            self._recordings.use_cudnn = num_passes >= MIN_PASSES_FOR_CUDNN
            if self.expects_recordings:
                self._prepare_recordings(num_passes)
        return self.expects_recordings and num_rows <= MAX_RECORDED_ROWS

    def _prepare_recordings(self, num_passes: int) -> None:
        """Prepare for a generation that is expected to record most of its `num_passes` passes."""

    @property
    def num_masked(self) -> torch.LongTensor:
        """Return the number of masked ranks of each sequence, (batch,) on the CPU."""
        return self.ends - self.num_context

    def ranks_between(self, first: torch.LongTensor, end: torch.LongTensor) -> torch.BoolTensor:
        """Return a boolean tensor (batch, n) that is True at ranks in the interval [`first`, `end`), both (batch,)."""
        ranks = torch.arange(self.ids.shape[1], device=self.ids.device)
        first, end = (to_device(counts, ranks.device)[:, None] for counts in (first, end))
        return (first <= ranks) & (ranks < end)

    def is_masked(self) -> torch.BoolTensor:
        """Return a boolean tensor (batch, n), indexed by position, that is True at masked positions."""
        return index_by_position(self.ranks_between(self.num_context, self.ends), self.orders)

    def sequences(self) -> torch.LongTensor:
        """Return the sequences (batch, n) by position, with the mask id at masked positions."""
        ids = index_by_position(self.ids, self.orders)
        return ids.masked_fill(self.is_masked(), self.model.config.mask_token_id)

    def visible_ids(
        self, sequences: torch.LongTensor, num_visible: torch.LongTensor, columns: torch.LongTensor
    ) -> torch.LongTensor:
        """Return the first `num_visible` (queries,) ranks of `sequences` (queries,), and masks elsewhere: (queries, n).

        `columns` (batch, n) has the column of each rank in the result: `orders` or, to leave out padding, `positions`.
        """
        ranks = torch.arange(self.ids.shape[1], device=self.ids.device)
        # Ranks that a query cannot see are written to an additional column, which is then cut off.
        columns = columns[sequences].masked_fill(ranks >= num_visible[:, None], len(ranks))
        text = self.ids.new_full((len(sequences), len(ranks) + 1), self.model.config.mask_token_id)
        return text.scatter(1, columns, self.ids[sequences])[:, :-1].contiguous()


# ---------------------------------------------------------------------------------------------------------- decoders


class PassShape(NamedTuple):
    """Properties of a pass that are constant in a recording or a compiled graph of it."""

    num_lines: int  # number of sequences, or 1 if the rows of all sequences are packed into one line
    num_rows: int  # rows of a line
    num_kept: int  # rows at the end of each line whose hidden states are returned
    num_slots: int  # leading slots of the cache that the pass reads
    width: int = 0  # largest number of rows of a sequence, if rows are packed
    first_slot: int | None = None  # first of the consecutive slots that a pass writes, if it is known
    needs_mask: bool = True
    has_queries: bool = True  # whether rows may attend to their own slot, but not to all slots before it
    has_starts: bool = True  # whether there are start rows


class AnyOrderCache:
    """Preallocated key-value cache in which the row that predicts rank r occupies slot r.

    If a pass queries several ranks in parallel, only the row of the first rank stays in the cache. The next pass
    overwrites the other rows. No entry is ever copied or moved. `devices` contains the device of each layer.

    Rows of all sequences can be packed into one line. Attention then arranges them by sequence (see [`unpack`]).
    """

    def __init__(
        self,
        config: AOGPTConfig,
        batch_size: int,
        num_slots: int,
        dtype: torch.dtype,
        devices: Sequence[torch.device],
        is_joint: bool = False,
    ) -> None:
        self.num_slots = num_slots
        shape = (batch_size, config.num_key_value_heads * (1 + is_joint), num_slots, config.head_dim)
        # Each layer has its own tensors. If one tensor held all layers, a compiled pass would copy this whole tensor
        # for every write. With `is_joint`, one tensor contains keys and values, to write both in one operation.
        stored = [[torch.zeros(shape, dtype=dtype, device=device) for _ in range(2 - is_joint)] for device in devices]
        self.joint_layers = [tensors[0] for tensors in stored] if is_joint else None
        self.layers = [tuple(tensors[0].chunk(2, dim=1)) if is_joint else tuple(tensors) for tensors in stored]
        self.num_bytes = sum(tensor.nbytes for tensors in stored for tensor in tensors)
        self._slots: slice | tuple[torch.LongTensor, slice, torch.LongTensor] = slice(0, 0)
        self._num_visible = 0
        self.places: tuple[torch.LongTensor, ...] | None = None  # see `unpack`; None if rows are not packed

    def set_rows(
        self, slots: slice | Indices, num_visible: int, places: tuple[torch.LongTensor, ...] | None = None
    ) -> None:
        """Set the slots that the next pass writes, the number of leading slots that it reads, and the places of rows.

        `slots` is a slice for all sequences, or indices (sequences, slots) of all rows. If rows are packed, `places`
        are the row at each place (batch, width), the kept row at each place (batch, width), and the place of each row.
        """
        self._slots = slots if isinstance(slots, slice) else (slots[0], slice(None), slots[1])
        self._num_visible, self.places = num_visible, places

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Store `keys` and `values` (lines, heads, rows, head_dim) of a pass. Return all visible slots."""
        stored = self.layers[layer_idx]
        if keys.shape[1] != stored[0].shape[1]:
            raise ValueError(
                f"A layer has {keys.shape[1]} key-value heads, but the cache has {stored[0].shape[1]}. `generate` does "
                "not support tensor parallelism. Load the model without `tp_plan`."
            )
        for store, states in zip(stored, (keys, values), strict=True):
            self._write(store, states)
        return tuple(store[:, :, : self._num_visible] for store in stored)

    def update_jointly(self, states: torch.Tensor, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Do what [`update`] does, for `states` (lines, 2 * heads, rows, head_dim): keys and then values."""
        self._write(self.joint_layers[layer_idx], states)
        return tuple(store[:, :, : self._num_visible] for store in self.layers[layer_idx])

    def _write(self, store: torch.Tensor, states: torch.Tensor) -> None:
        if isinstance(self._slots, slice):
            store[:, :, self._slots] = states
        else:
            sequences, every_head, slots = self._slots
            indices = sequences.to(states.device), every_head, slots.to(states.device)
            store[indices] = states.transpose(1, 2).to(store.dtype)

    def unpack(self, queries: torch.Tensor) -> torch.Tensor:
        """Arrange attention queries (1, heads, rows, head_dim) of packed rows as (batch, heads, width, head_dim)."""
        all_rows, kept_rows, places = self.places
        rows = all_rows if queries.shape[2] == len(places) else kept_rows
        return queries.transpose(1, 2)[0, rows.to(queries.device)].transpose(1, 2)

    def pack(self, output: torch.Tensor, num_rows: int) -> torch.Tensor:
        """Arrange attention output (batch, width, ...) as that of the last `num_rows` packed rows (1, rows, ...)."""
        return output.flatten(0, 1)[None, self.places[2][-num_rows:].to(output.device)]


class CachedDecodingState(DecodingState):
    """Decoding state of a decoder with a key-value cache. Each unmasked token is added to the cache once.

    The keys of a row depend on its token and on the next position in the order. The row of the newest token must
    therefore wait for the next query. A query is one pass with two kinds of rows. Rows of tokens that were unmasked
    since the last pass form a causal chain. They predict the first queried position, and stay in the cache. Each
    further queried position has one extra row, which is discarded.
    """

    def __init__(self, model: PreTrainedModel, ids: torch.LongTensor, *arguments: torch.Tensor) -> None:
        super().__init__(model, ids, *arguments)
        self.num_cached = torch.zeros_like(self.num_context)
        self._has_rows = torch.zeros_like(self.num_context, dtype=torch.bool)  # sequences that the last pass queried
        self._sizes: set[tuple[bool, int, int, int]] = set()  # see `_choose_sizes`
        self._may_pack = self.model is not model  # True for a copy that uses oneDNN
        dtype = product_dtype(ids.device, model.model.dtype)
        devices = [execution_device(layer, ids.device) for layer in model.model.layers]
        self._alignment = 1 if ids.is_cpu else MASK_ALIGNMENT
        num_slots = ids.shape[1] + -ids.shape[1] % self._alignment
        self._slots_per_slice = num_slots
        is_joint = self._recordings is not None and not self._is_compiled
        self.cache = AnyOrderCache(model.config, len(ids), num_slots, dtype, devices, is_joint)
        # Row s of this view is an attention mask of all slots but the last s. It is boolean where PyTorch converts it
        # once, and otherwise numbers, so that no layer converts it.
        is_visible = torch.arange(2 * num_slots, device=ids.device) < num_slots
        if not (ids.is_cpu or self._is_compiled or model.config._attn_implementation == "eager"):
            is_visible = mask_for_kernels(is_visible, dtype)
        self._masks = is_visible.unfold(0, num_slots, 1)

    def _prepare_recordings(self, num_passes: int) -> None:
        if self._is_compiled:
            return
        if num_passes * self.cache.num_bytes >= MIN_BYTES_TO_SLICE:
            quarter = self.cache.num_slots // 4
            self._slots_per_slice = max(quarter + -quarter % MASK_ALIGNMENT, MIN_SLOTS_PER_SLICE)
        with suppress(torch.OutOfMemoryError):
            self.precomputed = self.model.model.join_projections(self.precomputed, num_positions=self.ids.shape[1])

    def query(self, num_queries: torch.LongTensor) -> QueryResult:
        """Predict masked ranks (see [`DecodingState.query`])."""
        result = self._run(self.num_context, self.num_context + num_queries, self.num_context)
        # The cache now holds the rows of all unmasked ranks and the row of the first queried rank.
        self.num_cached = torch.where(self._has_rows, self.num_context + 1, self.num_cached)
        return result

    def verify(self, num_drafts: torch.LongTensor, include_first: bool = False) -> QueryResult:
        """Predict the token after each of the `num_drafts` drafts. `ids` has the drafts at the first masked ranks.

        With `include_first`, also predict the rank of the first draft, which [`query`] may have predicted before.
        """
        num_context = self.num_context + num_drafts
        first = self.num_context + (0 if include_first else 1)
        return self._run(first, torch.minimum(num_context + 1, self.ends), num_context)

    def fill_in(self, num_queries: torch.LongTensor, step: int, draw_numbers: Callable, draw: Callable) -> bool:
        """Query, draw and commit `num_queries` ranks in one recording. Return False if the step cannot be recorded.

        `draw(hidden_states, draw_numbers(count))` draws `count` tokens.
        """
        ends, has_rows = self.num_context + num_queries, num_queries > 0
        starts = torch.where(has_rows, self.num_cached, ends)
        fits_one_pass = not self._is_compiled and int((ends - starts).max()) <= MAX_ROWS_PER_PASS
        if not (fits_one_pass and self.should_record(int((ends - starts).sum()), num_queries)):
            return False
        first_queries = torch.maximum(self.num_context, starts)
        shape, indices, *_ = self._lay_out(starts, first_queries, ends, self.num_context, is_fixed=True)
        drawn = draw_numbers(int(num_queries.sum())).view(shape.num_lines, -1)
        repeated = drawn[:, -1:].expand(-1, shape.num_kept - drawn.shape[1])  # a repeated row draws the same token
        drawn, size, count = torch.cat((drawn, repeated), dim=1), self.ids.numel(), shape.num_lines * shape.num_rows
        targets = indices[2 * count : 3 * count].view(shape.num_lines, -1)[:, -shape.num_kept :].flatten()
        places = targets - size, targets + size, targets + 2 * size  # of ids, steps and log-probabilities
        indices = torch.cat((*places, indices.new_tensor([step]), indices))
        # A single tensor takes a single copy to the GPU.
        packed = torch.cat((drawn.flatten().view(torch.long), to_device(indices, drawn.device)))
        self._recordings.call(self._fill_in_rows, packed, constant=(shape, draw))
        self.num_cached = torch.where(has_rows, self.num_context + 1, self.num_cached)
        self.num_context = ends
        return True

    def _fill_in_rows(self, shape: PassShape, draw: Callable, packed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run a pass, and fill in the drawn tokens. Contains only operations on the device."""
        count = shape.num_lines * shape.num_kept
        numbers, places, step, indices = packed.split([count, 3 * count, 1, len(packed) - 4 * count - 1])
        hidden_states = self._run_rows(shape, indices).flatten(0, 1)
        tokens, logprobs = draw(hidden_states, numbers.view(torch.float64)[:, None])
        self._values[places] = torch.cat((tokens, step.expand(count), logprobs.view(torch.long)))
        return tokens, logprobs

    def keep_verified(self) -> None:
        """Mark the cached rows of all unmasked ranks as valid, after drafts of [`verify`] were committed."""
        self.num_cached = torch.where(self._has_rows, self.num_context, self.num_cached)

    def reorder(self, ranks: torch.LongTensor) -> None:
        """Permute the ranks (see [`DecodingState.reorder`])."""
        super().reorder(ranks)
        # The cached row of the first masked rank may still be valid, but the CPU would have to wait to check this.
        self.num_cached = torch.minimum(self.num_cached, self.num_context)

    def remask(self, is_selected: torch.BoolTensor, orders: torch.LongTensor) -> None:
        """Re-mask generated tokens (see [`DecodingState.remask`])."""
        before = self.orders.clone()
        super().remask(is_selected, orders)
        # A row depends on its target position and on the tokens of earlier ranks. Cached rows therefore stay valid up
        # to the first rank whose position has changed.
        num_unchanged = (self.orders == before).long().cumprod(dim=-1).sum(dim=-1).cpu()
        self.num_cached = torch.minimum(self.num_cached, num_unchanged)

    def _run(self, first: torch.LongTensor, ends: torch.LongTensor, num_context: torch.LongTensor) -> QueryResult:
        """Predict the ranks from `first` to `ends` - 1, all (batch,), given `num_context` ranks."""
        self._has_rows = first < ends
        starts, parts = torch.where(self._has_rows, self.num_cached, ends), []
        for _ in range(0, max(int((ends - starts).max()), 1), MAX_ROWS_PER_PASS):
            stops = torch.minimum(starts + MAX_ROWS_PER_PASS, ends)
            parts.append(self._run_pass(starts, first.clamp(starts, stops), stops, num_context))
            starts = stops
        if len(parts) == 1:
            return parts[0]
        result = QueryResult(*map(torch.cat, zip(*parts, strict=True)))
        by_sequence = result.sequences.argsort(stable=True)
        return QueryResult(*(values[by_sequence] for values in result))

    def _run_pass(self, *bounds: torch.LongTensor) -> QueryResult:
        """Run the rows within `bounds` (see [`_lay_out`]). The rows of all earlier ranks must be in the cache."""
        device, num_queries = self.ids.device, bounds[2] - bounds[1]
        is_recorded = self.should_record(int((bounds[2] - bounds[0]).sum()), num_queries)
        may_pack = self._may_pack and not (is_recorded or self._is_compiled)
        may_pack = may_pack and gains_from_packing(self.model.model.dtype, int(num_queries.sum()))
        if may_pack and self.expected_passes(num_queries) >= MIN_PASSES_TO_PREPARE:
            pack_weights(self.model)
            self._may_pack = False
        shape, indices, is_query, queries = self._lay_out(*bounds, is_fixed=is_recorded or self._is_compiled)
        if is_recorded:
            hidden_states = self._recordings.call(self._run_rows, indices, constant=(shape,))
        else:
            hidden_states = self._run_rows(shape, to_device(indices, device))
        hidden_states = hidden_states.flatten(0, 1)
        if len(hidden_states) != queries.shape[1]:
            hidden_states = hidden_states[to_device(is_query.flatten().nonzero()[:, 0], device)]
        return QueryResult(hidden_states, *to_device(queries, device))

    def _lay_out(
        self,
        starts: torch.LongTensor,
        first_queries: torch.LongTensor,
        ends: torch.LongTensor,
        num_context: torch.LongTensor,
        is_fixed: bool,
    ) -> tuple[PassShape, torch.LongTensor, torch.BoolTensor, torch.LongTensor]:
        """Lay out the rows of ranks from `starts` to `ends` - 1, which are queried from `first_queries` on.

        All bounds are (batch,). In a line, rows that only enter the cache come before queried rows. If the sequences
        have different numbers of rows, the rows of all sequences are packed into one line. With `is_fixed`, rows are
        repeated so that there are few shapes. A repeated row computes and stores the same values again.

        Returns:
            The shape of the pass, the indices that [`_run_rows`] needs, whether each kept row (lines, kept rows) is the
            first of its repetitions and queried, and the sequences and ranks (2, queries) of these rows.
        """
        num_sequences, length = self.ids.shape
        counts = list(zip((first_queries - starts).tolist(), (ends - first_queries).tolist(), strict=True))
        is_packed, width = len(set(counts)) > 1 and not self._is_compiled, max(map(sum, counts))
        (num_chain, num_queried), columns = counts[0], torch.arange(width, device=starts.device)
        sequences = torch.arange(num_sequences, device=starts.device)[:, None]
        if self._is_compiled:  # one graph for each power of two of rows
            num_kept = 1 << (width - 1).bit_length()
            columns = torch.arange(num_kept, device=starts.device).expand(num_sequences, -1)
            is_query = ((first_queries - starts)[:, None] <= columns) & (columns < (ends - starts)[:, None])
        else:
            if is_packed:
                is_chain = columns < (first_queries - starts)[:, None]
                chain, queries = is_chain.nonzero(), ((columns < (ends - starts)[:, None]) & ~is_chain).nonzero()
                num_queried = len(queries)
            else:
                chain, queries = columns[:num_chain], columns[num_chain:]
            if not num_queried:  # a part of a long prompt; one row is kept all the same
                chain, queries = chain[:-1], chain[-1:]
            sizes = len(chain), len(queries), width
            if is_fixed:
                sizes = self._choose_sizes(is_packed, sizes)
                chain, queries = repeat_last(chain if len(chain) else queries, sizes[0]), repeat_last(queries, sizes[1])
            num_kept, width = sizes[1:]
            if is_packed:
                sequences, columns = torch.cat((chain, queries)).t()[:, None]
            else:
                columns = torch.cat((chain, queries)).expand(num_sequences, -1)
            is_query = (torch.arange(num_kept, device=starts.device) < num_queried).expand(len(columns), -1)
        offsets, ranks = sequences * length, (starts[sequences] + columns).clamp(max=length - 1)
        num_visible, sequences = torch.minimum(ranks, num_context[sequences]), sequences.expand_as(ranks)
        is_start, size, is_query_row = num_visible == 0, num_sequences * length, ranks > num_visible
        carried, targets = offsets + num_visible - 1, size + offsets + ranks
        start_id, start_position = 4 * size, 4 * size + 1
        fields = [carried.masked_fill(is_start, start_id), (size + carried).masked_fill(is_start, start_position)]
        fields += [targets, sequences, ranks]
        has_same_slots, has_queries = len(set(starts.tolist())) == 1, width > 1 or bool(is_query_row.any())
        has_same_slots &= not is_packed and not is_fixed
        # No mask is needed for a single row that follows all cached rows, as in generation of one token at a time.
        needs_mask = not has_same_slots or has_queries
        alignment = 1 if not needs_mask else self._slots_per_slice if is_fixed and not is_packed else self._alignment
        num_slots = self.cache.num_slots if is_fixed and is_packed else int(ranks.max()) + 1
        shape = PassShape(
            *columns.shape,
            num_kept,
            num_slots=min(num_slots + -num_slots % alignment, self.cache.num_slots),
            width=width if is_packed else 0,
            first_slot=int(starts[0]) if has_same_slots else None,
            needs_mask=needs_mask,
            has_queries=has_queries,
            has_starts=self._is_compiled or bool(is_start.any()),
        )
        # A row of a chain also attends to its own slot, the one after the visible slots.
        first_hidden = num_visible + ~is_query_row
        queries = torch.stack((sequences, ranks))[..., -num_kept:]
        queries = queries.flatten(1) if num_queried == num_kept and not self._is_compiled else queries[:, is_query]
        if is_packed:
            # If a row is repeated, its place takes the last repetition, which is kept if the row is queried.
            places = (sequences * width + columns)[0]
            rows = places.new_zeros(num_sequences * width)
            rows.scatter_reduce_(0, places, torch.arange(len(places), device=places.device), "amax")
            fields += [rows, (rows - len(places) + num_kept).clamp(min=0), places]
            ranks, first_hidden = ranks[0, rows], first_hidden[0, rows]
        self.num_forward_passes += 1
        self.num_rows += columns.numel()
        fields += [ranks, self.cache.num_slots - first_hidden]
        return shape, torch.cat([values.flatten() for values in fields]), is_query, queries

    def _choose_sizes(self, is_packed: bool, sizes: tuple[int, int, int]) -> tuple[int, int, int]:
        """Round numbers of rows and the width up, or take those of an earlier pass with up to 1.5 times the rows."""
        least = 0 if sum(sizes[:2]) == 1 else NUM_FREE_ROWS // (1 if is_packed else len(self.ids))
        wanted = *(max(round_up(number), least) for number in sizes[:2]), round_up(sizes[2])
        fitting = (
            earlier
            for packed, *earlier in self._sizes
            if packed == is_packed
            and all(number >= least for number, least in zip(earlier, wanted, strict=True))
            and sum(earlier[:2]) <= 1.5 * sum(wanted[:2])
        )
        chosen = tuple(min(fitting, key=sum, default=wanted))
        self._sizes.add((is_packed, *chosen))
        return chosen

    def _run_rows(self, shape: PassShape, indices: torch.LongTensor) -> torch.Tensor:
        """Return hidden states (lines, kept rows, hidden_size) of a pass. Contains only operations on the device."""
        lines, count = (shape.num_lines, shape.num_rows), shape.num_lines * shape.num_rows
        num_places = len(self.ids) * shape.width
        parts = [num_places, num_places, count, num_places, num_places] if shape.width else [count, count]
        values = self._values[indices[: 3 * count]]
        sequences, ranks, *places, own, windows = indices[3 * count :].split([count] * 2 + parts)
        slots = sequences.view(lines), ranks.view(lines)
        if shape.first_slot is not None:
            slots = slice(shape.first_slot, shape.first_slot + shape.num_rows)
        if places:
            places = *(rows.view(len(self.ids), -1) for rows in places[:2]), places[2]
        self.cache.set_rows(slots, shape.num_slots, places or None)
        mask = None
        if shape.needs_mask:
            mask = self._masks[:, : shape.num_slots][windows.view(len(self.ids), 1, -1)]
            if shape.has_queries:
                mask.scatter_(-1, own.view(len(self.ids), 1, -1, 1), True if mask.dtype == torch.bool else 0.0)
        config = torch._dynamo.config
        limit = max(config.recompile_limit, MAX_COMPILED_GRAPHS)
        with config.patch(recompile_limit=limit) if self._is_compiled else nullcontext():
            return self.model.model(
                *values.view(3, *lines),
                attention_mask=mask,
                cache=self.cache,
                precomputed=self.precomputed._replace(has_starts=shape.has_starts),
                num_kept=shape.num_kept,
            ).last_hidden_state


def repeat_last(values: torch.Tensor, number: int) -> torch.Tensor:
    """Return `number` values: the given ones, followed by repetitions of the last one."""
    return values[torch.arange(number, device=values.device).clamp(max=len(values) - 1)]


def round_up(number: int) -> int:
    """Round up to 0, 1, 4, 8, 12, 16, 24, 32, 48, ..., so that passes have few different numbers of rows."""
    power = max(1 << (number - 1).bit_length(), 4)
    return number if number <= 1 else power * 3 // 4 if power >= 16 and number <= power * 3 // 4 else power


# ---------------------------------------------------------------------------------------------------------- encoders


class EncoderDecodingState(DecodingState):
    """Decoding state of an encoder, which recomputes whole sequences for every query and has no cache."""

    # The shape of a pass changes with the number of unfinished sequences, and recording a large pass takes time.
    num_calls_before_recording = 8

    def query(self, num_queries: torch.LongTensor, sigma: float | None = None) -> QueryResult:
        """Predict masked ranks (see [`DecodingState.query`]). `sigma` is the noise level of SEDD."""
        device = self.ids.device
        is_active = num_queries > 0
        active = to_device(is_active.nonzero().squeeze(1), device)
        ids, is_token = self.sequences()[active], None
        if (self.num_tokens < self.ids.shape[1]).any():  # attention is slower with a mask
            is_token = self.is_token[active]
            ids = ids.masked_fill(~is_token, 0)
        levels = None if sigma is None else torch.full(active.shape, sigma, dtype=torch.float64, device=device)
        if self.should_record(ids.numel(), num_queries):
            hidden_states = self._recordings.call(self._run, ids, is_token, levels)
        else:
            hidden_states = self._run(ids, is_token, levels)
        self.num_forward_passes += 1
        self.num_rows += ids.numel()

        sequences, ranks = self.next_ranks(num_queries)
        active_indices = to_device(is_active.cumsum(dim=0) - 1, device)  # index of a sequence in `active`
        return QueryResult(hidden_states[active_indices[sequences], self.orders[sequences, ranks]], sequences, ranks)

    def _run(self, ids: torch.LongTensor, mask: torch.BoolTensor | None, sigma: torch.Tensor | None) -> torch.Tensor:
        """Return the last hidden states (sequences, n, hidden_size). Contains only operations on the device."""
        return self.model.model(ids, attention_mask=mask, sigma=sigma, precomputed=self.precomputed).last_hidden_state
