# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
lm-evaluation-harness with any-order models: the model `aogpt`, and the harness' own command line with it.

    python eval/harness.py run --model aogpt --model_args pretrained=MODEL,context_order=random --tasks TASK [...]

A context may have a hole, written as the model's mask token: the completion is then scored in its place, given the text
on both sides, so tasks of infilling are tasks like any other. Left to right, the harness' own `hf` does too:
`--model hf --model_args pretrained=MODEL,trust_remote_code=True`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import lm_eval.models  # noqa: F401  # registers the stock models, which the harness does only while there is none
import torch
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

from common.commands import one_line_errors, progress_bar
from common.models import load_pretrained
from eval.scoring import batches_of
from modeling_aogpt import AOGPTForAnyOrderLM
from modeling_aogpt.orders import group_orders, index_by_rank, left_to_right_orders, random_orders
from modeling_aogpt.tokenization import load_tokenizer

LOGITS_AT_ONCE = 1024  # rows of the head


def draw_left_to_right(batch_size: int, length: int, generator: torch.Generator | None = None) -> torch.LongTensor:
    return left_to_right_orders(batch_size, length)


ORDERS = {"left_to_right": draw_left_to_right, "random": random_orders}


@dataclass
class Query:
    """A text and the part of it that is scored: the positions from `start` to before `stop`."""

    ids: list[int]
    start: int
    stop: int


def as_tensors(queries: Sequence[Query]) -> tuple[torch.LongTensor, torch.BoolTensor, torch.BoolTensor]:
    """Return the ids of queries, padded on the right, where they are tokens, and where they are scored."""
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(query.ids) for query in queries], batch_first=True)
    positions = torch.arange(ids.shape[1])
    stops, starts, ends = torch.tensor([[query.stop, query.start, len(query.ids)] for query in queries]).T[..., None]
    return ids, positions < ends, (positions >= starts) & (positions < stops)


@register_model("aogpt")
class AnyOrderLM(TemplateLM):
    """
    log p(completion | context) of an AO-GPT or sigma-GPT, by its `conditional_log_likelihood`.

    All of the context comes first, in `context_order`, then the completion in `completion_order`. With random orders
    the log-likelihood is the mean over `num_orders` of them, a lower bound on that of their mixture.

    Args:
        pretrained: Name or folder of the model.
        tokenizer: Name or folder. Defaults to that of the model.
        context_order: `"left_to_right"` or `"random"`.
        completion_order: `"left_to_right"` or `"random"`.
        num_orders: Random orders to average over.
        seed: Of the random orders, which depend on the batch size as well.
        batch_size: Completions scored at once.
        device: Defaults to "cuda" if there is one, else "cpu".
        dtype: Of the weights.
        max_length: Tokens of context and completion; what is more is cut off the left of the context, or, around a
            hole, off its outer ends.

    Raises:
        ValueError: For an order or dtype that is none of these, a model that is not there, a completion without tokens
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
        self.model = load_pretrained(AOGPTForAnyOrderLM, pretrained, dtype=getattr(torch, dtype)).to(device).eval()
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
        """Return, for each request, log p in nats and whether the completion is the likeliest token by token."""
        queries = [self._query(*request.args) for request in requests]
        return self._score_all(queries, disable_tqdm)

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
        return self._score_all([self._fit(context, ids, []) for _, context, ids in requests], disable_tqdm)

    def _fit(self, before: list[int], ids: list[int], after: list[int]) -> Query:
        """Return the query of ids between others, of which the farthest are cut off if all are too many."""
        room = self.max_length - len(ids)
        if not ids or room < 0:
            raise ValueError(f"A completion has {len(ids)} tokens; this model takes 1 to {self.max_length}.")
        num_after = min(len(after), max(room // 2, room - len(before)))
        before = before[max(0, len(before) - (room - num_after)) :]
        return Query([*before, *ids, *after[:num_after]], len(before), len(before) + len(ids))

    def _score_all(
        self, queries: Sequence[Query], disable_tqdm: bool, with_greedy: bool = True
    ) -> list[tuple[float, bool]]:
        """Score queries, longest first, so that batches are alike. Returns the results in the order of the queries."""
        longest_first = sorted(range(len(queries)), key=lambda number: -len(queries[number].ids))
        generator = torch.Generator().manual_seed(self.seed)
        results: dict[int, tuple[float, bool]] = {}
        for numbers in progress_bar(batches_of(longest_first, self.batch_size), desc="Scoring", disable=disable_tqdm):
            batch = [tensor.to(self.model.device) for tensor in as_tensors([queries[number] for number in numbers])]
            scores = self._score(*batch, generator).tolist()
            is_greedy = self._is_greedy(*batch, generator).tolist() if with_greedy else [False] * len(numbers)
            results |= zip(numbers, zip(scores, is_greedy, strict=True), strict=True)
        return [results[number] for number in range(len(queries))]

    def _score(
        self, ids: torch.Tensor, is_token: torch.Tensor, is_target: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        output = self.model.conditional_log_likelihood(
            ids,
            is_target,
            orders=ORDERS[self.completion_order],
            num_orders=self.num_orders,
            context_orders=self.context_order,
            attention_mask=is_token.long(),
            generator=generator,
        )
        return output.log_likelihood

    @torch.no_grad()
    def _is_greedy(
        self, ids: torch.Tensor, is_token: torch.Tensor, is_target: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """Return whether every target is the likeliest id, in one order of context and completion: one pass."""
        context, completion = (
            ORDERS[name](*ids.shape, generator=generator).to(ids.device)
            for name in (self.context_order, self.completion_order)
        )
        ranks = torch.where(is_target, completion.argsort(dim=-1), context.argsort(dim=-1))
        orders = group_orders(ranks.argsort(dim=-1, stable=True), torch.where(is_token, is_target.long(), 2))
        output, orders = self.model.forward_by_rank(ids, orders, is_token.long())
        is_target, ids = index_by_rank(is_target, orders), index_by_rank(ids, orders)
        likeliest = [
            self.model.lm_head(rows)[:, : self.model.config.num_valid_tokens].argmax(dim=-1)
            for rows in output.last_hidden_state[is_target].split(LOGITS_AT_ONCE)
        ]
        return (ids.masked_scatter(is_target, torch.cat(likeliest)) == ids).all(dim=-1)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return log p of whole texts in nats, in `completion_order`; long texts are scored piece by piece."""
        pieces = [batches_of(self.tok_encode(*request.args), self.max_length) for request in requests]
        queries = [Query(ids, 0, len(ids)) for of_text in pieces for ids in of_text]
        scores = iter(self._score_all(queries, disable_tqdm, with_greedy=False))
        return [sum(next(scores)[0] for _ in of_text) for of_text in pieces]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Refused: the harness' own `hf` generates left to right, with a cache, from the same checkpoint."""
        raise ValueError(
            "The model aogpt scores completions. For tasks that generate use --model hf --model_args "
            "pretrained=...,trust_remote_code=True."
        )


@one_line_errors()
def main() -> None:
    cli_evaluate()


if __name__ == "__main__":
    main()
