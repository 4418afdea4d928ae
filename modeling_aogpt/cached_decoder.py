# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""A canvas on a decoder with a cache: every revealed token passes once, whatever the order."""

import torch
from transformers import PreTrainedModel

from .cache_aogpt import AnyOrderCache
from .canvas import Answer, Canvas
from .rows import query_mask, rows_of


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
        dtype = model.lm_head.weight.dtype
        if torch.is_autocast_enabled(ids.device.type):
            dtype = torch.get_autocast_dtype(ids.device.type)
        self.cache = AnyOrderCache(model.config, *ids.shape, dtype=dtype, device=ids.device)

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
        super().reorder(ranks)
        is_same = ranks == torch.arange(ranks.shape[1], device=ranks.device)
        # A row carries the token before its rank and its rank's position, and saw the tokens before.
        num_same = is_same.long().cumprod(dim=-1).sum(dim=-1).cpu()
        self.num_cached = torch.minimum(self.num_cached, num_same)

    def hide(self, is_hidden: torch.BoolTensor, orders: torch.LongTensor) -> None:
        super().hide(is_hidden, orders)
        # The row that predicts the first hidden rank has to tell its prediction again.
        self.num_cached = torch.minimum(self.num_cached, self.num_context)

    def _ranks_from_cache(self, ends: torch.LongTensor) -> torch.LongTensor:
        """Ranks (batch, rows) from the first that is not cached; as many as the neediest sequence has up to `ends`."""
        return self.num_cached[:, None] + torch.arange(int((ends - self.num_cached).max()))

    def _run(self, ranks: torch.LongTensor, num_context: torch.LongTensor, is_asked: torch.BoolTensor) -> Answer:
        """One pass: the rows of `ranks` (batch, rows) given `num_context` tokens, and what those asked for came to."""
        length = self.ids.shape[1]
        # A sequence that needs fewer rows than another computes some in vain; past its end it repeats the last.
        all_alike = bool((ranks == ranks[0]).all()) and int(ranks[0, -1]) < length
        slots = slice(int(ranks[0, 0]), int(ranks[0, -1]) + 1) if all_alike else None
        ranks = ranks.clamp(max=length - 1)
        num_visible = int(ranks.max()) + 1
        self.num_forward_passes += 1
        self.num_rows += ranks.numel()

        device = self.ids.device
        ranks, num_context, is_asked = ranks.to(device), num_context.to(device), is_asked.to(device)
        self.cache.write_to(ranks if slots is None else slots, num_visible)
        hidden_states = self.model.model(
            **rows_of(self.ids, self.positions, num_context, ranks),
            attention_mask=query_mask(ranks, num_context, num_visible),
            past_key_values=self.cache,
        ).last_hidden_state
        sequences, rows = is_asked.nonzero(as_tuple=True)
        return hidden_states[sequences, rows], (sequences, ranks[sequences, rows])
