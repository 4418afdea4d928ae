# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""The thread that owns the model of a server: a queue of jobs, and batches of jobs with equal arguments.

A job is the generation for one request. The event loop of the server submits jobs, and reads their tokens while they
are generated. Jobs with a seed run alone, because a batch has only one source of randomness.
"""

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import Full
from threading import Condition, Thread
from typing import Any

import torch

from modeling_aogpt.configuration_aogpt import as_list
from modeling_aogpt.infill import pad_texts
from modeling_aogpt.loading import Model

from .texts import find_end

logger = logging.getLogger("uvicorn.error")

Scores = list[tuple[float, dict[int, float]]]  # see `Worker._score`


class StoppedError(Exception):
    """Signal that ends a generation when no job needs more tokens."""


@dataclass(eq=False)
class Job:
    """The generation of one request."""

    prompts: list[torch.LongTensor]  # ids (n,); with `has_gap`, each contains one mask
    arguments: dict[str, Any]  # of `infill` or `generate`, with `num_return_sequences`
    has_gap: bool = False  # whether `infill` fills in the masks; otherwise, `generate` continues the prompts
    seed: int | None = None
    num_top: int | None = None  # number of likeliest tokens to report for each token; None for no log-probabilities
    has_echo: bool | None = False  # whether the tokens of the prompt are reported, too
    logprobs: list[Scores] = field(default_factory=list)  # of each row
    error: Exception | None = None
    is_finished: bool = False
    is_stopped: bool = False  # whether the client needs no more tokens
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # set if `rows`, `error` or `is_finished` has changed

    def __post_init__(self) -> None:
        # The ids generated so far, for each sample of each prompt.
        self.rows: list[list[int]] = [[] for _ in self.prompts for _ in range(self.arguments["num_return_sequences"])]
        self.loop = asyncio.get_running_loop()
        self.key = json.dumps([self.has_gap, self.arguments], sort_keys=True)

    def fits(self, batch: Sequence["Job"], max_rows: int) -> bool:
        """Return whether the job can be generated together with `batch`."""
        is_equal = self.key == batch[0].key and self.seed is None and batch[0].seed is None
        return is_equal and sum(len(job.rows) for job in (self, *batch)) <= max_rows

    def notify(self) -> None:
        """Wake the reader of the job, in the event loop."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.changed.set)


class JobStreamer:
    """Streamer that gives generated tokens to the jobs of a batch, and ends the generation if all jobs are stopped."""

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs, self.has_prompt = jobs, False

    def put(self, columns: torch.LongTensor) -> None:
        """Add the next columns (rows, n) of the batch to the jobs. The first columns are the prompts."""
        if self.has_prompt:
            rows = iter(columns.tolist())
            for job in self.jobs:
                for row in job.rows:
                    row += next(rows)
                job.notify()
        self.has_prompt = True

    def put_draft(self, columns: torch.LongTensor) -> None:
        """End the generation if all jobs are stopped. `generate` calls this after every step."""
        if all(job.is_stopped for job in self.jobs):
            raise StoppedError

    def end(self) -> None:
        """Do nothing. The worker marks the jobs as finished."""


class Worker:
    """Thread that runs the model on the jobs of a queue, in the order of their arrival.

    Each batch contains the first waiting job, and other waiting jobs with equal arguments, up to `max_batch` sequences.
    At most `max_queue` jobs wait.
    """

    def __init__(self, model: Model, max_batch: int, max_queue: int) -> None:
        self.model, self.max_batch, self.max_queue = model, max_batch, max_queue
        ids = model.generation_config.eos_token_id
        ids = model.config.eos_token_id if ids is None else ids
        self.end_of_text = frozenset(as_list(ids)) - {None}
        self.waiting: list[Job] = []
        self.condition, self.is_closed = Condition(), False
        self.thread = Thread(target=self._run, name="aogpt-worker", daemon=True)
        self.thread.start()

    def submit(self, job: Job) -> None:
        """Append a job to the queue. Raise a `Full` if the queue is full."""
        with self.condition:
            if len(self.waiting) >= self.max_queue:
                raise Full
            self.waiting.append(job)
            self.condition.notify()

    def stop(self, job: Job) -> None:
        """Remove a job from the queue, or end its generation after the current step."""
        job.is_stopped = True
        with self.condition:
            if job in self.waiting:
                self.waiting.remove(job)

    def close(self) -> None:
        """End the thread after the waiting jobs."""
        with self.condition:
            self.is_closed = True
            self.condition.notify()
        self.thread.join()

    def num_starts(self, prompt: torch.LongTensor) -> int:
        """Return 1 if a prompt begins with the model's start token, which is not part of the text, else 0."""
        return int(prompt[:1].tolist() == [self.model.config.start_token_id])

    def find_ends(self, job: Job) -> frozenset[int]:
        """Return the ids that end the texts of a job: end-of-text, except in gaps and with `stop_at_eos=False`."""
        stops = job.arguments.get("stop_at_eos", self.model.generation_config.stop_at_eos)
        return frozenset() if job.has_gap or stops is False else self.end_of_text

    def _run(self) -> None:
        while batch := self._take_batch():
            self._run_batch(batch)

    def _take_batch(self) -> list[Job]:
        """Wait for a job. Return it with the other jobs of its batch. If the worker is closed, return an empty list."""
        with self.condition:
            self.condition.wait_for(lambda: self.waiting or self.is_closed)
            batch, rest = self.waiting[:1], []
            for job in self.waiting[1:]:
                (batch if job.fits(batch, self.max_batch) else rest).append(job)
            self.waiting = rest
            return batch

    def _run_batch(self, batch: list[Job]) -> None:
        error = None
        try:
            generator = None if batch[0].seed is None else torch.Generator().manual_seed(batch[0].seed)
            (self._fill_in if batch[0].has_gap else self._continue)(batch, generator)
        except StoppedError:
            pass
        except Exception as caught:
            if not isinstance(caught, ValueError):
                logger.exception("A generation failed.")
            error = caught
        for job in batch:
            job.error, job.is_finished = error, True
            job.notify()

    def _continue(self, batch: list[Job], generator: torch.Generator | None) -> None:
        """Continue the prompts of the jobs. Prompts are padded on the left, which does not change the predictions."""
        prompts, mask = pad_texts([prompt for job in batch for prompt in job.prompts], "left")
        options = {"generator": generator, "streamer": JobStreamer(batch), **batch[0].arguments}
        if options["max_new_tokens"] > 0:
            self.model.generate(prompts, attention_mask=mask, **options)
        for job in batch:
            if job.num_top is not None:
                for index, row in enumerate(job.rows):
                    prompt = job.prompts[index // job.arguments["num_return_sequences"]]
                    # With `echo`, clients such as lm-eval count the tokens, so end-of-text counts, too.
                    text = prompt.tolist() + row[: find_end(row, self.find_ends(job)) + bool(job.has_echo)]
                    start = self.num_starts(prompt) if job.has_echo else len(prompt)
                    job.logprobs.append(self._score(text, start, len(text), len(text), job.num_top))

    def _fill_in(self, batch: list[Job], generator: torch.Generator | None) -> None:
        """Fill in the gaps of the prompts of the jobs."""
        prompts, most = [prompt for job in batch for prompt in job.prompts], max(batch[0].arguments["lengths"])
        outputs = iter(self.model.infill(prompts, generator=generator, **batch[0].arguments))
        for job in batch:
            rows = []
            for prompt, output in zip(job.prompts, outputs, strict=False):
                start = find_gap(prompt, self.model.config.mask_token_id)
                # If the model predicts lengths, each sample has its own, and the text after the gap follows all slots.
                has_slots = self.model.config.max_gap_length is not None
                lengths = output.candidates[:, 0] if has_slots else output.lengths
                for text, length in zip(output.sequences.tolist(), lengths.expand(len(output.sequences)), strict=True):
                    end = start + int(length)
                    rows.append(text[start:end])
                    if job.num_top is not None:
                        after = start + most if has_slots else end
                        text[end:end] = [0] * (after - end)
                        del text[max(len(prompt) - 1 + most, len(output.sequences[0])) :]  # padding
                        job.logprobs.append(self._score(text, start, end, after, job.num_top))
            job.rows = rows

    def _score(self, text: list[int], start: int, end: int, after: int, num_top: int) -> Scores:
        """Return the log-probability of each token in [`start`, `end`), and the likeliest tokens with theirs.

        Temperature and truncation have no effect. A token is given all tokens to its left, and those from `after` on.
        """
        if start == end:
            return []
        ids, order = torch.tensor([text]), [*range(start), *range(after, len(text)), *range(start, after)]
        with torch.no_grad():
            output = self.model(ids.to(self.model.device), torch.tensor([order], device=self.model.device))
        logprobs = output.logits[0, start:end, : self.model.config.num_valid_tokens].double().log_softmax(dim=-1).cpu()
        values, tokens = (part.tolist() for part in logprobs.topk(num_top))
        chosen = logprobs.gather(1, ids[0, start:end, None]).flatten().tolist()
        return [(value, dict(zip(*top, strict=True))) for value, *top in zip(chosen, tokens, values, strict=True)]


def find_gap(ids: torch.LongTensor, mask_token_id: int) -> int:
    """Return the position of the mask in the ids (n,) of a text, or n if the text has no gap."""
    return next(iter((ids == mask_token_id).nonzero().flatten().tolist()), len(ids))
