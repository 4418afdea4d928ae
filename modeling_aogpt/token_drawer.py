# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokens for what a canvas was asked, and what is to be known of their distributions."""

import math
from dataclasses import dataclass

import torch
from transformers.generation import LogitsProcessorList

from .canvas import Answer, Canvas, Where
from .certainty import CERTAINTIES
from .sampling import choose_from, choose_tokens, distribution_of

# Rows whose logits are held at once: 256 rows of a table of 50304 are 103 MB in float64.
ROWS_PER_HEAD_CALL = 256

LOG_TOTAL_RATIO = "log_total_ratio"


@dataclass
class Draw:
    """Tokens and their log-probabilities in nats (queries,), and measures of the distributions they are from."""

    tokens: torch.LongTensor
    logprobs: torch.Tensor
    measures: dict[str, torch.Tensor]


class TokenDrawer:
    """
    Draws tokens from a canvas' answers: logits, then the caller's processors, which see the sequences in place with
    masks where they are hidden and at padding, then the warpers.

    `measures` are named in `CERTAINTIES`, or `"log_total_ratio"`: the log of the sum over all tokens of what the
    network of a SEDD gives for the score, up to the noise level.
    """

    def __init__(
        self,
        canvas: Canvas,
        processors: LogitsProcessorList,
        warpers: LogitsProcessorList,
        do_sample: bool = True,
        generator: torch.Generator | None = None,
        measures: tuple[str, ...] = (),
    ) -> None:
        self.canvas, self.processors, self.warpers = canvas, processors, warpers
        self.do_sample, self.generator, self.measures = do_sample, generator, measures

    def draw(self, answer: Answer) -> Draw:
        """A token for each query, in chunks, so that the logits of many are never held at once."""
        hidden_states, where = answer
        parts = [
            self._draw_chunk(hidden_states[rows], (where[0][rows], where[1][rows]))
            for rows in chunks_of(len(hidden_states))
        ]
        return Draw(
            torch.cat([part.tokens for part in parts]),
            torch.cat([part.logprobs for part in parts]),
            {name: torch.cat([part.measures[name] for part in parts]) for name in self.measures},
        )

    def distributions(self, answer: Answer, num_known: torch.LongTensor | None = None) -> torch.Tensor:
        """The distributions (queries, vocab), float64, given the first `num_known` (queries,) ranks or all revealed."""
        hidden_states, where = answer
        shape = len(hidden_states), self.canvas.model.config.vocab_size
        result = hidden_states.new_empty(shape, dtype=torch.float64)
        for rows in chunks_of(len(hidden_states)):
            logits = self._process(
                self.canvas.logits_of(hidden_states[rows]),
                (where[0][rows], where[1][rows]),
                None if num_known is None else num_known[rows],
            )
            result[rows] = distribution_of(logits, self.warpers)
        return result

    def _draw_chunk(self, hidden_states: torch.Tensor, where: Where) -> Draw:
        raw = self.canvas.logits_of(hidden_states)
        measures = {}
        if LOG_TOTAL_RATIO in self.measures:  # of the network itself, before processors
            total = raw.double().logsumexp(dim=-1)
            measures[LOG_TOTAL_RATIO] = total - math.log(self.canvas.model.config.num_valid_tokens)
        logits = self._process(raw, where)
        if not self.measures:
            return Draw(*choose_tokens(logits, self.warpers, self.do_sample, self.generator), {})
        probabilities = distribution_of(logits, self.warpers)
        measures |= {name: CERTAINTIES[name](probabilities) for name in self.measures if name in CERTAINTIES}
        return Draw(*choose_from(probabilities, self.do_sample, self.generator), measures)

    def _process(self, logits: torch.Tensor, where: Where, num_known: torch.LongTensor | None = None) -> torch.Tensor:
        if not self.processors:
            return logits
        # Processors look scores up by id, but the mask may have none: it gets a column while they work.
        num_missing = max(self.canvas.model.config.mask_token_id + 1 - logits.shape[1], 0)
        padded = torch.nn.functional.pad(logits, (0, num_missing), value=float("-inf"))
        return self.processors(self.canvas.seen_by(where, num_known), padded)[:, : logits.shape[1]]


def chunks_of(num_rows: int) -> list[slice]:
    """At least one, which may be empty."""
    starts = range(0, max(num_rows, 1), ROWS_PER_HEAD_CALL)
    return [slice(start, start + ROWS_PER_HEAD_CALL) for start in starts]
