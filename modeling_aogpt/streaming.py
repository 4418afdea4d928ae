# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Showing a generation while it runs."""

import torch
from transformers.generation import BaseStreamer

from .canvas import Canvas
from .orders import in_place


class Progress:
    """
    Tells a streamer of every step, and keeps the history.

    What lies before the first hidden position of the batch is final and goes to `streamer.put`, once; the rest, with
    masks where it is hidden, goes to `streamer.put_draft` where there is one (the contract of transformers'
    `TextDiffusionStreamer`). So any streamer shows left-to-right text as it grows. With refinement, which may change
    everything, only the prompt is final before the end. Columns that hold nothing but padding behind an end-of-text are
    not put, as transformers has it.

    Attributes:
        history (list of `torch.LongTensor` of shape `(batch, n)`): Of all steps, the beginning first, if kept.
    """

    def __init__(self, canvas: Canvas, streamer: BaseStreamer | None, keeps_history: bool, refines: bool) -> None:
        self.canvas, self.streamer, self.refines = canvas, streamer, refines
        self.history = [canvas.sequences()] if keeps_history else None
        self.num_final = 0
        if streamer is not None:
            self._put(self._count_final(), canvas.sequences().cpu(), always=True)

    def after_step(self, step: int) -> None:
        """To be called after each step that revealed something."""
        if self.history is None and self.streamer is None:
            return
        sequences = self.canvas.sequences()
        if self.history is not None:
            self.history.append(sequences)
        if self.streamer is None:
            return
        sequences = sequences.cpu()
        if not self.refines:
            self._put(self._count_final(), sequences)
        if hasattr(self.streamer, "put_draft") and self.num_final < sequences.shape[1]:
            self.streamer.put_draft(sequences[:, self.num_final :])

    def end(self) -> None:
        """To be called when all is generated."""
        if self.streamer is not None:
            sequences = self.canvas.sequences().cpu()
            self._put(self._count_written(), sequences)
            self.streamer.end()

    def _count_final(self) -> int:
        is_final = ~self.canvas.is_hidden().any(dim=0)
        return int(is_final.long().cumprod(dim=0).sum())

    def _count_written(self) -> int:
        """Columns up to the last in which a sequence has more than what was to be filled and never was."""
        canvas = self.canvas
        is_left_out = canvas.ranks_between(canvas.num_given, canvas.num_tokens) & (canvas.reveal_steps < 0)
        return int((~in_place(is_left_out, canvas.orders)).any(dim=0).nonzero().max()) + 1

    def _put(self, num_final: int, sequences: torch.LongTensor, always: bool = False) -> None:
        if num_final > self.num_final or always:  # even an empty prompt is put: streamers may leave the first out
            self.streamer.put(sequences[:, self.num_final : num_final])
        self.num_final = num_final
