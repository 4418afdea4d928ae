# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
The command line of the lm-evaluation-harness, with the additional model type `aogpt` for any-order models.

    python eval/harness.py run --model aogpt --model_args pretrained=MODEL,context_order=random --tasks TASK [...]

Tasks are scored by the log-probability of a completion given a context. If a context contains the model's mask token,
the completion is scored at the position of the mask, given the text on both sides. A task of the usual format can
therefore evaluate infilling. Tasks that generate text (`generate_until`) generate it from left to right. For
left-to-right scores, the model type `hf` of the harness can also be used: `--model hf --model_args
pretrained=MODEL,trust_remote_code=True`.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import lm_eval.models  # noqa: F401  # otherwise, the harness would not register its own models
import torch
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from torch.nn.utils.rnn import pad_sequence

from common.commands import one_line_errors, progress_bar
from common.hardware import default_device
from common.models import find_model
from common.results import default_length
from eval.journal import split_batches
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from modeling_aogpt.devices import rows_per_head_call
from modeling_aogpt.infill import encode_parts
from modeling_aogpt.likelihood import ROWS_PER_HEAD_CALL
from modeling_aogpt.loading import load_pretrained, read_any_config
from modeling_aogpt.orders import ORDER_NAMES, Orders, group_orders, index_by_rank
from modeling_aogpt.tokenization import load_tokenizer
from modeling_aogpt.validation import check_choice, check_integer, suggest

TOKENS_PER_CALL = 32  # generated at once; afterwards, texts that contain a stop string are complete
OTHER_ARGUMENTS = ("max_batch_size", "trust_remote_code")  # the harness passes these to every model


@dataclass
class Query:
    """A text to score: tokens at the positions `start` ... `stop` - 1 are scored, and all other tokens are context."""

    ids: list[int]
    start: int
    stop: int


def _to_tensors(queries: Sequence[Query]) -> tuple[torch.LongTensor, torch.BoolTensor, torch.BoolTensor]:
    """Return `ids` (padded on the right), `attention_mask` and `is_scored`, all (batch, n)."""
    ids = pad_sequence([torch.tensor(query.ids) for query in queries], batch_first=True)
    positions = torch.arange(ids.shape[1])
    stops, starts, ends = torch.tensor([[query.stop, query.start, len(query.ids)] for query in queries]).T[..., None]
    return ids, positions < ends, (positions >= starts) & (positions < stops)


@dataclass
class HarnessArguments:
    """
    Arguments of the model type `aogpt`, which are passed with `--model_args`.

    Args:
        pretrained: Folder of a model or a run, or Hub name.
        tokenizer: Folder or Hub name of the tokenizer. Defaults to the model's.
        context_order: `"left_to_right"` or `"random"`.
        completion_order: `"left_to_right"` or `"random"`.
        num_orders: Number of random orders over which the log-likelihood is averaged.
        seed: Seed of random orders and of sampled text. Results also depend on the batch size.
        batch_size: Number of texts that are scored or generated at once.
        device: Defaults to "cuda" if available, else "cpu".
        dtype: Data type of the weights.
        max_length: Maximum number of tokens of context and completion together. Defaults to the `sequence_length` of
            the run or, for other models, to the model's maximum. A context that is too long is cut at its start or,
            if it contains a mask, at its start and end.
    """

    pretrained: str
    tokenizer: str | None = None
    context_order: str = "left_to_right"
    completion_order: str = "left_to_right"
    num_orders: int = 1
    seed: int = 0
    batch_size: int | str = 16
    device: str | None = None
    dtype: str = "float32"
    max_length: int | None = None

    def __post_init__(self) -> None:
        check_choice("context_order", self.context_order, ORDER_NAMES)
        check_choice("completion_order", self.completion_order, ORDER_NAMES)
        is_random = "random" in (self.context_order, self.completion_order)
        if self.num_orders < 1 or (self.num_orders > 1 and not is_random):
            raise ValueError(
                f"`num_orders` is {self.num_orders}. It must be at least 1, and exactly 1 if neither `context_order` "
                "nor `completion_order` is 'random'. Set `num_orders` to 1, or set one of these orders to 'random'."
            )
        self.batch_size = 16 if str(self.batch_size).startswith("auto") else int(self.batch_size)
        check_integer("batch_size", self.batch_size)
        default = default_device().type
        if self.device is None or (self.device.startswith("cuda") and default == "cpu"):  # the harness passes "cuda"
            self.device = default
        if not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise ValueError(
                f"`dtype` must be a data type of torch such as 'float32' or 'bfloat16', but is {self.dtype!r}."
            )

    @classmethod
    def from_harness(cls, given: dict[str, Any]) -> "HarnessArguments":
        """Return the arguments in `given`, without the arguments that the harness passes to every model."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in (*known, *OTHER_ARGUMENTS):
                hint = suggest(name, known) or f" Known names are {', '.join(known)}."
                raise ValueError(f"`model_args` contains the unknown name `{name}`. Remove or correct it.{hint}")
        return cls(**{name: value for name, value in given.items() if name in known})


@register_model("aogpt")
class AnyOrderLM(TemplateLM):
    """
    Model type of the harness that computes log p(completion | context) with an AO-GPT or sigma-GPT.

    The model reads the whole context in `context_order`, and then predicts the completion in `completion_order`. With
    random orders, the log-likelihood is averaged over `num_orders` orders. The average is a lower bound on the log of
    the mean likelihood. Text is generated from left to right.

    Args:
        pretrained: Folder of a model or a run, or Hub name.
        kwargs: Other arguments, see [`HarnessArguments`].
    """

    def __init__(self, pretrained: str, **kwargs: object) -> None:
        super().__init__()
        self.arguments = HarnessArguments.from_harness({"pretrained": pretrained} | kwargs)
        pretrained = find_model(pretrained)
        config = read_any_config(pretrained)
        if type(config) is not AOGPTConfig:
            raise ValueError(
                f"The model type `aogpt` scores decoders of this package, but {pretrained} is of type "
                f"{config.model_type!r}. Use --model hf for causal models. Encoders are not supported."
            )
        model = load_pretrained(AOGPTForAnyOrderLM, pretrained, dtype=getattr(torch, self.arguments.dtype))
        self.model = model.to(self.arguments.device).eval()
        self.tokenizer = load_tokenizer(self.arguments.tokenizer or pretrained)
        self.batch_size = self.arguments.batch_size
        given = self.arguments.max_length
        self.max_length = default_length(pretrained, config) if given is None else given
        check_integer("max_length", self.max_length, most=self.model.config.max_position_embeddings)

    @property
    def eot_token_id(self) -> int:
        """Id of the end-of-text token."""
        return self.tokenizer.eos_token_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: object) -> list[int]:
        """Return the ids of a text, without adding special tokens."""
        return self.tokenizer(string, add_special_tokens=False)["input_ids"]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return log p of each completion in nats, and whether each of its tokens is the likeliest one."""
        queries = [self._make_query(*request.args) for request in requests]
        return self._score_all(queries, disable_tqdm)

    def _make_query(self, context: str, completion: str) -> Query:
        """Return a query that scores `completion` at the mask in `context` or, if there is none, after `context`."""
        before, *rest = context.split(self.tokenizer.mask_token)
        if len(rest) > 1:
            raise ValueError(
                f"A context must contain at most one mask, but {context!r} contains {len(rest)}. Remove the other "
                "masks."
            )
        if rest:
            # The harness puts a space, its `target_delimiter`, before each choice. The space belongs to the text only
            # if there is a space before the mask.
            completion = completion.removeprefix(" ")
        # Tokens of words include the space before the word, so this space is moved to the completion. The harness also
        # moves whitespace at the end of a context.
        text = before.removesuffix(" ") if rest else before.rstrip()
        return self._cut_context(*encode_parts([text, before[len(text) :] + completion, *rest], self.tokenizer))

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **kwargs: object
    ) -> list[tuple[float, bool]]:
        return self._score_all([self._cut_context(context, ids) for _, context, ids in requests], disable_tqdm)

    def _cut_context(self, before: list[int], ids: list[int], after: Sequence[int] = ()) -> Query:
        """Return a query that scores `ids` between `before` and `after`. Cut the outer ends of long contexts."""
        room = self.max_length - len(ids)
        if not ids or room < 0:
            raise ValueError(
                f"A completion must have 1 to {self.max_length} tokens, but one has {len(ids)}. Correct the "
                "task or, for longer completions, increase `max_length`."
            )
        num_after = min(len(after), max(room // 2, room - len(before)))
        before = before[max(0, len(before) - (room - num_after)) :]
        return Query([*before, *ids, *after[:num_after]], len(before), len(before) + len(ids))

    def _score_all(
        self, queries: Sequence[Query], disable_tqdm: bool, with_greedy: bool = True
    ) -> list[tuple[float, bool]]:
        """
        Return the log-likelihood of each query, and whether all of its targets are the likeliest tokens.

        With `with_greedy=False`, the second value is not computed, and is False. Queries of similar length share a
        batch, so batches contain little padding.
        """
        longest_first = sorted(range(len(queries)), key=lambda index: -len(queries[index].ids))
        generator = torch.Generator().manual_seed(self.arguments.seed)
        results: dict[int, tuple[float, bool]] = {}
        for indices in progress_bar(
            split_batches(longest_first, self.batch_size), desc="Scoring", disable=disable_tqdm
        ):
            batch = [tensor.to(self.model.device) for tensor in _to_tensors([queries[index] for index in indices])]
            ids, is_token, is_target = batch
            output = self.model.conditional_log_likelihood(
                ids,
                is_target,
                orders=self.arguments.completion_order,
                num_orders=self.arguments.num_orders,
                context_orders=self.arguments.context_order,
                attention_mask=is_token.long(),
                generator=generator,
            )
            is_greedy = self._is_greedy(*batch, generator).tolist() if with_greedy else [False] * len(indices)
            results |= zip(indices, zip(output.log_likelihood.tolist(), is_greedy, strict=True), strict=True)
        return [results[index] for index in range(len(queries))]

    @torch.no_grad()
    def _is_greedy(
        self, ids: torch.Tensor, is_token: torch.Tensor, is_target: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """Return a boolean tensor (batch,), True if all targets of a query are the likeliest ids, in a single order."""
        context, completion = (
            Orders(name).draw(is_token, generator)
            for name in (self.arguments.context_order, self.arguments.completion_order)
        )
        ranks = torch.where(is_target, completion.argsort(dim=-1), context.argsort(dim=-1))
        orders = group_orders(ranks.argsort(dim=-1, stable=True), torch.where(is_token, is_target.long(), 2))
        output, orders = self.model.forward_by_rank(ids, orders, is_token.long())
        is_target, ids = index_by_rank(is_target, orders), index_by_rank(ids, orders)
        num_rows = rows_per_head_call(ROWS_PER_HEAD_CALL, self.model.config.vocab_size)
        likeliest = [
            self.model.lm_head(rows)[:, : self.model.config.num_valid_tokens].argmax(dim=-1)
            for rows in output.last_hidden_state[is_target].split(num_rows)
        ]
        return (ids.masked_scatter(is_target, torch.cat(likeliest)) == ids).all(dim=-1)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """
        Return log p of whole texts in nats, predicted in `completion_order`.

        Texts of more than `max_length` tokens are cut into parts, which are scored independently.
        """
        texts = [split_batches(self.tok_encode(*request.args), self.max_length) for request in requests]
        queries = [Query(ids, 0, len(ids)) for parts in texts for ids in parts]
        scores = iter(self._score_all(queries, disable_tqdm, with_greedy=False))
        return [sum(next(scores)[0] for _ in parts) for parts in texts]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return a continuation of each context, generated left to right up to the first stop string of the request."""
        groups = defaultdict(list)
        for index, (_, settings) in enumerate(request.args for request in requests):
            groups[json.dumps(settings, sort_keys=True)].append(index)
        batches = [batch for group in groups.values() for batch in split_batches(group, self.batch_size)]
        generator, results = torch.Generator().manual_seed(self.arguments.seed), {}
        for batch in progress_bar(batches, desc="Generating", disable=disable_tqdm):
            contexts = [requests[index].args[0] for index in batch]
            texts = self._continue(contexts, generator, **requests[batch[0]].args[1])
            results |= zip(batch, texts, strict=True)
        return [results[index] for index in range(len(requests))]

    def _continue(
        self,
        contexts: list[str],
        generator: torch.Generator,
        until: str | Sequence[str] = (),
        max_gen_toks: int = 256,
        do_sample: bool | None = None,
        temperature: float = 0.0,
        **settings: object,
    ) -> list[str]:
        """Return a continuation of each context. The other arguments are the `generation_kwargs` of a task."""
        num_new = min(max_gen_toks, self.max_length - 1)
        until = [until] if isinstance(until, str) else until
        settings |= {"do_sample": temperature > 0 if do_sample is None else do_sample}
        if settings["do_sample"]:
            settings["temperature"] = temperature
        given = [self.tok_encode(context)[num_new - self.max_length :] for context in contexts]
        eos = self.model.generation_config.eos_token_id
        ends = {self.eot_token_id, *(eos if isinstance(eos, list) else [eos])}
        texts, new = [""] * len(contexts), [[] for _ in contexts]
        unfinished = range(len(contexts))
        for start in range(0, num_new, TOKENS_PER_CALL):
            count = min(TOKENS_PER_CALL, num_new - start)
            rows = self._generate([given[index] + new[index] for index in unfinished], count, generator, settings)
            for index, row in zip(unfinished, rows, strict=True):
                new[index] += row
                texts[index] = self._decode_after(given[index], new[index])
            unfinished = [
                index
                for index in unfinished
                if ends.isdisjoint(new[index]) and cut_at(texts[index], until) == texts[index]
            ]
            if not unfinished:
                break
        return [cut_at(text, until) for text in texts]

    def _generate(
        self, contexts: list[list[int]], count: int, generator: torch.Generator, settings: dict[str, Any]
    ) -> list[list[int]]:
        """Return the ids of `count` tokens after each context."""
        ids = [torch.tensor(context, dtype=torch.long) for context in contexts]
        sequences = self.model.generate(
            pad_sequence(ids, True, padding_side="left"),
            attention_mask=pad_sequence([torch.ones_like(row) for row in ids], True, padding_side="left"),
            order="left_to_right",
            max_new_tokens=count,
            generator=generator,
            **settings,
        )
        return sequences[:, -count:].tolist()

    def _decode_after(self, before: list[int], ids: list[int]) -> str:
        """Decode `before` and `ids` together, and return the text of `ids`. Alone, it could lose its leading space."""
        whole, start = (
            self.tokenizer.decode(part, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            for part in ([*before, *ids], before)
        )
        return whole.removeprefix(start)


def cut_at(text: str, until: Sequence[str]) -> str:
    """Return the text before the first of the strings `until`."""
    return text[: min((text.index(end) for end in until if end and end in text), default=len(text))]


@one_line_errors()
def main() -> None:
    """Run the command line of the harness."""
    cli_evaluate()


if __name__ == "__main__":
    main()
