# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Exact speculative decoding in any order.

In each round, tokens of the next ranks are drafted, each of them from some distribution q. One pass over the drafts as
a causal chain gives p, the model's distribution of each token given the tokens of all earlier ranks. A draft is
accepted with probability min(1, p / q), where p and q are the probabilities of the draft. The first rejected draft is
replaced by a token that is drawn from the normalized positive part of p - q. Later drafts are discarded. The result is
an exact sample of p(x | order) for every q (Leviathan et al., arXiv 2211.17192, appendix A.1).
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from .decoding_state import CachedDecodingState, leading_indices
from .devices import draw_uniform, to_device
from .orders import index_by_position
from .sampling import TokenSampler, draw_tokens, log_probabilities

# Largest number of neighbours on each side of a position that prompt lookup compares.
LOOKUP_REACH = 3


class Drafts(NamedTuple):
    """Drafted tokens for the first masked ranks of each sequence."""

    tokens: torch.LongTensor  # (batch, width): column j belongs to the j-th masked rank
    distributions: torch.Tensor  # (batch, width + 1, vocab_size): q of each draft; 0 after the last draft
    counts: torch.LongTensor  # (batch,): number of drafts of each sequence, on the CPU


class ModelDrafts:
    """
    Source of drafts that queries the model itself, for several ranks in parallel. Drafts do not see each other.

    For the first draft of a round, q equals p, because all tokens before it are unmasked. It is therefore always
    accepted.
    """

    num_always_accepted = 1  # drafts per round that cannot be rejected

    def __init__(self, sampler: TokenSampler) -> None:
        self.sampler = sampler

    def draft(self, max_drafts: torch.LongTensor) -> Drafts:
        """Draft `max_drafts[b]` tokens for each sequence b."""
        state, width = self.sampler.state, int(max_drafts.max())
        result = state.query(max_drafts)
        distributions = state.arrange(self.sampler.distributions(result), result, width + 1)
        indices = leading_indices(max_drafts, distributions.device)
        tokens = torch.zeros(len(max_drafts), width, dtype=torch.long, device=distributions.device)
        tokens[indices] = draw_tokens(distributions[indices], self.sampler.generator)
        return Drafts(tokens, distributions, max_drafts)


class PromptLookupDrafts:
    """
    Source of drafts that copies tokens from the unmasked text, without a forward pass.

    The draft for a target position is the token of the unmasked position whose neighbours agree best with those of the
    target. The agreement of two positions is the number of equal unmasked neighbours on the left, counted up to the
    first difference and at most `LOOKUP_REACH`, plus the number on the right, counted in the same way. If several
    positions agree best, the last one is taken. In left-to-right order, this is a lookup of the longest n-gram.
    Drafting stops at the first target for which no neighbour agrees.
    """

    num_always_accepted = 0

    def __init__(self, sampler: TokenSampler) -> None:
        self.state = sampler.state

    def draft(self, max_drafts: torch.LongTensor) -> Drafts:
        """Draft up to `max_drafts[b]` tokens for each sequence b. Each draft has probability 1 in its distribution."""
        state, device = self.state, self.state.ids.device
        width, batch_size = int(max_drafts.max()), len(max_drafts)
        context = to_device(state.num_context, device)
        # Masked positions are -1, which never matches. Each draft is added to `text`, so later drafts can match it.
        is_unmasked = state.ranks_between(torch.zeros_like(state.num_context), state.num_context)
        text = index_by_position(state.ids.masked_fill(~is_unmasked, -1), state.orders)
        tokens = torch.zeros(batch_size, width, dtype=torch.long, device=device)
        is_active = torch.ones(batch_size, dtype=torch.bool, device=device)
        counts = torch.zeros(batch_size, dtype=torch.long, device=device)
        rows = torch.arange(batch_size, device=device)
        for column in range(width):
            targets = state.orders[rows, (context + column).clamp(max=text.shape[1] - 1)]
            found, is_found = look_up(text, targets)
            is_active &= is_found & (column < to_device(max_drafts, device))
            tokens[:, column] = torch.where(is_active, found, 0)
            text[rows, targets] = torch.where(is_active, found, text[rows, targets])
            counts += is_active
        is_draft = torch.arange(width, device=device) < counts[:, None]
        shape = batch_size, width + 1, state.model.config.vocab_size
        distributions = torch.zeros(shape, dtype=torch.float64, device=device)
        distributions[:, :width].scatter_(2, tokens[..., None], is_draft[..., None].double())
        return Drafts(tokens, distributions, counts.cpu())


def look_up(text: torch.LongTensor, targets: torch.LongTensor) -> tuple[torch.LongTensor, torch.BoolTensor]:
    """
    Return the token (batch,) whose neighbours agree best with those of the target, and whether any of them agrees.

    `text` (batch, n) has -1 at masked positions. `targets` (batch,) is the target position of each sequence. See
    [`PromptLookupDrafts`] for the meaning of agreement.
    """
    length = text.shape[1]
    padded = torch.nn.functional.pad(text, (LOOKUP_REACH, LOOKUP_REACH), value=-1)
    agreement = torch.zeros_like(text)
    for direction in (-1, 1):
        is_same = torch.ones_like(text, dtype=torch.bool)
        for distance in range(1, LOOKUP_REACH + 1):
            shift = LOOKUP_REACH + direction * distance
            neighbours = padded[:, shift : shift + length]
            wanted = padded.gather(1, (targets + shift)[:, None])
            is_same &= (neighbours == wanted) & (wanted >= 0)
            agreement += is_same
    positions = torch.arange(length, device=text.device)
    best = (agreement * (text >= 0) * length + positions).masked_fill(text < 0, -1).argmax(dim=1, keepdim=True)
    is_found = (agreement.gather(1, best) > 0) & (text.gather(1, best) >= 0)
    return text.gather(1, best).squeeze(1), is_found.squeeze(1)


# Sources of drafts, by their name in `generate`.
DRAFTS = {"model": ModelDrafts, "prompt_lookup": PromptLookupDrafts}


class SpeculativeSampler:
    """
    Sampler that fills in the sequences of a decoder by drafting and verifying tokens.

    A round takes one pass to verify drafts, and with `ModelDrafts` another pass to make them. In each unfinished
    sequence, it unmasks at least one token, and with `ModelDrafts` at least two (if two are left). There are thus never
    more passes than tokens to fill in.

    `draft_length` is the largest number of drafts per round and sequence.
    """

    def __init__(
        self,
        state: CachedDecodingState,
        sampler: TokenSampler,
        drafter: ModelDrafts | PromptLookupDrafts,
        draft_length: int,
    ) -> None:
        self.state, self.sampler, self.drafter, self.draft_length = state, sampler, drafter, draft_length
        # Numbers of drafts and of accepted drafts over all rounds. If a drafter's first draft of each round is always
        # accepted (see `num_always_accepted`), it is not counted.
        self.num_drafts = self.num_accepted = 0
        self._step = 0

    def run(self) -> Iterator[None]:
        """Run rounds until no position is masked, and yield after each of them. A round is a step."""
        while self.state.num_masked.any():
            self._run_round()
            self._step += 1
            yield

    def _run_round(self) -> None:
        state, generator, device = self.state, self.sampler.generator, self.state.ids.device
        # 1. Draft tokens. Column j stands for the j-th masked rank of a sequence. An additional last column is for the
        # token that is drawn if all drafts are accepted.
        drafts = self.drafter.draft(state.num_masked.clamp(max=self.draft_length))
        tokens = torch.nn.functional.pad(drafts.tokens, (0, 1))
        is_draft = torch.arange(tokens.shape[1], device=device) < to_device(drafts.counts, device)[:, None]
        state.ids[state.next_ranks(drafts.counts)] = tokens[leading_indices(drafts.counts, device)]
        # 2. Compute the model's distributions given the drafts.
        verified = self._verify(drafts)
        # 3. Accept each draft with probability min(1, p / q), up to the first rejection.
        p, q = (values.gather(2, tokens[..., None]).squeeze(2) for values in (verified, drafts.distributions))
        uniform = draw_uniform(*p.shape, generator=generator, device=device)
        is_accepted = is_draft & ~(uniform >= p / q)  # NaN is accepted here, and reported later by `generate`
        num_accepted = is_accepted.long().cumprod(dim=1).sum(dim=1).cpu()
        # 4. Draw one more token from the positive part of p - q, where q is 0 after the last draft.
        has_more = state.num_masked > num_accepted
        selected = to_device(has_more.nonzero().squeeze(1), device), to_device(num_accepted[has_more], device)
        remainder = (verified[selected] - drafts.distributions[selected]).clamp(min=0)
        tokens[selected] = draw_tokens(remainder, generator)
        # 5. Commit these tokens.
        num_unmasked = num_accepted + has_more
        committed = leading_indices(num_unmasked, device)
        logprobs = log_probabilities(verified[committed], tokens[committed])
        state.commit(tokens[committed], state.next_ranks(num_unmasked), num_unmasked, logprobs, self._step)
        state.keep_verified()
        num_always_accepted = self.drafter.num_always_accepted
        self.num_drafts += int((drafts.counts - num_always_accepted).clamp(min=0).sum())
        self.num_accepted += int((num_accepted - num_always_accepted).clamp(min=0).sum())

    def _verify(self, drafts: Drafts) -> torch.Tensor:
        """Return p (batch, width + 1, vocab_size) at the rank of every draft and at the rank after the last draft."""
        skips_first = self.drafter.num_always_accepted > 0
        if skips_first and int(drafts.counts.max()) == 1:
            return drafts.distributions
        result = self.state.verify(drafts.counts, include_first=not skips_first)
        distributions = self.sampler.distributions(result, num_visible=result.ranks)
        verified = self.state.arrange(distributions, result, drafts.distributions.shape[1])
        if skips_first:
            verified[:, 0] = drafts.distributions[:, 0]
        return verified
