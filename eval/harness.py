# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
lm-evaluation-harness with any-order models: the model `aogpt`, and the harness' own command line with it.

    python eval/harness.py run --model aogpt --model_args pretrained=MODEL,context_order=random --tasks TASK [...]

A context may have a hole, written as the model's mask token: the completion is then scored in its place, given the text
on both sides, so tasks of infilling are tasks like any other. Left to right, the harness' own `hf` does too:
`--model hf --model_args pretrained=MODEL,trust_remote_code=True`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import lm_eval.models  # noqa: F401  # registers the stock models, which the harness does only while there is none
import torch
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from eval.scoring import batches_of, progress_interval
from modeling_aogpt import AOGPTForAnyOrderLM
from modeling_aogpt.mask_token import load_tokenizer
from modeling_aogpt.orders import group_order, in_order, left_to_right_orders, random_orders
from training.errors import errors_in_a_line
from training.initialization import load_whole

ORDERS = ("left_to_right", "random")
LOGITS_AT_ONCE = 1024  # rows of the head


@dataclass
class Query:
    """A text and what of it is asked for: the positions from `start` to `stop`."""

    ids: list[int]
    start: int
    stop: int


@register_model("aogpt")
class AnyOrderLM(TemplateLM):
    """
    log p(completion | context) of an AO-GPT or sigma-GPT.

    All of the context is revealed first, in `context_order`, then the completion in `completion_order`. With random
    orders the log-likelihood is the mean over `num_orders` of them, a lower bound on that of their mixture.

    Args:
        pretrained: name or folder of the model.
        tokenizer: name or folder, unless that of the model.
        context_order, completion_order: `"left_to_right"` or `"random"`.
        num_orders: random orders to average over.
        seed: of the random orders, which depend on the batch size as well.
        batch_size: completions scored at once.
        device: unless given, "cuda" where there is one, else "cpu".
        dtype: of the weights.
        max_length: tokens of context and completion; what is more is cut off the left of the context, or, around a
            hole, off its outer ends.

    Raises:
        ValueError: for an order or dtype that is none of these, a model that is not there, a completion without tokens
            or longer than the model takes, or a context with two holes.
    """

    def __init__(
        self,
        pretrained: str,
        tokenizer: str | None = None,
        context_order: str = "left_to_right",
        completion_order: str = "left_to_right",
        num_orders: int = 1,
        seed: int = 0,
        batch_size: int | str = 16,
        device: str | None = None,
        dtype: str = "float32",
        max_length: int | None = None,
        **kwargs: object,  # the harness hands every model settings that are of others
    ) -> None:
        super().__init__()
        for name, order in (("context_order", context_order), ("completion_order", completion_order)):
            if order not in ORDERS:
                raise ValueError(f"{name}={order!r} is not one of {', '.join(map(repr, ORDERS))}.")
        is_random = "random" in (context_order, completion_order)
        if num_orders < 1 or (num_orders > 1 and not is_random):
            raise ValueError(f"num_orders={num_orders} must be at least 1, and 1 where no order is random.")
        has_cuda = torch.cuda.is_available()
        if device is None or (device.startswith("cuda") and not has_cuda):  # the command line's default is "cuda"
            device = "cuda" if has_cuda else "cpu"
        if not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise ValueError(f"dtype={dtype!r} is none of torch's, such as 'float32' or 'bfloat16'.")
        self.model = load_whole(AOGPTForAnyOrderLM, pretrained, dtype=getattr(torch, dtype)).to(device).eval()
        self.tokenizer = load_tokenizer(tokenizer or pretrained)
        self.context_order, self.completion_order = context_order, completion_order
        self.num_orders, self.seed = num_orders, seed
        self.batch_size = 16 if batch_size == "auto" else int(batch_size)
        self.max_length = max_length or self.model.config.max_position_embeddings

    @property
    def eot_token_id(self) -> int:
        return self.tokenizer.eos_token_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: object) -> list[int]:
        return self.tokenizer(string, add_special_tokens=False)["input_ids"]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log p in nats, whether the completion is the likeliest token by token) of each request."""
        queries = [self._query(*request.args) for request in requests]
        return self._answer(queries, disable_tqdm)

    def _query(self, context: str, completion: str) -> Query:
        before, *holes = context.split(self.tokenizer.mask_token)
        if not holes:
            before_ids, ids = (
                ([], self.tok_encode(completion)) if not context else self._encode_pair(context, completion)
            )
            return self._fit(before_ids, ids, [])
        if len(holes) > 1:
            raise ValueError(f"The context has {len(holes)} holes, but one is filled: {context!r}.")
        # The blank before a mask belongs to it, as the blank before a word does.
        blanks = " " if before.endswith(" ") and not completion.startswith(" ") else ""
        before = before.removesuffix(" ")
        return self._fit(self.tok_encode(before), self.tok_encode(blanks + completion), self.tok_encode(holes[0]))

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **kwargs: object
    ) -> list[tuple[float, bool]]:
        return self._answer([self._fit(context, ids, []) for _, context, ids in requests], disable_tqdm)

    def _fit(self, before: list[int], ids: list[int], after: list[int]) -> Query:
        """The query of ids between others, of which the farthest are cut off where all are too many."""
        room = self.max_length - len(ids)
        if not ids or room < 0:
            raise ValueError(f"A completion has {len(ids)} tokens; this model takes 1 to {self.max_length}.")
        num_after = min(len(after), max(room // 2, room - len(before)))
        before = before[max(0, len(before) - (room - num_after)) :]
        return Query([*before, *ids, *after[:num_after]], len(before), len(before) + len(ids))

    @torch.no_grad()
    def _answer(self, queries: Sequence[Query], disable_tqdm: bool) -> list[tuple[float, bool]]:
        """Longest first, so that batches are alike; answers in the order of the queries."""
        longest_first = sorted(range(len(queries)), key=lambda number: -len(queries[number].ids))
        generator = torch.Generator().manual_seed(self.seed)
        answers: dict[int, tuple[float, bool]] = {}
        batches = batches_of(longest_first, self.batch_size)
        for numbers in tqdm(batches, desc="Scoring", disable=disable_tqdm, mininterval=progress_interval()):
            asked = [queries[number] for number in numbers]
            draws = [self._score(asked, generator) for _ in range(self.num_orders)]
            scores = torch.stack([scores for scores, _ in draws]).mean(dim=0)
            is_greedy = draws[0][1]
            answers |= dict(zip(numbers, zip(scores.tolist(), is_greedy.tolist(), strict=True), strict=True))
        return [answers[number] for number in range(len(queries))]

    def _score(self, queries: Sequence[Query], generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """
        log p of each completion, (batch,), and whether it is the likeliest token by token, under one order of each:
        context, completion, padding. The head is run on the rows of completions alone.
        """
        device = self.model.device
        lengths = torch.tensor([len(query.ids) for query in queries])
        places = torch.arange(int(lengths.max()))
        starts, stops = (torch.tensor([getattr(query, end) for query in queries])[:, None] for end in ("start", "stop"))
        is_target = (places >= starts) & (places < stops)
        is_padding = places >= lengths[:, None]
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(query.ids) for query in queries], batch_first=True)
        shape = len(queries), len(places)
        context_order, completion_order = (
            random_orders(*shape, generator=generator) if order == "random" else left_to_right_orders(*shape)
            for order in (self.context_order, self.completion_order)
        )
        ranks = torch.where(is_target, completion_order.argsort(dim=-1), context_order.argsort(dim=-1))
        orders = group_order(ranks.argsort(dim=-1, stable=True), torch.where(is_padding, 2, is_target.long()))
        ids, orders, is_target = ids.to(device), orders.to(device), is_target.to(device)
        output, orders = self.model.predict_in_order(ids, orders, (~is_padding).long().to(device))
        is_asked, targets = in_order(is_target, orders), in_order(ids, orders)
        scores, is_likeliest = (
            torch.cat(parts)
            for parts in zip(*self._head(output.last_hidden_state[is_asked], targets[is_asked]), strict=True)
        )
        totals = torch.zeros(shape, dtype=torch.float64, device=device).masked_scatter(is_asked, scores).sum(dim=-1)
        is_greedy = (
            torch.ones(shape, dtype=torch.bool, device=device).masked_scatter(is_asked, is_likeliest).all(dim=-1)
        )
        return totals.cpu(), is_greedy.cpu()

    def _head(self, states: torch.Tensor, targets: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for rows, ids in zip(states.split(LOGITS_AT_ONCE), targets.split(LOGITS_AT_ONCE), strict=True):
            logits = self.model.lm_head(rows)[:, : self.model.config.num_valid_tokens]
            log_probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
            yield log_probabilities.gather(1, ids[:, None]).squeeze(1).double(), logits.argmax(dim=-1) == ids

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """log p of whole texts in nats, in `completion_order`; what is longer than the model takes, piece by piece."""
        pieces = [batches_of(self.tok_encode(*request.args), self.max_length) for request in requests]
        queries = [Query(ids, 0, len(ids)) for of_text in pieces for ids in of_text]
        answers = iter(self._answer(queries, disable_tqdm))
        return [sum(next(answers)[0] for _ in of_text) for of_text in pieces]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Refused: the harness' own `hf` generates left to right, with a cache, from the same checkpoint."""
        raise ValueError(
            "The model aogpt scores completions. For tasks that generate use --model hf --model_args "
            "pretrained=...,trust_remote_code=True."
        )


@errors_in_a_line()
def main() -> None:
    cli_evaluate()


if __name__ == "__main__":
    main()
