# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Exact speculative decoding in any order: the model drafts for itself.

A parallel query drafts the next tokens, each from q, as if the others of its round were unknown. One pass over them as
a causal chain gives p, what each should have been drawn from. Accepting a draft with probability min(1, p / q), and
drawing the first that is rejected anew from the positive part of p - q, samples p(x | order) exactly (Leviathan et al.,
arXiv 2211.17192, appendix A.1). The first draft of a round is never rejected, since its q is its p.
"""

import torch
from transformers.generation import LogitsProcessorList

from .cached_decoder import CachedDecoder
from .orders import draw_uniform
from .sampling import distribution_of, draw_tokens


class SpeculativeSampler:
    """
    Fills the sequences of a decoder up to rank `ends` (batch,), at most `draft_length` drafts per round.

    A round takes two passes and reveals at least two tokens while two are left, so there are never more passes than
    tokens.

    Attributes:
        num_drafts (`int`): Tokens that could have been rejected, over all sequences and rounds.
        num_accepted (`int`): Those that were not.
    """

    def __init__(
        self,
        decoder: CachedDecoder,
        ends: torch.LongTensor,
        draft_length: int,
        warpers: LogitsProcessorList,
        generator: torch.Generator | None,
    ) -> None:
        self.decoder, self.ends, self.draft_length = decoder, ends, draft_length
        self.warpers, self.generator = warpers, generator
        self.num_drafts = self.num_accepted = 0
        self.token_logprobs = torch.zeros(decoder.ids.shape, dtype=torch.float64, device=decoder.ids.device)
        self.reveal_steps = torch.full_like(decoder.ids, -1)

    def run(self) -> None:
        """Round after round until all is revealed; log-probabilities and rounds, in order, are then attributes."""
        step = 0
        while (num_drafts := (self.ends - self.decoder.num_context).clamp(max=self.draft_length)).any():
            self._round(num_drafts, step)
            step += 1

    def _round(self, num_drafts: torch.LongTensor, step: int) -> None:
        decoder, device = self.decoder, self.decoder.ids.device
        context, width = decoder.num_context.clone(), int(num_drafts.max())
        # Column j of what follows is rank context + j; a column more than drafts, since all may be accepted.
        columns = torch.arange(width + 1, device=device)
        ranks = context.to(device)[:, None] + columns
        is_draft = columns < num_drafts.to(device)[:, None]
        drafted = self._distributions(decoder.query(num_drafts), context, width + 1)
        drafts = torch.zeros_like(ranks)
        drafts[is_draft] = draw_tokens(drafted[is_draft], self.generator)
        sequences, offsets = is_draft.nonzero(as_tuple=True)
        decoder.ids[sequences, ranks[sequences, offsets]] = drafts[is_draft]

        verified = drafted
        if width > 1:
            verified = self._distributions(decoder.verify(num_drafts, self.ends), context, width + 1)
            verified[:, 0] = drafted[:, 0]
        ratio = (verified / drafted).gather(2, drafts[..., None]).squeeze(2)  # NaN where nothing was drafted
        is_accepted = is_draft & (draw_uniform(*ratio.shape, generator=self.generator, device=device) < ratio)
        num_accepted = is_accepted.long().cumprod(dim=1).sum(dim=1)

        # After the accepted drafts one more token: in place of the first rejected one, or of the rank that follows.
        has_more = (num_accepted.cpu() > 0) & (context + num_accepted.cpu() < self.ends)
        where = has_more.to(device).nonzero().squeeze(1)
        rejected = num_accepted[where]
        weights = (verified[where, rejected] - drafted[where, rejected]).clamp(min=0)
        drafts[where, rejected] = draw_tokens(weights, self.generator)

        num_revealed = num_accepted + has_more.to(device)
        sequences, offsets = (columns < num_revealed[:, None]).nonzero(as_tuple=True)
        at = sequences, ranks[sequences, offsets]
        tokens = drafts[sequences, offsets]
        decoder.ids[at] = tokens
        self.token_logprobs[at] = verified[sequences, offsets].gather(1, tokens[:, None]).log().squeeze(1)
        self.reveal_steps[at] = step
        decoder.keep(num_revealed.cpu())
        self.num_drafts += int((num_drafts - 1).clamp(min=0).sum())
        self.num_accepted += int((num_accepted - 1).clamp(min=0).sum())

    def _distributions(
        self, answer: tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]], context: torch.LongTensor, width: int
    ) -> torch.Tensor:
        """A query's or verification's answer as (batch, width, vocab): column j is rank context + j; zero elsewhere."""
        logits, (sequences, ranks) = answer
        probabilities = torch.zeros(len(context), width, logits.shape[1], dtype=torch.float64, device=logits.device)
        probabilities[sequences, ranks - context.to(logits.device)[sequences]] = distribution_of(logits, self.warpers)
        return probabilities
