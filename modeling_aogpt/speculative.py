# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Exact speculative decoding in any order.

Somebody drafts the next tokens of the order, each from some q. One pass over them as a causal chain gives p, what each
should have been drawn from. Accepting a draft with probability min(1, p / q), and drawing the first that is rejected
anew from the positive part of p - q, samples p(x | order) exactly, whatever q (Leviathan et al., arXiv 2211.17192,
appendix A.1).
"""

from collections.abc import Callable

import torch

from .cached_decoder import CachedDecoder
from .canvas import Where, first_columns
from .devices import draw_uniform, to_device
from .ngram_drafts import NgramDrafts
from .sampling import draw_tokens
from .token_drawer import TokenDrawer


class ModelDrafts:
    """
    The model drafts for itself: a parallel query of the next ranks, as if none of them knew of the others.

    The first draft of a round is never rejected, since its q is its p: the pass is not in vain.

    Attributes:
        num_sure (`int`): Drafts of a round that cannot be rejected.
    """

    num_sure = 1

    def __init__(self, drawer: TokenDrawer) -> None:
        self.drawer = drawer

    def draft(self, num_drafts: torch.LongTensor) -> tuple[torch.LongTensor, torch.Tensor, torch.LongTensor]:
        """
        Drafts (batch, width) for up to `num_drafts` (batch,) ranks of each sequence; what they were drawn from (batch,
        width + 1, vocab), zero where nothing was drafted; and how many there are, (batch,) on the CPU.
        """
        canvas, width = self.drawer.canvas, int(num_drafts.max())
        answer = canvas.query(num_drafts)
        drafted = in_columns(canvas, self.drawer.distributions(answer), answer[1], width + 1)
        cells = first_columns(num_drafts, drafted.device)
        drafts = torch.zeros(len(num_drafts), width, dtype=torch.long, device=drafted.device)
        drafts[cells] = draw_tokens(drafted[cells], self.drawer.generator)
        return drafts, drafted, num_drafts


class SpeculativeSampler:
    """
    Fills the sequences of a decoder, at most `draft_length` drafts per round.

    A round takes one pass to verify, another where the model drafts, and reveals at least one token, at least two of
    those that are left where the model drafts: so there are never more passes than tokens.

    Attributes:
        num_drafts (`int`): Tokens that could have been rejected, over all sequences and rounds.
        num_accepted (`int`): Those that were not.
    """

    def __init__(
        self, canvas: CachedDecoder, drawer: TokenDrawer, drafter: ModelDrafts | NgramDrafts, draft_length: int
    ) -> None:
        self.canvas, self.drawer, self.drafter, self.draft_length = canvas, drawer, drafter, draft_length
        self.num_sure = drafter.num_sure
        self.num_drafts = self.num_accepted = 0

    def run(self, first_step: int, after_step: Callable[[], None]) -> int:
        """Counts rounds from `first_step`, tells of each, and returns the number of the next."""
        step = first_step
        while self.canvas.num_hidden.any():
            self._round(step)
            after_step()
            step += 1
        return step

    def _round(self, step: int) -> None:
        canvas, device = self.canvas, self.canvas.ids.device
        context = canvas.num_context.clone()
        drafts, drafted, num_drafts = self.drafter.draft(canvas.num_hidden.clamp(max=self.draft_length))
        # Column j is rank context + j; a column more than drafts, since all may be accepted.
        columns = torch.arange(drafted.shape[1], device=device)
        ranks = to_device(context, device)[:, None] + columns
        tokens = torch.nn.functional.pad(drafts, (0, 1))
        is_draft = columns < to_device(num_drafts, device)[:, None]
        sequences, offsets = first_columns(num_drafts, device)
        canvas.ids[sequences, ranks[sequences, offsets]] = tokens[sequences, offsets]

        verified = self._verify(drafted, num_drafts)
        p, q = (distributions.gather(2, tokens[..., None]).squeeze(2) for distributions in (verified, drafted))
        uniform = draw_uniform(*p.shape, generator=self.drawer.generator, device=device)
        is_accepted = is_draft & ~(uniform >= p / q)  # NaN is accepted, so that a round always ends: the caller reports
        num_accepted = is_accepted.long().cumprod(dim=1).sum(dim=1).cpu()

        # After the accepted drafts one more token: in place of the first rejected one, or of the rank that follows.
        has_more = canvas.num_hidden > num_accepted
        where, rejected = to_device(has_more.nonzero().squeeze(1), device), to_device(num_accepted[has_more], device)
        weights = (verified[where, rejected] - drafted[where, rejected]).clamp(min=0)
        tokens[where, rejected] = draw_tokens(weights, self.drawer.generator)

        num_revealed = num_accepted + has_more
        sequences, offsets = first_columns(num_revealed, device)
        tokens = tokens[sequences, offsets]
        logprobs = verified[sequences, offsets].gather(1, tokens[:, None]).log().squeeze(1)
        canvas.commit(tokens, (sequences, ranks[sequences, offsets]), num_revealed, logprobs, step)
        canvas.keep()
        self.num_drafts += int((num_drafts - self.num_sure).clamp(min=0).sum())
        self.num_accepted += int((num_accepted - self.num_sure).clamp(min=0).sum())

    def _verify(self, drafted: torch.Tensor, num_drafts: torch.LongTensor) -> torch.Tensor:
        """p (batch, columns, vocab) of every draft and of the rank that follows, each given the drafts before."""
        if self.num_sure and int(num_drafts.max()) == 1:
            return drafted
        answer = self.canvas.verify(num_drafts, is_first_asked=self.num_sure == 0)
        _, ranks = answer[1]
        verified = in_columns(self.canvas, self.drawer.distributions(answer, ranks), answer[1], drafted.shape[1])
        if self.num_sure:
            verified[:, 0] = drafted[:, 0]
        return verified


def in_columns(canvas: CachedDecoder, distributions: torch.Tensor, where: Where, width: int) -> torch.Tensor:
    """Distributions (queries, vocab) as (batch, width, vocab): column j is rank context + j; zero elsewhere."""
    sequences, ranks = where
    columns = ranks - to_device(canvas.num_context, ranks.device)[sequences]
    result = distributions.new_zeros(len(canvas.num_context), width, distributions.shape[1])
    result[sequences, columns] = distributions
    return result
