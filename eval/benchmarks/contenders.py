# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Contenders (samplers to time) for `speed.py`: the decoder, ablations of the decoder, and other samplers.

The ablations are implemented here, so that the package does not need options to switch parts of it off.
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

# Called as generate(batch_size, length, num_steps).
Generate = Callable[[int, int, int], Any]


@dataclass
class Contender:
    """
    A sampler to time.

    Attributes:
        generate: Function that generates sequences.
        one_step_only: Whether `generate` runs only one of `num_steps` equal steps. If so, its time is multiplied by
            `num_steps`.
        one_by_one: Whether each step generates exactly one token, so that there are as many steps as tokens.
    """

    generate: Generate
    one_step_only: bool = False
    one_by_one: bool = False


class _WithoutCache(CachedDecodingState):
    """Decoding state without a cache: every pass computes all rows of the context again."""

    def query(self, num_queries: torch.LongTensor) -> QueryResult:
        self.num_cached.zero_()
        return super().query(num_queries)


class ConcatenatingCache(AnyOrderCache):
    """Cache whose update copies old and new entries to new memory, as Transformers' `DynamicCache` does."""

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the keys and values of a layer, and return a copy of all keys and values up to and including these."""
        num_old = self._num_visible - keys.shape[2]
        stored = super().update(keys, values, layer_idx)
        return tuple(
            torch.cat((kept[:, :, :num_old], new), dim=2) for kept, new in zip(stored, (keys, values), strict=True)
        )


class _WithConcatenation(CachedDecodingState):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.cache.__class__ = ConcatenatingCache


class _WithoutTable(CachedDecodingState):
    """Decoding state that computes the modulations of the targets in every pass, instead of looking them up."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.modulations = None


@contextmanager
def _use_decoding_state(model: AOGPTForAnyOrderLM, decoding_state_class: type[CachedDecodingState]) -> Iterator[None]:
    """Make the model use another class of decoding state in `generate`."""
    model.decoding_state_class = decoding_state_class
    try:
        yield
    finally:
        del model.decoding_state_class  # uncovers the attribute of the class again


@contextmanager
def _compute_whole_last_layer(model: AOGPTForAnyOrderLM) -> Iterator[None]:
    """Make the last layer also compute the outputs of rows that only enter the cache."""
    num_kept = 0

    def request_all(module: Any, arguments: tuple, options: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        nonlocal num_kept
        num_kept = options["num_kept"]
        return arguments, options | {"num_kept": None}

    def select_kept(module: Any, arguments: tuple, output: Any) -> None:
        output.last_hidden_state = output.last_hidden_state[:, -num_kept:]

    hooks = (
        model.model.register_forward_pre_hook(request_all, with_kwargs=True),
        model.model.register_forward_hook(select_kept),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _sort_vocabulary(ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
    """Sort the vocabulary for every token, as top-p does. The result is not used, so scores do not change."""
    TopPLogitsWarper(1.0)(ids, scores.double())
    return scores


def make_decoder(model: AOGPTForAnyOrderLM, **arguments: Any) -> Generate:
    """Return a function that generates with a decoder, with the same number of tokens in each step."""

    def generate(batch_size: int, length: int, num_steps: int) -> torch.LongTensor:
        return model.generate(
            num_return_sequences=batch_size,
            max_length=length,
            num_steps=num_steps,
            unmasking="fixed_count",
            **arguments,
        )

    return generate


def _ablate(
    context: Callable[[AOGPTForAnyOrderLM], AbstractContextManager],
) -> Callable[[AOGPTForAnyOrderLM], Generate]:
    """Return a function that maps a decoder to a function that generates inside of `context(model)`."""

    def make(model: AOGPTForAnyOrderLM) -> Generate:
        generate = make_decoder(model)

        def generate_within(batch_size: int, length: int, num_steps: int) -> torch.LongTensor:
            with context(model):
                return generate(batch_size, length, num_steps)

        return generate_within

    return make


def make_encoder(config: AOGPTConfig, device: torch.device, dtype: torch.dtype) -> Contender:
    """
    Return an encoder with the same sizes as the decoder.

    A step is a forward pass over all positions, without the head.
    """
    shared = {name: getattr(config, name) for name in AOGPTConfig.__annotations__}
    shared["vocab_size"] = max(
        config.vocab_size, config.mask_token_id + 1
    )  # an encoder has an embedding of the mask token
    model = MDMEncoderForMaskedLM(MDMEncoderConfig(**shared)).eval().to(device, dtype)

    @torch.no_grad()
    def run_step(batch_size: int, length: int, num_steps: int) -> torch.Tensor:
        ids = torch.full((batch_size, length), config.mask_token_id, device=device)
        return model.model(ids).last_hidden_state

    return Contender(run_step, one_step_only=True)


def make_causal_lm(name: str, length: int, device: torch.device, dtype: torch.dtype) -> Contender:
    """
    Return a contender that generates with a causal language model.

    `name` is a model type of Transformers (random weights), or the folder or Hub name of a model.
    """
    if name in CONFIG_MAPPING:
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[name](), dtype=dtype)
    else:
        model = load_pretrained(AutoModelForCausalLM, name, dtype=dtype)
    longest = longest_sequence(model.config) or length
    if length > longest:
        raise ValueError(f"`length` must be at most {longest} for {name}, but is {length}. Decrease `length`.")
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


def make_compared(name: str, config: AOGPTConfig, device: torch.device, dtype: torch.dtype) -> Contender:
    """
    Return a contender with the sampler of a user. `name` is `module:function`.

    The function is called with `config`, `device` and `dtype`, and returns a callable of the type `Generate`.
    """
    module_name, _, function_name = name.partition(":")
    try:
        make = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"`compare` ({name!r}) cannot be imported. Set it to module:function, and add the folder of the module to "
            f"PYTHONPATH. (Cause: {error})"
        ) from error
    return Contender(make(config, device, dtype))


ABLATIONS: dict[str, Callable[[AOGPTForAnyOrderLM], Generate]] = {
    "no-cache": _ablate(partial(_use_decoding_state, decoding_state_class=_WithoutCache)),
    "concatenated-cache": _ablate(partial(_use_decoding_state, decoding_state_class=_WithConcatenation)),
    "no-modulation-table": _ablate(partial(_use_decoding_state, decoding_state_class=_WithoutTable)),
    "whole-last-layer": _ablate(_compute_whole_last_layer),
    # On a CPU, use PyTorch's default matrix products, and do not pack the weights for oneDNN.
    "plain-products": _ablate(lambda model: torch.backends.mkldnn.flags(enabled=False)),
    "sorted-vocabulary": lambda model: make_decoder(model, logits_processor=LogitsProcessorList([_sort_vocabulary])),
}
