# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Decoding state: the sequences of a generation and the two operations on them, query and commit.

A *query* predicts masked ranks given all unmasked ones; a *commit* fills tokens in. Schedules, unmasking rules and
sampling strategies use these two operations only, so they work for the cached decoder and for encoders.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel

from .configuration_aogpt import AOGPTConfig
from .devices import execution_device, gains_from_packing, is_compiled, pack_weights, to_device
from .orders import group_orders, index_by_position, index_by_rank, token_positions
from .rows import query_mask, query_rows

Indices = tuple[torch.LongTensor, torch.LongTensor]

VALUES_BY_RANK = ("ids", "orders", "positions", "blocks", "unmasking_steps", "token_logprobs")

# A CPU packs the weights if this many passes of several rows are expected: packing takes as long as about 20 packed
# passes save.
MIN_PASSES_TO_PACK = 32

# Rows of a sequence per pass, which bounds the attention mask of long prompts and of many queries.
MAX_ROWS_PER_PASS = 2048

# Each number of rows and kind of batch compiles to its own graph. PyTorch's limit of 8 would leave some passes eager.
MAX_COMPILED_GRAPHS = 64


class QueryResult(NamedTuple):
    """
    Last hidden states of queried ranks.

    Attributes:
        hidden_states (`torch.Tensor` of shape `(queries, hidden_size)`): Hidden states, one sequence after another.
        sequences (`torch.LongTensor` of shape `(queries,)`): Sequence of each query.
        ranks (`torch.LongTensor` of shape `(queries,)`): Rank of each query.
    """

    hidden_states: torch.Tensor
    sequences: torch.LongTensor
    ranks: torch.LongTensor

    @property
    def indices(self) -> Indices:
        """Return (sequences, ranks), which index values by rank."""
        return self.sequences, self.ranks

    def split(self, size: int) -> list["QueryResult"]:
        """Return results of at most `size` queries each; at least one, which may be empty."""
        return [QueryResult(*parts) for parts in zip(*(values.split(size) for values in self), strict=True)]


def leading_indices(counts: torch.LongTensor, device: torch.device) -> Indices:
    """Return the (row, column) indices of the first `counts` (batch,) columns of each row; counts are on the CPU."""
    is_leading = torch.arange(int(counts.max()), device=counts.device) < counts[:, None]
    rows, columns = is_leading.nonzero(as_tuple=True)
    return to_device(rows, device), to_device(columns, device)


def raise_not_finite(model: PreTrainedModel) -> None:
    """Raise a `ValueError` that says that no token can be drawn."""
    raise ValueError(
        "The logits are not finite (NaN or infinity), so no token can be drawn. Check the weights, the dtype they were "
        f"loaded in ({model.dtype}), and that no logits processor forbids every token."
    )


class DecodingState:
    """
    Decoding state shared by decoders and encoders: sequences stored by rank, with an unmasked prefix.

    The ranks of a sequence are: unmasked tokens, masked ones, padding. Subclasses implement [`query`].
    Counts are kept on the CPU, so that a step does not wait for an accelerator.

    Args:
        model (`PreTrainedModel`): The model to query.
        ids (`torch.LongTensor` of shape `(batch, n)`): Tokens by position, with `config.mask_token_id` to be filled in.
        orders (`torch.LongTensor` of shape `(batch, n)`): Order in which to fill them in.
        blocks (`torch.LongTensor` of shape `(batch, n)`): Block of each position. Blocks are filled in one by one.
        is_padding (`torch.BoolTensor` of shape `(batch, n)`): True at padding, by position.

    Attributes:
        ids, positions, blocks (`torch.LongTensor` of shape `(batch, n)`): By rank. `ids` of masked ranks are arbitrary.
        orders (`torch.LongTensor` of shape `(batch, n)`): Column of each rank in the text.
        unmasking_steps, token_logprobs (`torch.Tensor` of shape `(batch, n)`): Step and log-probability of each
            committed token, by rank; -1 and 0 for other ranks.
        num_context (`torch.LongTensor` of shape `(batch,)`): Number of unmasked ranks.
        num_prompt (`torch.LongTensor` of shape `(batch,)`): Number of ranks that were given, the first ones.
        num_tokens (`torch.LongTensor` of shape `(batch,)`): Number of ranks without padding.
        ends (`torch.LongTensor` of shape `(batch,)`): Rank at which each sequence ends: `num_tokens`, or less after an
            end-of-text token.
        num_forward_passes, num_rows (`int`): Forward passes, and rows over all passes and sequences, so far.
        continues_prompt (`torch.BoolTensor` of shape `(batch,)`): Whether all given tokens come before all masked
            positions.
        is_continuation (`bool`): Whether this holds for all sequences.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        ids: torch.LongTensor,
        orders: torch.LongTensor,
        blocks: torch.LongTensor,
        is_padding: torch.BoolTensor,
    ) -> None:
        self.model = model
        is_masked = ids == model.config.mask_token_id
        self.orders = group_orders(orders, torch.where(is_padding, 2, is_masked.long()))
        self.ids = index_by_rank(ids, self.orders)
        self.positions = index_by_rank(token_positions(~is_padding), self.orders)
        self.blocks = index_by_rank(blocks, self.orders)
        self.unmasking_steps = torch.full_like(ids, -1)
        self.token_logprobs = torch.zeros(ids.shape, dtype=torch.float64, device=ids.device)
        self.num_context = (~is_masked & ~is_padding).sum(dim=-1).cpu()
        self.num_prompt = self.num_context.clone()
        self.num_tokens = (~is_padding).sum(dim=-1).cpu()
        self.ends = self.num_tokens.clone()
        self.num_forward_passes = self.num_rows = 0
        columns = torch.arange(ids.shape[1], device=ids.device)
        first_masked = torch.where(is_masked & ~is_padding, columns, ids.shape[1]).amin(dim=1)
        last_given = torch.where(is_masked | is_padding, -1, columns).amax(dim=1)
        self.continues_prompt = last_given < first_masked
        self.is_continuation = bool(self.continues_prompt.all())

    def query(self, num_queries: torch.LongTensor) -> QueryResult:
        """Predict the next `num_queries` (batch,) ranks of each sequence, each given all unmasked tokens."""
        raise NotImplementedError

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return logits (queries, vocab_size), minus infinity for ids that are not text."""
        logits = self.model.apply_head(hidden_states)
        logits[:, self.model.config.num_valid_tokens :] = float("-inf")
        return logits

    def commit(
        self,
        tokens: torch.LongTensor,
        indices: Indices,
        num_unmasked: torch.LongTensor,
        token_logprobs: torch.Tensor,
        step: int,
    ) -> None:
        """
        Fill in tokens.

        Args:
            tokens (`torch.LongTensor` of shape `(queries,)`): The tokens.
            indices (`tuple` of two `torch.LongTensor` of shape `(queries,)`): Their (sequence, rank): the next ranks of
                each sequence.
            num_unmasked (`torch.LongTensor` of shape `(batch,)`): Number of tokens per sequence, on the CPU.
            token_logprobs (`torch.Tensor` of shape `(queries,)`): Log-probability of each token.
            step (`int`): Number of the step.
        """
        if token_logprobs.is_cpu and not torch.isfinite(token_logprobs).all():  # on accelerators, `generate` checks it
            raise_not_finite(self.model)
        self.ids[indices] = tokens
        self.token_logprobs[indices] = token_logprobs
        self.unmasking_steps[indices] = step
        self.num_context += num_unmasked

    def reorder(self, ranks: torch.LongTensor) -> None:
        """Move the masked token at rank `ranks[b, k]` to rank k; `ranks` is (batch, n)."""
        for name in VALUES_BY_RANK:
            setattr(self, name, getattr(self, name).gather(1, ranks))

    def remask(self, is_selected: torch.BoolTensor, orders: torch.LongTensor) -> None:
        """Re-mask the generated tokens selected by position (batch, n), to be filled in again in the given order."""
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
        """
        End each sequence whose text is complete up to a generated end-of-text token, and pad the masked rest.

        Left to right, also tokens after the end that were drawn in the same step are padded. In blocks with another
        order, a sequence ends with the block of the end-of-text token: tokens of this block stay, since earlier ones
        may depend on them.

        Args:
            eos_token_ids (`torch.LongTensor`): Ids of end-of-text, on the CPU.
            pad_token_id (`int`): Id to pad with.
            in_blocks (`bool`): Whether sequences end with a block.
            may_end (`torch.BoolTensor` of shape `(batch,)`): Sequences that may end.
        """
        is_eos = self.ranks_between(self.num_prompt, self.num_context)
        is_eos &= torch.isin(self.ids, to_device(eos_token_ids, self.ids.device))
        is_masked = self.ranks_between(self.num_context, self.ends)
        places = self.blocks if in_blocks else self.orders
        first_eos, first_masked = (  # block or column; a large number if there is none
            torch.where(selected, places, self.ids.shape[1]).amin(dim=1) for selected in (is_eos, is_masked)
        )
        has_ended = (first_eos < first_masked) & may_end
        is_behind = self.ranks_between(self.num_prompt, self.num_tokens) & (places > first_eos[:, None])
        is_erased = is_behind & has_ended[:, None]
        self.ids.masked_fill_(is_erased, pad_token_id)
        self.unmasking_steps.masked_fill_(is_erased, -1)
        self.token_logprobs.masked_fill_(is_erased, 0.0)
        self.ends = torch.where(has_ended.cpu(), self.num_context, self.ends)

    def finish(self) -> None:
        """Release or keep resources after the last step."""

    @property
    def num_masked(self) -> torch.LongTensor:
        """Return the number of masked ranks of each sequence, (batch,) on the CPU."""
        return self.ends - self.num_context

    def ranks_between(self, first: torch.LongTensor, end: torch.LongTensor) -> torch.BoolTensor:
        """Return a boolean mask (batch, n) of the ranks in the half-open interval [first, end), both (batch,)."""
        ranks = torch.arange(self.ids.shape[1], device=self.ids.device)
        first, end = (to_device(counts, ranks.device)[:, None] for counts in (first, end))
        return (first <= ranks) & (ranks < end)

    def is_masked(self) -> torch.BoolTensor:
        """Return a boolean mask (batch, n) of the masked positions."""
        return index_by_position(self.ranks_between(self.num_context, self.ends), self.orders)

    def sequences(self) -> torch.LongTensor:
        """Return the sequences (batch, n) by position, with masks where they are masked."""
        ids = index_by_position(self.ids, self.orders)
        return ids.masked_fill(self.is_masked(), self.model.config.mask_token_id)

    def visible_ids(self, sequences: torch.LongTensor, num_visible: torch.LongTensor | None = None) -> torch.LongTensor:
        """
        Return the sequence (queries, n) that each query sees, by position, with masks elsewhere and at padding.

        Args:
            sequences (`torch.LongTensor` of shape `(queries,)`): Sequence of each query.
            num_visible (`torch.LongTensor` of shape `(queries,)`, *optional*): Number of ranks that the query sees;
                defaults to all unmasked ones.
        """
        ranks = torch.arange(self.ids.shape[1], device=self.ids.device)
        if num_visible is None:
            num_visible = to_device(self.num_context, ranks.device)[sequences]
        ids = self.ids[sequences].masked_fill(ranks >= num_visible[:, None], self.model.config.mask_token_id)
        return index_by_position(ids, self.orders[sequences])

    def visible_prefix(
        self, sequences: torch.LongTensor, num_visible: torch.LongTensor | None = None
    ) -> tuple[torch.LongTensor, torch.LongTensor]:
        """
        Return the visible text without padding, (queries, n), and the number of tokens (queries,) before its first gap.

        Args:
            sequences (`torch.LongTensor` of shape `(queries,)`): Sequence of each query.
            num_visible (`torch.LongTensor` of shape `(queries,)`, *optional*): As in [`visible_ids`].
        """
        length, mask = self.ids.shape[1], self.model.config.mask_token_id
        ranks = torch.arange(length, device=self.ids.device)
        if num_visible is None:
            num_visible = to_device(self.num_context, ranks.device)[sequences]
        # Invisible ranks are written to a column that is cut off.
        positions = self.positions[sequences].masked_fill(ranks >= num_visible[:, None], length)
        text = self.ids.new_full((len(sequences), length + 1), mask).scatter(1, positions, self.ids[sequences])
        text = text[:, :length]
        return text, (text != mask).long().cumprod(dim=1).sum(dim=1)


# ---------------------------------------------------------------------------------------------------------- decoders


class AnyOrderCache:
    """
    Preallocated key-value cache in which the row that predicts rank r occupies slot r.

    Rows of parallel queries beyond the first are overwritten by the next pass, so nothing is copied or moved.

    Args:
        config (`AOGPTConfig`): Configuration of the model.
        batch_size (`int`): Number of sequences.
        num_slots (`int`): Number of slots n.
        dtype (`torch.dtype`): Type of keys and values.
        devices (sequence of `torch.device`): Device of each layer.
    """

    def __init__(
        self,
        config: AOGPTConfig,
        batch_size: int,
        num_slots: int,
        dtype: torch.dtype,
        devices: Sequence[torch.device],
    ) -> None:
        shape = (batch_size, config.num_key_value_heads, num_slots, config.head_dim)
        # One tensor per layer: a compiled pass would copy a tensor of all layers as a whole to write to a part of it.
        self.layers = [tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in range(2)) for device in devices]
        self._sequences = torch.arange(batch_size, device=devices[0])[:, None]
        self._slots: slice | torch.LongTensor = slice(0, 0)
        self._num_visible = 0

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield keys and values (batch, heads, slots, head_dim), layer by layer."""
        return chain.from_iterable(self.layers)

    def set_slots(self, slots: slice | torch.LongTensor, num_visible: int) -> None:
        """
        Set where the next pass writes and reads.

        Args:
            slots (`slice` or `torch.LongTensor` of shape `(batch, rows)`): Slots of the rows; a slice if they are the
                same for every sequence.
            num_visible (`int`): Number of leading slots that the rows may attend to.
        """
        self._slots, self._num_visible = slots, num_visible

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Store keys and values (batch, heads, rows, head_dim), and return those of all visible slots."""
        stored = self.layers[layer_idx]
        if isinstance(self._slots, slice):
            for store, states in zip(stored, (keys, values), strict=True):
                store[:, :, self._slots] = states
        else:
            sequences, slots = self._sequences.to(keys.device), self._slots.to(keys.device)
            for store, states in zip(stored, (keys, values), strict=True):
                store[sequences, :, slots] = states.transpose(1, 2).to(store.dtype)
        return stored[0][:, :, : self._num_visible], stored[1][:, :, : self._num_visible]


class CachedDecodingState(DecodingState):
    """
    Decoding state of a decoder with a key-value cache: every unmasked token enters the cache once, in any order.

    The keys of a row depend on its target, so the token that was committed last enters the cache with the next query.
    One pass per query runs the tokens committed since the last pass as a causal chain, and queries the next ranks in
    parallel. The first query is also the row of the next token to be committed, and stays in the cache.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        ids: torch.LongTensor,
        orders: torch.LongTensor,
        blocks: torch.LongTensor,
        is_padding: torch.BoolTensor,
    ) -> None:
        super().__init__(model, ids, orders, blocks, is_padding)
        self.num_cached = torch.zeros_like(self.num_context)
        self._is_compiled = is_compiled(model.model)
        self._is_packed = ids.device.type != "cpu"  # only CPUs pack weights
        # The tables take at most as long as one pass over all positions would.
        self.modulations = model.model.tabulate_modulations(ids.shape[1], ids.device)
        if self._is_compiled:
            self._compiled = CompiledBuffers.take(model, ids, self.modulations)
            self.cache, self.modulations = self._compiled.cache, self._compiled.modulations
        else:
            dtype, devices = cache_layout(model, ids.device)
            self.cache = AnyOrderCache(model.config, *ids.shape, dtype=dtype, devices=devices)

    def finish(self) -> None:
        """Keep the buffers of a compiled model for its next generation."""
        if self._is_compiled:
            self._compiled.keep(self.model)

    def query(self, num_queries: torch.LongTensor) -> QueryResult:
        """Predict the next `num_queries` (batch,) ranks of each sequence, each given all unmasked tokens."""
        num_context = self.num_context[:, None]
        ranks = self._uncached_ranks(self.num_context + num_queries)
        is_query = (num_context <= ranks) & (ranks < num_context + num_queries[:, None])
        result = self._run(ranks, self.num_context, is_query)
        # Cached from now on: the rows of all unmasked ranks, and that of the first query.
        self.num_cached = self.num_context + num_queries.clamp(max=1)
        return result

    def verify(self, num_drafts: torch.LongTensor, include_first: bool = False) -> QueryResult:
        """
        Predict the ranks that follow each of the `num_drafts` (batch,) drafts given the drafts before them.

        The drafts are in `ids` after the unmasked ranks, but not committed.

        Args:
            num_drafts (`torch.LongTensor` of shape `(batch,)`): Number of drafts of each sequence.
            include_first (`bool`): Also predict the rank of the first draft, for drafts that no query preceded.
        """
        num_context = self.num_context + num_drafts
        ranks = self._uncached_ranks(torch.minimum(num_context + 1, self.ends))
        first = self.num_context[:, None] + (0 if include_first else 1)
        is_query = (first <= ranks) & (ranks <= num_context[:, None]) & (ranks < self.ends[:, None])
        return self._run(ranks, num_context, is_query)

    def keep_verified(self) -> None:
        """Record that all committed tokens were verified, so that all of their rows but the last are cached."""
        self.num_cached = self.num_context.clone()

    def reorder(self, ranks: torch.LongTensor) -> None:
        """Move the masked token at rank `ranks[b, k]` to rank k; `ranks` is (batch, n)."""
        super().reorder(ranks)
        # The row of the first masked rank may still be valid, but finding out would make an accelerator wait.
        self.num_cached = torch.minimum(self.num_cached, self.num_context)

    def remask(self, is_selected: torch.BoolTensor, orders: torch.LongTensor) -> None:
        """Re-mask the generated tokens selected by position (batch, n), to be filled in again in the given order."""
        before = self.orders
        super().remask(is_selected, orders)
        # A row depends on the tokens before its rank and on the position of its rank, so rows stay valid up to the
        # first change of the order.
        num_unchanged = (self.orders == before).long().cumprod(dim=-1).sum(dim=-1).cpu()
        self.num_cached = torch.minimum(self.num_cached, num_unchanged)

    def _uncached_ranks(self, ends: torch.LongTensor) -> torch.LongTensor:
        """Return ranks (batch, rows) from the first uncached one, as many as any sequence needs to reach `ends`."""
        num_rows = int((ends - self.num_cached).max())
        return self.num_cached[:, None] + torch.arange(num_rows, device=ends.device)

    def _run(self, ranks: torch.LongTensor, num_context: torch.LongTensor, is_query: torch.BoolTensor) -> QueryResult:
        """Run the rows of `ranks` (batch, rows) given `num_context` tokens, and return those that are queries."""
        parts = [
            self._run_pass(part, num_context, is_query_of_part)
            for part, is_query_of_part in zip(
                ranks.split(MAX_ROWS_PER_PASS, dim=1), is_query.split(MAX_ROWS_PER_PASS, dim=1), strict=True
            )
        ]
        if len(parts) == 1:
            return parts[0]
        result = QueryResult(*map(torch.cat, zip(*parts, strict=True)))
        by_sequence = result.sequences.argsort(stable=True)
        return QueryResult(*(values[by_sequence] for values in result))

    def _run_pass(
        self, ranks: torch.LongTensor, num_context: torch.LongTensor, is_query: torch.BoolTensor
    ) -> QueryResult:
        """Do the same as [`_run`] in one pass. Earlier rows must have run before."""
        length, device = self.ids.shape[1], self.ids.device
        sequences, rows = is_query.nonzero(as_tuple=True)
        # Sequences that need fewer rows than others compute unused ones. Past the end they repeat the last rank.
        if self._is_compiled:  # few shapes: a power of two of rows, and all slots
            num_rows = 1 << (ranks.shape[1] - 1).bit_length()
            ranks = (ranks[:, :1] + torch.arange(num_rows, device=ranks.device)).clamp(max=length - 1)
            slots, num_visible, num_skipped = None, length, 0
        else:
            self._pack_weights_in_time(is_query)
            slots = slice(int(ranks[0, 0]), int(ranks[0, -1]) + 1) if (ranks == ranks[0]).all() else None
            ranks = ranks.clamp(max=length - 1)
            is_needed = is_query.any(dim=0)
            num_skipped = int(is_needed.long().argmax()) if is_needed.any() else len(is_needed) - 1
            num_visible = int(ranks.max()) + 1
        # A single row after all others, as in left-to-right decoding
        sees_all_slots = ranks.shape[1] == 1 and slots is not None and bool((ranks[:, 0] <= num_context).all())
        self.num_forward_passes += 1
        self.num_rows += ranks.numel()

        ranks, num_context, sequences, rows = (
            to_device(values, device) for values in (ranks, num_context, sequences, rows)
        )
        self.cache.set_slots(ranks if slots is None else slots, num_visible)
        with allow_many_graphs() if self._is_compiled else nullcontext():
            hidden_states = self.model.model(
                **query_rows(self.ids, self.positions, ranks, num_context),
                attention_mask=None if sees_all_slots else query_mask(ranks, num_context, num_visible),
                past_key_values=self.cache,
                modulations=self.modulations,
                num_kept=ranks.shape[1] - num_skipped,
            ).last_hidden_state
        return QueryResult(hidden_states[sequences, rows - num_skipped], sequences, ranks[sequences, rows])

    def _pack_weights_in_time(self, is_query: torch.BoolTensor) -> None:
        """Pack the weights once enough passes are expected, if the remaining ones have as many queries as this one."""
        dtype = self.model.lm_head.weight.dtype
        if self._is_packed or not gains_from_packing(dtype, int(is_query.sum())):  # later passes have no more rows
            return
        num_remaining = int((self.num_masked / is_query.sum(dim=1).clamp(min=1)).max())
        if self.num_forward_passes + num_remaining >= MIN_PASSES_TO_PACK:
            self.model, self._is_packed = pack_weights(self.model), True


def cache_layout(model: PreTrainedModel, device: torch.device) -> tuple[torch.dtype, list[torch.device]]:
    """Return the dtype of the cache and the device of each layer, for inputs on `device`."""
    dtype = model.lm_head.weight.dtype
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    return dtype, [execution_device(layer, device) for layer in model.model.layers]


class CompiledBuffers(NamedTuple):
    """
    Cache and modulation tables of a compiled model, reused by its next generation of the same shape.

    CUDA graphs are recorded for fixed addresses, and would be recorded again for every generation.
    """

    key: tuple
    cache: AnyOrderCache
    modulations: tuple[torch.Tensor, ...] | None

    @classmethod
    def take(
        cls, model: PreTrainedModel, ids: torch.LongTensor, modulations: tuple[torch.Tensor, ...] | None
    ) -> "CompiledBuffers":
        """Return the buffers of the last generation if they fit, with the values of `modulations`, or new ones."""
        dtype, devices = cache_layout(model, ids.device)
        key = (*ids.shape, dtype, *devices, torch.is_inference_mode_enabled())
        buffers = _COMPILED_BUFFERS.pop(model.model, None)
        if buffers is not None and buffers.key == key:
            for table, values in zip(buffers.modulations or (), modulations or (), strict=True):
                table.copy_(values)
            return buffers
        del buffers  # free the memory before new memory is allocated
        buffers = cls(key, AnyOrderCache(model.config, *ids.shape, dtype=dtype, devices=devices), modulations)
        for tensor in (*buffers.cache.tensors(), *(modulations or ())):
            # CUDA graphs copy other tensors before every replay. A guard would recompile for every new cache.
            torch._dynamo.mark_static_address(tensor, guard=False)
        return buffers

    def keep(self, model: PreTrainedModel) -> None:
        """Store the buffers for the next generation of `model`."""
        _COMPILED_BUFFERS[model.model] = self


_COMPILED_BUFFERS: WeakKeyDictionary[nn.Module, CompiledBuffers] = WeakKeyDictionary()


def allow_many_graphs() -> AbstractContextManager:
    """Return a context in which a model may compile to more graphs than PyTorch's default limit."""
    config = torch._dynamo.config
    return config.patch(recompile_limit=max(config.recompile_limit, MAX_COMPILED_GRAPHS))


# ---------------------------------------------------------------------------------------------------------- encoders


class EncoderDecodingState(DecodingState):
    """Decoding state of an encoder, which recomputes whole sequences for every query and has no cache."""

    def query(self, num_queries: torch.LongTensor, sigma: torch.Tensor | None = None) -> QueryResult:
        """
        Predict the next `num_queries` (batch,) ranks of each sequence, each given all unmasked tokens.

        Args:
            num_queries (`torch.LongTensor` of shape `(batch,)`): Number of queries. Sequences without any are skipped.
            sigma (`torch.Tensor` of shape `(batch,)`, *optional*): Noise level, for models that take one; defaults to
                the level that matches the fraction of masks.
        """
        device = self.ids.device
        is_active = num_queries > 0
        active = to_device(is_active.nonzero().squeeze(1), device)
        is_token = self.ranks_between(torch.zeros_like(self.num_tokens), self.num_tokens)
        is_token = index_by_position(is_token, self.orders)[active]
        ids = self.sequences()[active].masked_fill(~is_token, 0)
        hidden_states = self.model.model(
            ids, attention_mask=is_token, sigma=None if sigma is None else sigma[active]
        ).last_hidden_state
        self.num_forward_passes += 1
        self.num_rows += ids.numel()

        sequences, columns = leading_indices(num_queries, device)
        ranks = to_device(self.num_context, device)[sequences] + columns
        rows = to_device(is_active.cumsum(dim=0) - 1, device)  # row of each sequence among the active ones
        return QueryResult(hidden_states[rows[sequences], self.orders[sequences, ranks]], sequences, ranks)
