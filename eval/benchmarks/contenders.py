# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
The contenders of `speed.py`: the decoder, the decoder without one thing that makes it fast, and other samplers.

Everything that is taken away is taken away here: the package knows nothing of it.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.generation import LogitsProcessorList, TopPLogitsWarper

from common.models import load_pretrained, longest_sequence
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderConfig, MDMEncoderForMaskedLM
from modeling_aogpt.decoding_state import AnyOrderCache, CachedDecodingState, QueryResult

# Makes `batch_size` sequences of `length` tokens in `num_steps` steps.
Generate = Callable[[int, int, int], Any]


@dataclass
class Contender:
    """
    A sampler that is timed.

    Attributes:
        generate: Makes sequences.
        one_step_only: `generate` does one step of many that cost the same, so its time is to be multiplied.
        one_by_one: It makes one token per step, so that there are as many steps as tokens.
    """

    generate: Generate
    one_step_only: bool = False
    one_by_one: bool = False


class WithoutCache(CachedDecodingState):
    """A decoder whose every pass computes all known rows again."""

    def query(self, num_queries: torch.LongTensor) -> QueryResult:
        self.num_cached.zero_()
        return super().query(num_queries)


class ConcatenatingCache(AnyOrderCache):
    """A cache that copies the old and the new to fresh memory, as transformers' `DynamicCache` does."""

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        num_old = self._num_visible - keys.shape[2]
        old = super().update(keys, values, layer_idx)
        return tuple(
            torch.cat((kept[:, :, :num_old], new), dim=2) for kept, new in zip(old, (keys, values), strict=True)
        )


class WithConcatenation(CachedDecodingState):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.cache.__class__ = ConcatenatingCache


class WithoutTable(CachedDecodingState):
    """A decoder whose every pass projects the modulations of its targets."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.modulations = None


@contextmanager
def decoding_state(model: AOGPTForAnyOrderLM, decoding_state_class: type[CachedDecodingState]) -> Iterator[None]:
    """Have the model generate with another decoding state."""
    model.decoding_state_class = decoding_state_class
    try:
        yield
    finally:
        del model.decoding_state_class  # that of the class shows again


@contextmanager
def whole_last_layer(model: AOGPTForAnyOrderLM) -> Iterator[None]:
    """Have the last layer also compute the rows that only enter the cache."""
    num_kept = 0

    def ask_for_all(module: Any, arguments: tuple, given: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        nonlocal num_kept
        num_kept = given["num_kept"]
        return arguments, given | {"num_kept": None}

    def give_kept(module: Any, arguments: tuple, output: Any) -> None:
        output.last_hidden_state = output.last_hidden_state[:, -num_kept:]

    hooks = (
        model.model.register_forward_pre_hook(ask_for_all, with_kwargs=True),
        model.model.register_forward_hook(give_kept),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def sort_all(ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
    """Sort the whole vocabulary for every token, which at p = 1 changes nothing."""
    TopPLogitsWarper(1.0)(ids, scores.double())
    return scores


def decoder(model: AOGPTForAnyOrderLM, **arguments: Any) -> Generate:
    def generate(batch_size: int, length: int, num_steps: int) -> torch.LongTensor:
        return model.generate(
            num_return_sequences=batch_size,
            max_length=length,
            num_steps=num_steps,
            unmasking="fixed_count",
            **arguments,
        )

    return generate


def within(context: Callable[[], AbstractContextManager], generate: Generate) -> Generate:
    def generate_within(batch_size: int, length: int, num_steps: int) -> torch.LongTensor:
        with context():
            return generate(batch_size, length, num_steps)

    return generate_within


def encoder(config: AOGPTConfig, device: torch.device, dtype: torch.dtype) -> Contender:
    """
    Return an encoder of the decoder's own blocks. A step is a pass over all positions, whatever it fills in; its head
    and its draws are left out, in its favour.
    """
    shared = {name: getattr(config, name) for name in AOGPTConfig.__annotations__}
    shared["vocab_size"] = max(config.vocab_size, config.mask_token_id + 1)  # an encoder embeds the mask
    model = MDMEncoderForMaskedLM(MDMEncoderConfig(**shared)).eval().to(device, dtype)

    @torch.no_grad()
    def one_pass(batch_size: int, length: int, num_steps: int) -> torch.Tensor:
        ids = torch.full((batch_size, length), config.mask_token_id, device=device)
        return model.model(ids).last_hidden_state

    return Contender(one_pass, one_step_only=True)


def causal_lm(name: str, length: int, device: torch.device, dtype: torch.dtype) -> Contender:
    """
    Return a model type of transformers, of its default size and with random weights, or a folder or Hub name.

    Raises:
        ValueError: If it does not take sequences of `length` tokens.
    """
    if name in CONFIG_MAPPING:
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[name](), dtype=dtype)
    else:
        model = load_pretrained(AutoModelForCausalLM, name, dtype=dtype)
    longest = longest_sequence(model.config) or length
    if length > longest:
        raise ValueError(f"length is {length}, but {name} takes at most {longest} tokens.")
    model = model.eval().to(device)

    def generate(batch_size: int, length: int, num_steps: int) -> torch.LongTensor:
        start = torch.zeros(batch_size, 1, dtype=torch.long, device=device)
        return model.generate(
            start,
            attention_mask=torch.ones_like(start),
            min_new_tokens=length - 1,
            max_new_tokens=length - 1,
            do_sample=True,
            top_k=0,
            pad_token_id=0,
        )

    return Contender(generate, one_by_one=True)


def compared(name: str, config: AOGPTConfig, device: torch.device, dtype: torch.dtype) -> Contender:
    """
    Return the sampler that a user's `module:function` makes of an `AOGPTConfig`, a device and a dtype: a callable that
    takes batch size, length and number of steps.

    Raises:
        ValueError: If `name` is not of that form, or there is no such module or function.
    """
    module_name, _, function_name = name.partition(":")
    try:
        make = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"compare={name!r}: {error}. Give module:function, with the module's folder in PYTHONPATH."
        ) from error
    return Contender(make(config, device, dtype))


ABLATIONS: dict[str, Callable[[AOGPTForAnyOrderLM], Generate]] = {
    "no-cache": lambda model: within(partial(decoding_state, model, WithoutCache), decoder(model)),
    "concatenated-cache": lambda model: within(partial(decoding_state, model, WithConcatenation), decoder(model)),
    "no-modulation-table": lambda model: within(partial(decoding_state, model, WithoutTable), decoder(model)),
    "whole-last-layer": lambda model: within(partial(whole_last_layer, model), decoder(model)),
    # Products on a CPU are those that PyTorch chooses, and no weights are packed.
    "plain-products": lambda model: within(partial(torch.backends.mkldnn.flags, enabled=False), decoder(model)),
    "sorted-vocabulary": lambda model: decoder(model, logits_processor=LogitsProcessorList([sort_all])),
}
