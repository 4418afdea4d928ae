# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Policy that draws the cells, too: the probability of a trajectory then contains that of its order.

In each step, the cell is drawn from softmax(log c / tau) over the masked cells, where c is the probability of the
likeliest token of a cell. As tau approaches 0, this becomes the order `confidence` of `generate`. The token of the cell
is then drawn from the model. Both probabilities are those of the model, so their product is that of the step.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch

from modeling_aogpt.loading import Model
from modeling_aogpt.orders import index_by_position, index_by_rank, make_rows
from modeling_aogpt.unmasking import CERTAINTY_MEASURES, confidence


@contextmanager
def drawn_order(tau: float, seed: int) -> Iterator[None]:
    """Context manager in which `generate` with `order="confidence"` draws cells, by Gumbel noise."""
    generator = torch.Generator().manual_seed(seed)

    def noisy_confidence(probabilities: torch.Tensor) -> torch.Tensor:
        uniform = torch.rand(len(probabilities), generator=generator, dtype=torch.float64)
        gumbel = -(-uniform.clamp(min=1e-300).log()).log()
        return confidence(probabilities).log() / tau + gumbel.to(probabilities)

    with patch.dict(CERTAINTY_MEASURES, confidence=noisy_confidence):
        yield


def joint_log_probs(
    model: Model, sequences: torch.LongTensor, orders: torch.LongTensor, unmasking_steps: torch.LongTensor, tau: float
) -> torch.Tensor:
    """Return the log-probability of the cell and the token of each step, with gradients, by position (batch, n).

    The arguments are those of `trajectory_log_probs`. Each step must fill in one cell, and there is no padding. One
    pass predicts all cells that are masked before each step.
    """
    length, device = orders.shape[1], orders.device
    is_generated = index_by_rank(unmasking_steps, orders) >= 0
    ids, ranks = index_by_rank(sequences, orders), torch.arange(length, device=device)
    # Rows: a chain, in which row r predicts rank r, and then a parallel query for each later rank of each step.
    first = int((~is_generated).sum(dim=1).min())  # smallest number of given cells
    steps, later = (ranks[:, None] < ranks).logical_and(ranks[:, None] >= first).nonzero().T
    num_context, targets = torch.cat((ranks, steps)), torch.cat((ranks, later))
    rows = torch.arange(len(targets), device=device)
    mask = ((rows < num_context[:, None]) | (rows == rows[:, None])).expand(len(ids), 1, -1, -1)
    carried, columns = (values.expand(len(ids), -1) for values in (num_context - 1, targets))
    states = model.model(**make_rows(ids, orders, carried, columns), attention_mask=mask).last_hidden_state
    states = states[:, first:]
    num_context, targets = num_context[first:], targets[first:]
    scores = model.apply_head(states)[..., : model.config.num_valid_tokens].log_softmax(dim=-1)
    # The certainty of each rank in each step. The ranks before a step are not masked.
    certainty = scores.amax(dim=-1) / tau
    table = certainty.new_full((len(ids), length, length), float("-inf")).index_put(
        (torch.arange(len(ids), device=device)[:, None], num_context, targets), certainty
    )
    of_cells = table[:, first:].log_softmax(dim=-1).diagonal(offset=first, dim1=1, dim2=2)
    num_steps = length - first
    of_tokens = scores[:, :num_steps].gather(2, ids[:, first:, None]).squeeze(2)
    total = torch.nn.functional.pad(of_cells + of_tokens, (first, 0)).masked_fill(~is_generated, 0.0)
    return index_by_position(total, orders)
