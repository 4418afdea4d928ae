# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Query and commit, the two verbs of generation, on a decoder with a cache."""

import torch
from transformers import PreTrainedModel

from .cache_aogpt import AnyOrderCache
from .rows import query_mask, rows_of


class CachedDecoder:
    """
    The sequences that are being generated, in order.

    A token's keys depend on the target that follows it, so the token committed last waits for the next query. One pass
    per query enters the tokens committed since the last one, as a causal chain, and queries the next ranks in parallel,
    each seeing the context and itself. The first of these rows is also that of the token committed first, and is kept.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        ids: torch.LongTensor,
        positions: torch.LongTensor,
        num_context: torch.LongTensor,
    ) -> None:
        """Tokens and positions (batch, n) in order; how many of each sequence are given, (batch,) on the CPU."""
        self.model = model
        self.ids, self.positions = ids, positions
        self.num_context = num_context.clone()
        self.num_cached = torch.zeros_like(num_context)
        dtype = model.lm_head.weight.dtype
        if torch.is_autocast_enabled(ids.device.type):
            dtype = torch.get_autocast_dtype(ids.device.type)
        self.cache = AnyOrderCache(model.config, *ids.shape, dtype=dtype, device=ids.device)
        self.num_forward_passes = self.num_rows = 0

    def query(self, num_queries: torch.LongTensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """
        Logits (queries, vocab) of the next `num_queries` (batch,) ranks of each sequence, one sequence after another,
        and the (sequence, rank) of each.
        """
        known = self.num_context[:, None]
        ranks = self._ranks_from_cache(self.num_context + num_queries)
        is_query = (known <= ranks) & (ranks < known + num_queries[:, None])
        logits, where = self._run(ranks, self.num_context, is_query)
        # The rows of all known tokens but the last, and that of the rank queried first, now lie where they belong.
        self.num_cached = self.num_context + num_queries.clamp(max=1)
        return logits, where

    def verify(
        self, num_drafts: torch.LongTensor, ends: torch.LongTensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """
        As `query`, for the ranks that follow each of the `num_drafts` (batch,) tokens that stand, uncommitted, in `ids`
        behind the context, up to rank `ends` (batch,): every one given the drafts before it, as if these were known.
        """
        known = self.num_context + num_drafts
        ranks = self._ranks_from_cache(torch.minimum(known + 1, ends))
        is_asked = (self.num_context[:, None] < ranks) & (ranks <= known[:, None]) & (ranks < ends[:, None])
        return self._run(ranks, known, is_asked)

    def _ranks_from_cache(self, ends: torch.LongTensor) -> torch.LongTensor:
        """Ranks (batch, rows) from the first that is not cached; as many as the neediest sequence has up to `ends`."""
        return self.num_cached[:, None] + torch.arange(int((ends - self.num_cached).max()))

    def _run(
        self, ranks: torch.LongTensor, num_context: torch.LongTensor, is_asked: torch.BoolTensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """One pass: the rows of `ranks` (batch, rows) given `num_context` tokens, and the logits of those asked for."""
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
        logits = self.model.lm_head(hidden_states[sequences, rows])
        logits[:, self.model.config.num_valid_tokens :] = float("-inf")
        return logits, (sequences, ranks[sequences, rows])

    def commit(self, tokens: torch.LongTensor, where: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Puts the tokens (queries,) of the last query where it said."""
        self.ids[where] = tokens
        self.num_context += torch.bincount(where[0].cpu(), minlength=len(self.num_context))

    def keep(self, num_tokens: torch.LongTensor) -> None:
        """Commits the next `num_tokens` (batch,) ranks of `ids`, whose rows, but of the last token, were verified."""
        self.num_context += num_tokens
        self.num_cached = self.num_context.clone()
