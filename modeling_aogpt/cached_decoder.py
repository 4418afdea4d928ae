# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""A canvas on a decoder with a cache: every revealed token passes once, whatever the order."""

from contextlib import AbstractContextManager, nullcontext
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel

from .cache_aogpt import AnyOrderCache
from .canvas import Answer, Canvas
from .devices import device_of, to_device
from .linear import is_compiled, with_packed_weights
from .rows import query_mask, rows_of

# A CPU packs the weights for so many passes of several rows: packing costs what about 20 packed passes save.
PASSES_WORTH_PACKING = 32

# That may be compiled; torch's own limit is 8.
GRAPHS_PER_MODEL = 64

# What the next generation of a compiled model may take over: kind, cache and tables of the last one.
MEMORY: WeakKeyDictionary[nn.Module, tuple] = WeakKeyDictionary()


def many_graphs() -> AbstractContextManager:
    """Each bucket of rows and kind of batch has a graph. Beyond torch's limit, passes would not be compiled at all."""
    config = torch._dynamo.config
    return config.patch(recompile_limit=max(config.recompile_limit, GRAPHS_PER_MODEL))


class CachedDecoder(Canvas):
    """
    A token's keys depend on the target that follows it, so the token committed last waits for the next query. One pass
    per query enters the tokens committed since the last one, as a causal chain, and queries the next ranks in parallel,
    each seeing the context and itself. The first of these rows is also that of the token committed first, and is kept.
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
        self._is_compiled = is_compiled(self.model.model)
        self._is_packed = ids.device.type != "cpu"  # others have nothing to pack
        dtype = self.model.lm_head.weight.dtype
        if torch.is_autocast_enabled(ids.device.type):
            dtype = torch.get_autocast_dtype(ids.device.type)
        devices = [device_of(layer, ids.device) for layer in self.model.model.layers]
        # Every position is a target at least once: to project each just once can only take less.
        self.modulations = self.model.model.tabulate_modulations(ids.shape[1], ids.device)
        if self._is_compiled:
            self._take_memory(dtype, devices)
        else:
            self.cache = AnyOrderCache(self.model.config, *ids.shape, dtype=dtype, devices=devices)

    def _take_memory(self, dtype: torch.dtype, devices: list[torch.device]) -> None:
        """
        Cache and tables where the generation before had them, if that is done and was of this kind: CUDA graphs are
        recorded for addresses, and would be anew for every generation.
        """
        kind = type(self), *self.ids.shape, dtype, *devices, torch.is_inference_mode_enabled()
        self._memory = MEMORY.pop(self.model.model, None)
        if self._memory is None or self._memory[0] != kind:
            self._memory = None  # before there is other memory
            cache = AnyOrderCache(self.model.config, *self.ids.shape, dtype=dtype, devices=devices)
            self._memory = kind, cache, self.modulations
        _, self.cache, tables = self._memory
        for table, fresh in zip(tables or (), self.modulations or (), strict=True):
            table.copy_(fresh)
            torch._dynamo.mark_static_address(table, guard=False)  # others are copied before every pass
        self.modulations = tables

    def end(self) -> None:
        if self._is_compiled:
            MEMORY[self.model.model] = self._memory

    def query(self, num_queries: torch.LongTensor) -> Answer:
        known = self.num_context[:, None]
        ranks = self._ranks_from_cache(self.num_context + num_queries)
        is_query = (known <= ranks) & (ranks < known + num_queries[:, None])
        answer = self._run(ranks, self.num_context, is_query)
        # The rows of all known tokens but the last, and that of the rank queried first, now lie where they belong.
        self.num_cached = self.num_context + num_queries.clamp(max=1)
        return answer

    def verify(self, num_drafts: torch.LongTensor, is_first_asked: bool = False) -> Answer:
        """
        As `query`, for the ranks that follow each of the `num_drafts` (batch,) tokens that stand, uncommitted, in `ids`
        behind the context: every one given the drafts before it, as if these were known. The rank of the first draft,
        of which a query has told, is asked for too if `is_first_asked`.
        """
        known = self.num_context + num_drafts
        ranks = self._ranks_from_cache(torch.minimum(known + 1, self.ends))
        first = self.num_context[:, None] + (0 if is_first_asked else 1)
        is_asked = (first <= ranks) & (ranks <= known[:, None]) & (ranks < self.ends[:, None])
        return self._run(ranks, known, is_asked)

    def keep(self) -> None:
        """Says that the committed tokens were verified as they are: all their rows but that of the last are cached."""
        self.num_cached = self.num_context.clone()

    def reorder(self, ranks: torch.LongTensor) -> None:
        """Of hidden ranks; only `hide` moves revealed ones, too, and sees to them."""
        super().reorder(ranks)
        # The row of the first hidden rank may still be right, but to know it an accelerator would wait.
        self.num_cached = torch.minimum(self.num_cached, self.num_context)

    def hide(self, is_hidden: torch.BoolTensor, orders: torch.LongTensor) -> None:
        before = self.orders
        super().hide(is_hidden, orders)
        # A row carries the token before its rank and its rank's position, and saw the tokens before.
        num_same = (self.orders == before).long().cumprod(dim=-1).sum(dim=-1).cpu()
        self.num_cached = torch.minimum(self.num_cached, num_same)

    def _ranks_from_cache(self, ends: torch.LongTensor) -> torch.LongTensor:
        """Ranks (batch, rows) from the first that is not cached; as many as the neediest sequence has up to `ends`."""
        longest = int((ends - self.num_cached).max())
        return self.num_cached[:, None] + torch.arange(longest, device=ends.device)

    def _run(self, ranks: torch.LongTensor, num_context: torch.LongTensor, is_asked: torch.BoolTensor) -> Answer:
        """One pass: the rows of `ranks` (batch, rows) given `num_context` tokens, and what those asked for came to."""
        length, device = self.ids.shape[1], self.ids.device
        sequences, rows = is_asked.nonzero(as_tuple=True)
        # A sequence that needs fewer rows than another computes some in vain; past its end it repeats the last.
        if self._is_compiled:
            # So that few shapes are compiled: a power of two of rows, and all slots.
            num_rows = 1 << (ranks.shape[1] - 1).bit_length()
            ranks = (ranks[:, :1] + torch.arange(num_rows, device=ranks.device)).clamp(max=length - 1)
            slots, num_visible, num_left_out = None, length, 0
        else:
            self._pack_weights_in_time(is_asked)
            slots = slice(int(ranks[0, 0]), int(ranks[0, -1]) + 1) if (ranks == ranks[0]).all() else None
            ranks = ranks.clamp(max=length - 1)
            num_visible, num_left_out = int(ranks.max()) + 1, int(is_asked.any(dim=0).long().argmax())
        sees_all = ranks.shape[1] == 1 and slots is not None  # the row of the next token, as mostly left to right
        self.num_forward_passes += 1
        self.num_rows += ranks.numel()

        ranks, num_context, sequences, rows = (
            to_device(values, device) for values in (ranks, num_context, sequences, rows)
        )  # counted on the CPU, so that no pass waits for an accelerator
        self.cache.write_to(ranks if slots is None else slots, num_visible)
        with many_graphs() if self._is_compiled else nullcontext():
            hidden_states = self.model.model(
                **rows_of(self.ids, self.positions, num_context, ranks),
                attention_mask=None if sees_all else query_mask(ranks, num_context, num_visible),
                past_key_values=self.cache,
                modulations=self.modulations,
                num_kept=ranks.shape[1] - num_left_out,
            ).last_hidden_state
        return hidden_states[sequences, rows - num_left_out], (sequences, ranks[sequences, rows])

    def _pack_weights_in_time(self, is_asked: torch.BoolTensor) -> None:
        """Once there are enough passes: those so far, and those to come if they all ask for as much as this one."""
        if self._is_packed or int(is_asked.sum()) == 1:  # the passes to come have one row
            return
        num_to_come = int((self.num_hidden / is_asked.sum(dim=1).clamp(min=1)).max())
        if self.num_forward_passes + num_to_come >= PASSES_WORTH_PACKING:
            self.model, self._is_packed = with_packed_weights(self.model), True
