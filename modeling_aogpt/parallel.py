# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Parallel sampling: query what comes next, reveal some of it at once, until all is revealed."""

from collections.abc import Callable

import torch

from .canvas import Canvas, Where, first_columns
from .devices import to_device
from .reveal_rules import RevealRule
from .token_drawer import Draw, TokenDrawer


class ParallelSampler:
    """
    Reveals the sequences of a canvas by a rule, in the order of the canvas or as `certainty` has it.

    `certainty` names one of `CERTAINTIES`: the candidates of a step, all hidden positions of the block at hand or the
    first `window` of them, are then revealed in the order of it. That changes what is sampled: which tokens are drawn
    given which depends on the model.
    """

    def __init__(
        self,
        canvas: Canvas,
        rule: RevealRule,
        drawer: TokenDrawer,
        certainty: str | None = None,
        window: int | None = None,
    ) -> None:
        self.canvas, self.rule, self.drawer = canvas, rule, drawer
        self.certainty, self.window = certainty, window
        self.chooses = certainty is not None or rule.measure is not None

    def run(self, first_step: int, after_step: Callable[[], None]) -> int:
        """Counts steps from `first_step`, tells of each that revealed something, and returns the number of the next."""
        canvas, step = self.canvas, -1
        # Of each rank: what is chosen moves within its block, so that these stay.
        blocks = canvas.blocks.cpu() if self.chooses else None
        for step, num_planned in self.rule.steps(canvas):
            num_queries = num_planned if blocks is None else self._num_candidates(num_planned, blocks)
            if not num_queries.any():
                continue  # nobody reveals anything: it costs nothing
            sigma = self.rule.noise_of(step)
            if sigma is None:
                answer = canvas.query(num_queries)
            else:
                sigma = torch.full(num_queries.shape, sigma, dtype=torch.float64, device=canvas.ids.device)
                answer = canvas.query(num_queries, sigma=sigma)
            draw, where, num_revealed = self.drawer.draw(answer), answer[1], num_planned
            if self.chooses:
                draw, where, num_revealed = self._choose(draw, where, num_queries, step, num_planned)
            canvas.commit(draw.tokens, where, num_revealed, draw.logprobs, first_step + step)
            after_step()
        return first_step + step + 1

    def _num_candidates(self, num_planned: torch.LongTensor, blocks: torch.LongTensor) -> torch.LongTensor:
        """The hidden ranks up to the end of the block that the last planned one is in, but at most the window."""
        canvas = self.canvas
        ranks = torch.arange(blocks.shape[1], device=blocks.device)
        last = (canvas.num_context + num_planned - 1).clamp(min=0)
        is_hidden = (ranks >= canvas.num_context[:, None]) & (ranks < canvas.ends[:, None])
        num_candidates = (is_hidden & (blocks <= blocks.gather(1, last[:, None]))).sum(dim=-1)
        if self.window is not None:
            num_candidates = torch.maximum(num_planned, num_candidates.clamp(max=self.window))
        return torch.where(num_planned > 0, num_candidates, 0)

    def _choose(
        self, draw: Draw, where: Where, num_queries: torch.LongTensor, step: int, num_planned: torch.LongTensor
    ) -> tuple[Draw, Where, torch.LongTensor]:
        """
        Moves what is to be revealed to the next ranks of the canvas, keeps that of the draw, and counts it. Both that
        and the candidates, `num_queries` (batch,), are the first columns of what is sorted here.
        """
        (sequences, ranks), device = where, where[0].device
        context = to_device(self.canvas.num_context, device)
        queries = torch.full((len(context), int(num_queries.max())), -1, device=device)
        queries[sequences, ranks - context[sequences]] = torch.arange(len(ranks), device=device)

        preference = self._preference(queries, draw, where)
        preferred = queries.gather(1, preference)
        measures = {name: values[preferred] for name, values in draw.measures.items()}
        is_revealed = self.rule.reveals(step, preferred >= 0, num_planned, measures)
        front = (~is_revealed).long().argsort(dim=1, stable=True)
        self._move(preference.gather(1, front), first_columns(num_queries, device))

        num_revealed = num_planned if self.rule.measure is None else is_revealed.sum(dim=1).cpu()
        rows, places = first_columns(num_revealed, device)
        chosen = preferred.gather(1, front)[rows, places]
        kept = Draw(draw.tokens[chosen], draw.logprobs[chosen], {})
        return kept, (rows, context[rows] + places), num_revealed

    def _preference(self, queries: torch.LongTensor, draw: Draw, where: Where) -> torch.LongTensor:
        """
        The columns (batch, columns) in the order in which they would be revealed, of `queries` (batch, columns) with -1
        behind the last of each sequence: as they come, or by block and then by certainty.
        """
        if self.certainty is None:
            return torch.arange(queries.shape[1], device=queries.device).expand_as(queries)
        keys = torch.stack((self.canvas.blocks[where].double(), -draw.measures[self.certainty]))
        blocks, doubts = keys[:, queries].masked_fill(queries < 0, float("inf"))
        preference = doubts.argsort(dim=1, stable=True)
        return preference.gather(1, blocks.gather(1, preference).argsort(dim=1, stable=True))

    def _move(self, columns: torch.LongTensor, candidates: Where) -> None:
        """Brings the candidates of the canvas, (row, column), into the order of `columns` (batch, columns)."""
        if columns.shape[1] == 1 or (self.certainty is None and self.rule.reveals_first):
            return  # they are
        context = to_device(self.canvas.num_context, columns.device)
        ranks = torch.arange(self.canvas.ids.shape[1], device=columns.device).repeat(len(context), 1)
        rows, places = candidates
        ranks[rows, context[rows] + places] = context[rows] + columns[rows, places]
        self.canvas.reorder(ranks)
