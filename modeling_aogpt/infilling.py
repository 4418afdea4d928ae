# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Infilling of gaps of unknown length.

The length of a gap determines the positions of the tokens after it. If all lengths are equally likely a priori, then
by Bayes' rule the probability of a length, given the tokens around the gap, is proportional to the joint likelihood of
these tokens at their positions, with the gap marginalized out. An any-order model computes this likelihood without
filling in the gap, because it can leave positions out. For every length, the same tokens are scored, so the scores need
no correction for the length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product

import torch
from transformers.utils import ModelOutput

from .orders import Orders
from .validation import check_integer, check_mask_token

# Candidates are the combinations of the lengths of all gaps.
MAX_CANDIDATES = 4096


@dataclass
class InfillingOutput(ModelOutput):
    """
    Output of [`~AnyOrderInfillingMixin.infill`].

    Args:
        sequences (`torch.LongTensor` of shape `(num_return_sequences, n)`): The text with its gaps filled in, and with
            its padding.
        lengths (`torch.LongTensor` of shape `(gaps,)`): Number of tokens in each gap.
        candidates (`torch.LongTensor` of shape `(candidates, gaps)`): The combinations of lengths that were compared.
        log_probs (`torch.Tensor` of shape `(candidates,)`): Log-probability of each combination, in nats, given the
            text around the gaps; all combinations are equally likely a priori.
    """

    sequences: torch.LongTensor | None = None
    lengths: torch.LongTensor | None = None
    candidates: torch.LongTensor | None = None
    log_probs: torch.FloatTensor | None = None


class AnyOrderInfillingMixin:
    """`infill` for decoders that predict tokens in any order."""

    @torch.no_grad()
    def infill(
        self,
        input_ids: torch.LongTensor,
        lengths: Sequence[int] | Sequence[Sequence[int]] = range(1, 9),
        padded_length: int | None = None,
        orders: Orders = "left_to_right",
        num_orders: int = 1,
        generator: torch.Generator | None = None,
        **kwargs: object,
    ) -> InfillingOutput:
        """
        Fill in gaps of unknown length.

        Args:
            input_ids (`torch.LongTensor` of shape `(n,)` or `(1, n)`): Tokens of one text, in which each
                `config.mask_token_id` stands for a gap.
            lengths (sequence of `int`, or a sequence of these for each gap, defaults to `range(1, 9)`): Numbers of
                tokens that a gap may have.
            padded_length (`int`, *optional*): Length to which the text is padded with `config.eos_token_id`. Needed if
                the model was trained on documents with such padding.
            orders (as in `log_likelihood`, defaults to `"left_to_right"`): Order in which the tokens around the gaps
                are scored.
            num_orders (`int`, defaults to 1): Number of random orders to average over, with `orders="random"`.
            generator (`torch.Generator`, *optional*): Source of randomness, for reproducible results.
            kwargs: Other arguments of [`~AnyOrderGenerationMixin.generate`], which fills the gaps in.

        Returns:
            [`InfillingOutput`].

        Raises:
            ValueError: If there is no gap, two gaps are adjacent, there is no text around the gaps, no candidate
                fits, or there are more than 4096 candidates; and as in `generate`.

        Examples:
            >>> from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM

            >>> config = AOGPTConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
            >>> model = AOGPTForAnyOrderLM(config)
            >>> output = model.infill(torch.tensor([5, 6, config.mask_token_id, 7]), lengths=[1, 2, 3])
            >>> output.sequences.shape[1] == 3 + int(output.lengths)
            True
        """
        check_mask_token(self.config)
        segments = self._split_at_gaps(input_ids)
        candidates = self._list_candidates(segments, lengths, padded_length)
        rows = [self._insert_masks(segments, candidate, padded_length) for candidate in candidates]
        log_probs = self._score_candidates(rows, orders, num_orders, generator)
        best = int(log_probs.argmax())
        kwargs["return_dict_in_generate"] = False
        return InfillingOutput(
            sequences=self.generate(rows[best][None].to(input_ids.device), generator=generator, **kwargs),
            lengths=torch.tensor(candidates[best]),
            candidates=torch.tensor(candidates),
            log_probs=log_probs,
        )

    def _split_at_gaps(self, input_ids: torch.LongTensor) -> list[list[int]]:
        """Return the tokens before, between and after the gaps."""
        is_tensor = isinstance(input_ids, torch.Tensor)
        if not is_tensor or input_ids.dim() not in (1, 2) or input_ids.numel() != input_ids.shape[-1]:
            given = f"has shape {tuple(input_ids.shape)}" if is_tensor else f"has type {type(input_ids).__name__}"
            raise ValueError(f"`input_ids` must be one text, a tensor (n,) or (1, n), but {given}.")
        segments: list[list[int]] = [[]]
        for token in input_ids.flatten().tolist():
            if token == self.config.mask_token_id:
                segments.append([])
            else:
                segments[-1].append(token)
        if len(segments) == 1:
            raise ValueError(
                f"`input_ids` has no gap. Put the mask token (id {self.config.mask_token_id}) where text is missing."
            )
        if not all(segments[1:-1]):
            raise ValueError("Two masks are adjacent. Put one mask for each gap, however long it is.")
        if not any(segments):
            raise ValueError("There is no text around the gap. Use `generate` for whole sequences.")
        return segments

    def _list_candidates(
        self,
        segments: list[list[int]],
        lengths: Sequence[int] | Sequence[Sequence[int]],
        padded_length: int | None,
    ) -> list[tuple[int, ...]]:
        """Return the combinations of lengths that fit into the model or the padded length."""
        num_gaps, num_tokens = len(segments) - 1, sum(map(len, segments))
        per_gap = [list(values) if isinstance(values, Sequence) else values for values in lengths]
        if all(isinstance(value, int) for value in per_gap):
            per_gap = [per_gap] * num_gaps
        if len(per_gap) != num_gaps or not all(isinstance(values, list) and values for values in per_gap):
            raise ValueError(
                f"`lengths` must be numbers of tokens, or a list of them for each of the {num_gaps} gaps, but is "
                f"{lengths!r}."
            )
        for length in {length for values in per_gap for length in values}:
            check_integer("lengths", length)
        if padded_length is not None:
            check_integer("padded_length", padded_length)
            if self.config.eos_token_id is None:
                raise ValueError("`padded_length` needs `config.eos_token_id` to pad with. Set it, or remove it.")
        most = min(self.config.max_position_embeddings, padded_length or self.config.max_position_embeddings)
        fitting = (lengths for lengths in product(*per_gap) if num_tokens + sum(lengths) <= most)
        candidates = list(islice(fitting, MAX_CANDIDATES + 1))
        if not candidates:
            raise ValueError(
                f"The text has {num_tokens} tokens, and none of the `lengths` fits: with the gaps, it may have {most}."
            )
        if len(candidates) > MAX_CANDIDATES:
            raise ValueError(
                f"There are more than {MAX_CANDIDATES} combinations of `lengths`. Give fewer lengths, or fill in some "
                "gaps first."
            )
        return candidates

    def _insert_masks(
        self, segments: list[list[int]], lengths: tuple[int, ...], padded_length: int | None
    ) -> torch.LongTensor:
        ids = list(segments[0])
        for length, segment in zip(lengths, segments[1:], strict=True):
            ids += [self.config.mask_token_id] * length + segment
        eos = self.config.eos_token_id
        padding = [eos[0] if isinstance(eos, list) else eos] * ((padded_length or 0) - len(ids))
        return torch.tensor(ids + padding)

    def _score_candidates(
        self, rows: list[torch.LongTensor], orders: Orders, num_orders: int, generator: torch.Generator | None
    ) -> torch.Tensor:
        """Return the log-probability of each candidate given the text around the gaps, (candidates,)."""
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.config.mask_token_id)
        is_given = ids != self.config.mask_token_id
        device = ids.device if self.device.type == "meta" else self.device
        scores = self.conditional_log_likelihood(
            ids.masked_fill(~is_given, 0).to(device),
            targets=is_given.to(device),
            context=torch.zeros_like(is_given).to(device),
            orders=orders,
            num_orders=num_orders,
            generator=generator,
        )
        return scores.log_likelihood.log_softmax(dim=0)


__all__ = ["AnyOrderInfillingMixin", "InfillingOutput"]
