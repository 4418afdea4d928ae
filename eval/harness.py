# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""The command line of the lm-evaluation-harness, with the additional model type `aogpt` for any-order models.

    python eval/harness.py run --model aogpt --model_args pretrained=MODEL,context_order=random --tasks TASK [...]
    accelerate launch eval/harness.py run --model aogpt ...

Tasks are scored by the log-probability of a completion given a context, or generate text after a context from left to
right (`generate_until`). If a context contains the model's mask token, the completion is scored, or the text is filled
in, at the position of the mask, given the text on both sides. A task of the usual format can therefore evaluate
infilling. For left-to-right scores, the model type `hf` of the harness can also be used: `--model hf --model_args
pretrained=MODEL,trust_remote_code=True`.

If there are several processes, the first one runs the harness, and divides the batches among all of them. The results
do not depend on their number.
"""

import atexit
import json
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import lm_eval.models  # noqa: F401  # otherwise, the harness would not register its own models
import numpy as np
import torch
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM, CacheHook, TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.api.task import Task
from lm_eval.utils import hash_string
from torch.nn.utils.rnn import pad_sequence

from aogpt.texts import cut_around, decode_after, find_end, find_special_ids, lacks_space
from common.commands import Options, one_line_errors, option, progress_bar
from common.encoding import warn_of_unknown
from common.hardware import default_device
from common.models import check_own_tokenizer, identity_of_configs, identity_of_weights
from common.processes import gather, start_accelerator
from common.results import default_length
from eval.infilling import Filler, Gap
from eval.journal import make_generator, split_batches
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from modeling_aogpt.configuration_aogpt import as_list
from modeling_aogpt.devices import rows_per_head_call
from modeling_aogpt.infill import encode_between_masks, encode_parts, pad_texts
from modeling_aogpt.likelihood import ROWS_PER_HEAD_CALL
from modeling_aogpt.loading import find_model, load_pretrained, read_any_config
from modeling_aogpt.orders import ORDER_NAMES, Orders, group_orders, index_by_rank
from modeling_aogpt.tokenization import load_matching_tokenizer
from modeling_aogpt.validation import check_choice, check_integer, suggest

BUILD_ALL_REQUESTS = Task.build_all_requests
TOKENS_PER_CALL = 32  # generated at once; afterwards, texts that contain a stop string are complete
# Settings of a whole text. They need care if one text is generated in several calls.
OF_WHOLE_TEXTS = ("min_new_tokens", "num_steps", "refine_rounds", "eos_token_id", "stop_at_eos")


@dataclass
class HarnessArguments(Options):
    """Arguments of the model type `aogpt`, which are passed with `--model_args`."""

    pretrained: str = field(metadata={"help": "Folder of a model or a run, or Hub name."})
    tokenizer: str | None = option(None, "Folder or Hub name of the tokenizer. Defaults to the model's.")
    context_order: str = option("left_to_right", "left_to_right or random.")
    completion_order: str = option("left_to_right", "left_to_right or random.")
    num_orders: int = option(1, "Number of random orders over which the log-likelihood is averaged.", least=1)
    seed: int = option(0, "Seed of random orders and of sampled text. Results also depend on the batch size.", least=0)
    max_gap: int = option(32, "Largest number of tokens that are filled in at a mask.", least=1)
    batch_size: int | str = option(16, "Number of texts that are scored or generated at once.")
    device: str | None = option(None, 'Defaults to "cuda" if available, else "cpu".')
    dtype: str = option("float32", "Data type of the weights.")
    max_length: int | None = option(
        None,
        "Maximum number of tokens of context and completion together. Defaults to the sequence_length of the run or, "
        "for other models, to the model's maximum. A context that is too long is cut at its start or, if it contains a "
        "mask, at its start and end.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("context_order", self.context_order, ORDER_NAMES)
        check_choice("completion_order", self.completion_order, ORDER_NAMES)
        if self.num_orders > 1 and "random" not in (self.context_order, self.completion_order):
            raise ValueError(
                f"`num_orders` ({self.num_orders}) has no effect if neither `context_order` nor `completion_order` is "
                "'random'. Set one of them to 'random', or remove `num_orders`."
            )
        self.batch_size = 16 if str(self.batch_size).startswith("auto") else int(self.batch_size)
        check_integer("batch_size", self.batch_size)
        default = default_device().type
        if self.device is None or (self.device.startswith("cuda") and default == "cpu"):  # the harness passes "cuda"
            self.device = default
        if not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise ValueError(f"`dtype` must be a data type of torch such as 'bfloat16', but is {self.dtype!r}.")

    @classmethod
    def from_harness(cls, given: dict[str, Any]) -> "HarnessArguments":
        """Return the arguments in `given`, without the arguments that the harness passes to every model."""
        known = [item.name for item in fields(cls)]
        for name in given:
            if name not in (*known, "max_batch_size", "trust_remote_code"):  # passed to every model
                hint = suggest(name, known) or f" Known names are {', '.join(known)}."
                raise ValueError(f"`model_args` contains the unknown name `{name}`. Remove or correct it.{hint}")
        return cls.from_settings(given)


@register_model("aogpt")
class AnyOrderLM(LM):
    """Model type of the harness that computes log p(completion | context) with an AO-GPT or sigma-GPT.

    The model reads the whole context in `context_order`, and then predicts the completion in `completion_order`. With
    random orders, the log-likelihood is averaged over `num_orders` orders. The average is a lower bound on the log of
    the mean likelihood. Whether a completion is greedy is decided in one order. Text is generated from left to right.
    [`HarnessArguments`] describes the arguments.
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
        self.accelerator = start_accelerator()
        device = self.accelerator.device if self.accelerator.num_processes > 1 else self.arguments.device
        model = load_pretrained(AOGPTForAnyOrderLM, pretrained, dtype=getattr(torch, self.arguments.dtype))
        self.model = model.to(device).eval()
        self.tokenizer = load_matching_tokenizer(config, name := self.arguments.tokenizer or pretrained)
        check_own_tokenizer(pretrained, self.tokenizer, name)
        self.batch_size = self.arguments.batch_size
        self.max_length = default_length(pretrained, config) if (given := self.arguments.max_length) is None else given
        check_integer("max_length", self.max_length, most=self.model.config.max_position_embeddings)
        self.filler = Filler.of_model(self.model, pretrained, self.arguments.max_gap)
        if not self.accelerator.is_main_process:  # compute batches for the main process until it ends
            while (work := gather(None, self.accelerator.num_processes)[0]) is not None:
                for _ in self._compute(*work):
                    pass
            sys.exit()
        if self.accelerator.num_processes > 1:
            atexit.register(gather, None, self.accelerator.num_processes)

    def _share(
        self, name: str, items: Sequence[Any], batches: list[list[int]], **bar: Any
    ) -> Iterator[tuple[int, Any]]:
        """Yield the index and the result of each item. The processes divide the `batches` of indices."""
        work = name, [[items[index] for index in batch] for batch in batches]
        gather(work, self.accelerator.num_processes)
        results = zip(batches, self._compute(*work), strict=True)
        for batch, values in progress_bar(results, total=len(batches), **bar):
            yield from zip(batch, values, strict=True)

    def _compute(self, name: str, batches: list[list[Any]]) -> Iterator[list[Any]]:
        """Yield the results of the method `name` for each batch, in all processes."""
        num_processes = self.accelerator.num_processes
        for start in range(0, len(batches), num_processes):
            number, own = start + self.accelerator.process_index, None
            if number < len(batches):
                own = getattr(self, name)(batches[number], make_generator(self.arguments.seed, number))
            yield from gather(own, num_processes)[: len(batches) - start]

    def _collect(self, kind: str, requests: list[Instance], results: Iterable[tuple[int, Any]]) -> list[Any]:
        """Return the results in the order of the requests. Add each to the harness's cache when it is known."""
        found = {}
        for index, result in results:
            found[index] = result
            self.cache_hook.add_partial(kind, requests[index].args, result)
        return [found[index] for index in range(len(requests))]

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    @property
    def tokenizer_name(self) -> str:
        """Name of the tokenizer and its chat template in the harness's cache of requests."""
        return f"{self.tokenizer.name_or_path} {self.tokenizer.chat_template}"

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Raise a `ValueError` if the harness's cache of results has those of another model or other arguments."""
        super().set_cache_hook(cache_hook)
        if (cache := cache_hook.dbdict) is not None:
            name = find_model(self.arguments.pretrained)
            model = [identity_of_weights(name), identity_of_configs(name)]
            identity = asdict(self.arguments) | {"model": model, "device": None}
            if cache.setdefault("identity", None if len(cache) else identity) != identity:
                raise ValueError("The cache (`--use_cache`) has results of another model or arguments. Use a new path.")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Use the template that `--apply_chat_template` names, and return it. The harness saves it."""
        self.tokenizer.chat_template = TemplateLM.chat_template(self, chat_template)
        return self.tokenizer.chat_template

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return the text of a chat. If `add_generation_prompt` is False, its last message can be continued."""
        options = {"add_generation_prompt": add_generation_prompt, "continue_final_message": not add_generation_prompt}
        return self.tokenizer.apply_chat_template(chat_history, tokenize=False, **options)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return log p of each completion in nats, and whether each of its tokens is the likeliest one."""
        queries = [self._make_query(*request.args) for request in requests]
        return self._collect("loglikelihood", requests, self._score_all(queries, disable_tqdm))

    def _split_at_mask(self, context: str) -> list[str]:
        """Return the text before the mask in `context` and, if there is a mask, the text after it."""
        parts = context.split(self.tokenizer.mask_token)
        if len(parts) > 2:
            raise ValueError(
                f"A context must contain at most one mask, but {context!r} contains {len(parts) - 1}. Keep only one."
            )
        return parts

    def _make_query(self, context: str, completion: str) -> Gap:
        """Return a query of `completion` at the mask in `context`, or at its end. Cut outer ends of long contexts."""
        before, *rest = self._split_at_mask(context)
        if rest:
            # The harness puts a space, its `target_delimiter`, before each choice. The space belongs to the text only
            # if there is a space before the mask.
            completion = completion.removeprefix(" ")
        # Tokens of words include the space before the word, so this space is moved to the completion. The harness also
        # moves whitespace at the end of a context.
        text = before.removesuffix(" ") if rest else before.rstrip()
        before, ids, *after = encode_parts([text, before[len(text) :] + completion, *rest], self.tokenizer)
        room = self.max_length - len(ids)
        if not ids or room < 0:
            raise ValueError(
                f"A completion must have 1 to {self.max_length} tokens, but one has {len(ids)}. Correct the "
                "task or, for longer completions, increase `max_length`."
            )
        before, after = self._cut(before, after[0] if after else [], room)
        return Gap([*before, *ids, *after], len(before), len(ids))

    def _cut(self, before: list[int], after: Sequence[int], room: int) -> tuple[list[int], Sequence[int]]:
        if len(before) + len(after) > room:
            warnings.warn(f"A context is too long for {self.max_length} positions. It is truncated.", stacklevel=1)
        return cut_around(before, after, room)

    def _score_all(
        self, queries: Sequence[Gap], disable_tqdm: bool, with_greedy: bool = True
    ) -> Iterator[tuple[int, tuple[float, bool]]]:
        """Yield the index and the results of each query: its log-likelihood, and whether its targets are the likeliest.

        With `with_greedy=False`, the second value is not computed, and is False. Queries of similar length share a
        batch, so batches contain little padding.
        """
        warn_of_unknown((np.array(query.ids) for query in queries), self.tokenizer)
        longest_first = sorted(range(len(queries)), key=lambda index: -len(queries[index].ids))
        batches = split_batches(longest_first, self.batch_size)
        items = [(query, with_greedy) for query in queries]
        return self._share("_score", items, batches, desc="Scoring", disable=disable_tqdm)

    def _score(self, items: list[tuple[Gap, bool]], generator: torch.Generator) -> list[tuple[float, bool]]:
        """Return the results of a batch of queries."""
        queries, (with_greedy, *_) = zip(*items, strict=True)
        ids = pad_sequence([torch.tensor(query.ids) for query in queries], batch_first=True).to(self.model.device)
        positions = torch.arange(ids.shape[1], device=ids.device)
        bounds = torch.tensor([[one.start, one.start + one.length, len(one.ids)] for one in queries], device=ids.device)
        starts, ends, lengths = bounds.T[..., None]
        is_token, is_target = positions < lengths, (positions >= starts) & (positions < ends)
        output = self.model.log_likelihood(
            ids,
            targets=is_target,
            orders=self.arguments.completion_order,
            num_orders=self.arguments.num_orders,
            context_orders=self.arguments.context_order,
            attention_mask=is_token.long(),
            generator=generator,
        )
        is_greedy = self._is_greedy(ids, is_token, is_target, generator).tolist() if with_greedy else [False] * len(ids)
        return list(zip(output.log_likelihood.tolist(), is_greedy, strict=True))

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
        """Return log p of whole texts in nats, predicted in `completion_order`.

        Texts of more than `max_length` tokens are cut into parts, which are scored independently.
        """
        texts = [split_batches(self._encode(*request.args), self.max_length) for request in requests]
        start = [self.model.config.start_token_id]
        # A start token inside a text must be scored. If a part begins with it, the model needs another one before it.
        queries = [
            Gap([*start, *ids], 1, len(ids)) if number > 0 and ids[:1] == start else Gap(ids, 0, len(ids))
            for parts in texts
            for number, ids in enumerate(parts)
        ]
        scores = iter(sorted(self._score_all(queries, disable_tqdm, with_greedy=False)))
        return [sum(next(scores)[1][0] for _ in parts) for parts in texts]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return a continuation of each context, or the text at its mask, up to the first stop string."""
        items, groups = [(self._read_context(request), request.args[1]) for request in requests], defaultdict(list)
        for index, (context, settings) in enumerate(items):
            groups[json.dumps([self.tokenizer.mask_token in context, settings], sort_keys=True)].append(index)
        for first, *_ in groups.values():  # errors in stop strings, before any text is generated
            find_special_ids(stop_strings(items[first][1]), self.tokenizer)
        batches = [batch for group in groups.values() for batch in split_batches(group, self.batch_size)]
        texts = self._share("_write", items, batches, desc="Generating", disable=disable_tqdm)
        return self._collect("generate_until", requests, texts)

    def _read_context(self, request: Instance) -> str:
        """Return the context of a request. For humaneval_infilling, put a mask between the text before and after."""
        context, doc = request.args[0], request.doc
        is_infilling = {"prompt", "suffix"} <= doc.keys() and context == f"{doc['suffix']}\n\n{doc['prompt']}"
        return f"{doc['prompt']}{self.tokenizer.mask_token}{doc['suffix']}" if is_infilling else context

    def _write(self, items: list[tuple[str, dict[str, Any]]], generator: torch.Generator) -> list[str]:
        """Return a text for each context of a batch, which comes with the `generation_kwargs` of its task."""
        contexts, (given, *_) = zip(*items, strict=True)
        settings = {"until": (), "max_gen_toks": 256, "do_sample": None, "temperature": 0.0} | given
        until, num_new = stop_strings(settings), settings.pop("max_gen_toks")
        del settings["until"]
        if settings["do_sample"] is None:
            settings["do_sample"] = settings["temperature"] > 0
        if not settings["do_sample"]:
            del settings["temperature"]
        settings["generator"] = generator
        if self.tokenizer.mask_token in contexts[0]:
            texts = [self._fill_in(context, num_new, until, settings) for context in contexts]
        else:
            texts = self._continue(contexts, num_new, until, settings)
        return [cut_at(text, until) for text in texts]

    def _fill_in(self, context: str, num_new: int, until: Sequence[str], settings: dict[str, Any]) -> str:
        """Return the text at the mask in a context. Its number of tokens is that with the likeliest whole text."""
        prefix, _ = self._split_at_mask(context)
        before, after = encode_between_masks(context, self.tokenizer)
        num_new = min(num_new, self.arguments.max_gap, self.max_length - 1)
        before, after = self._cut(before, after or [self.tokenizer.eos_token_id], self.max_length - num_new)
        ids = self.filler.with_unknown_length(Gap([*before, *after], len(before), 0), num_new, **settings)
        ids = ids[: find_end(ids, find_special_ids(until, self.tokenizer))]
        return decode_after(before, ids, self.tokenizer, lacks_space(before, prefix, self.tokenizer))

    def _continue(self, contexts: list[str], num_new: int, until: Sequence[str], settings: dict[str, Any]) -> list[str]:
        """Return a continuation of each context, which may go on after a stop string."""
        given = [self._encode(context) for context in contexts]
        # A context that leaves too little room is cut to half of the positions.
        limits = [min(num_new, max(self.max_length - len(ids), self.max_length // 2)) for ids in given]
        if min(limits) < num_new:
            text = f"A context is too long to add {num_new} tokens in {self.max_length} positions. Fewer are generated."
            warnings.warn(text, stacklevel=1)
        given = [self._cut(ids, [], self.max_length - limit)[0] for ids, limit in zip(given, limits, strict=True)]
        own = {name: getattr(self.model.generation_config, name) for name in OF_WHOLE_TEXTS} | settings
        ends = set(find_special_ids(until, self.tokenizer))
        if own["stop_at_eos"] is not False:
            ends |= {self.tokenizer.eos_token_id, *as_list(own["eos_token_id"])}
        texts, new = [""] * len(contexts), [[] for _ in contexts]
        least = own["min_new_tokens"] or 0
        per_call = self.max_length if own["num_steps"] or own["refine_rounds"] else TOKENS_PER_CALL
        while unfinished := [
            index
            for index, limit in enumerate(limits)
            if len(new[index]) < limit and ends.isdisjoint(new[index]) and cut_at(texts[index], until) == texts[index]
        ]:
            count = min(per_call, *(limits[index] - len(new[index]) for index in unfinished))
            settings["min_new_tokens"] = max(least - len(new[unfinished[0]]), 0)  # all have equally many
            rows = self._generate([given[index] + new[index] for index in unfinished], count, settings)
            for index, row in zip(unfinished, rows, strict=True):
                new[index] += row
                texts[index] = decode_after(given[index], new[index][: find_end(new[index], ends)], self.tokenizer)
        return texts

    def _generate(self, contexts: list[list[int]], count: int, settings: dict[str, Any]) -> list[list[int]]:
        """Return the ids of `count` tokens after each context."""
        ids, mask = pad_texts([torch.tensor(context, dtype=torch.long) for context in contexts], "left")
        output = self.model.generate(ids, attention_mask=mask, order="left_to_right", max_new_tokens=count, **settings)
        return output[:, -count:].tolist()


def stop_strings(settings: dict[str, Any]) -> Sequence[str]:
    """Return the stop strings in the `generation_kwargs` of a task."""
    until = settings.get("until") or ()  # tasks may have null
    return [until] if isinstance(until, str) else until


def cut_at(text: str, until: Sequence[str]) -> str:
    """Return the text before the first of the strings `until`."""
    return text[: min((text.index(end) for end in until if end and end in text), default=len(text))]


def build_all_requests(task: Task, tokenizer_name: str = "", **options: Any) -> None:
    """Build the requests of a task. Cached requests are used only if settings, seed and data are the same."""
    data = [getattr(part, "_fingerprint", None) for part in (task.dataset or {}).values()]
    seed = task.fewshot_rnd and task.fewshot_rnd.getstate()
    key = str([tokenizer_name, task.dump_config(), seed, data, options.get("samples")])
    key = hash_string(re.sub(r" at 0x\w+", "", key))  # without addresses of functions, which differ between processes
    BUILD_ALL_REQUESTS(task, tokenizer_name=key[:16], **options)


Task.build_all_requests = build_all_requests  # the key of the harness lacks most settings


@one_line_errors()
def main() -> None:
    """Run the command line of the harness."""
    cli_evaluate()


if __name__ == "__main__":
    main()
