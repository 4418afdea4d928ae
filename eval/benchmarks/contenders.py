# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Contenders: the samplers that `speed.py` times. Each is a model with a way to generate.

To add a sampler of a decoder, add a line to `DECODERS`. To add an encoder, add its settings to `ENCODERS`. To add a
causal language model, add its model type to `CAUSAL_LMS`.
"""

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.generation import CompileConfig, LogitsProcessorList, TopPLogitsWarper

from common.models import Model, load_pretrained, longest_sequence
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderConfig, MDMEncoderForMaskedLM, decoding_state
from modeling_aogpt.convert_reference_checkpoint import SEDD
from modeling_aogpt.decoding_state import CachedDecodingState, QueryResult
from modeling_aogpt.unmasking import ScheduledUnmasking

# Called as generate(batch_size, length, num_steps). Returns ids of shape (batch_size, length).
Generate = Callable[[int, int, int], torch.LongTensor]

CAUSAL_LMS = ("gpt2", "llama")
BLOCK_LENGTH = 32  # as in the examples of LLaDA's authors
LOOKUP_TOKENS = 10  # tokens that Transformers' prompt lookup drafts per pass; its documentation uses this value


@dataclass
class Contender:
    """
    A sampler to time.

    Attributes:
        generate: Function that generates sequences.
        remark: Description for the report: what the contender computes and samples.
        num_ids: Number of allowed ids: it may generate the ids from 0 to `num_ids` - 1.
        num_parameters: Number of parameters, if known.
        takes_steps: Whether it generates in a given number of steps. Otherwise, it chooses the number of steps itself.
        is_linear: Whether its time is approximately linear in the number of steps.
        max_batch_size: Largest number of sequences that it can generate at once.
    """

    generate: Generate
    remark: str
    num_ids: int
    num_parameters: int | None = None
    takes_steps: bool = True
    is_linear: bool = False
    max_batch_size: int | None = None

    def sample(self, batch_size: int, length: int, num_steps: int) -> torch.LongTensor:
        """Generate ids (batch_size, length). Raise a `ValueError` if the shape is wrong, or an id is not allowed."""
        ids = self.generate(batch_size, length, num_steps)
        if not isinstance(ids, torch.Tensor) or ids.shape != (batch_size, length):
            found = f"shape {tuple(ids.shape)}" if isinstance(ids, torch.Tensor) else f"type {type(ids).__name__}"
            raise ValueError(
                f"A contender ({self.remark}) must return a tensor of ids of shape ({batch_size}, {length}), but its "
                f"result has {found}. Return all tokens of every sequence."
            )
        least, largest = ids.min().item(), ids.max().item()
        if least < 0 or largest >= self.num_ids:
            raise ValueError(
                f"A contender ({self.remark}) must return ids from 0 to {self.num_ids - 1}, but returned ids from "
                f"{least} to {largest}. Do not return mask tokens, or ids that only pad the vocabulary."
            )
        return ids


# ------------------------------------------------------------------------------------------- models of this package


def sample_any_order(
    model: Model,
    remark: str,
    takes_steps: bool = True,
    is_linear: bool = False,
    context: Callable[[Model], AbstractContextManager] = lambda model: nullcontext(),
    **settings: Any,
) -> Contender:
    """
    Return a contender that generates with a model of this package.

    `context` returns a context manager for the model, which can change the model while it generates. `settings` are
    arguments of `model.generate`. The other arguments are those of `Contender`.
    """
    if takes_steps:
        settings = {"unmasking": "fixed_count"} | settings

    def generate(batch_size: int, length: int, num_steps: int) -> torch.LongTensor:
        steps = {"num_steps": num_steps} if takes_steps else {}
        with context(model):
            return model.generate(num_return_sequences=batch_size, max_length=length, **steps, **settings)

    return Contender(
        generate, remark, model.config.num_valid_tokens, model.num_parameters(), takes_steps, is_linear=is_linear
    )


@contextmanager
def packed_and_patched(target: object, attribute: str, value: object) -> Iterator[None]:
    """
    Change an attribute temporarily.

    During this time, generation packs the weights (on a CPU) or records passes (on a GPU) as early as possible.
    """
    with patch.object(decoding_state, "MIN_PASSES_TO_PREPARE", 1), patch.object(target, attribute, value):
        yield


class WithoutCache(CachedDecodingState):
    """Decoding state without a cache: every pass recomputes all rows of the context."""

    def query(self, num_queries: torch.LongTensor) -> QueryResult:
        """Predict the next `num_queries[b]` masked ranks of sequence b, each given all unmasked tokens of b."""
        self.num_cached.zero_()
        return super().query(num_queries)


def sort_vocabulary(ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
    """Sort a copy of the scores over the vocabulary, as top-p does, and return the scores unchanged."""
    TopPLogitsWarper(1.0)(ids, scores.double())
    return scores


# Type of device on which a contender differs from `decoder`. On others, `--contenders all` omits it.
DEVICE_TYPES = {"plain-products": "cpu", "no-graphs": "cuda"}

# Functions that return a contender for a decoder. `patch.object` changes an attribute while the contender generates.
DECODERS: dict[str, Callable[[AOGPTForAnyOrderLM], Contender]] = {
    "decoder": partial(sample_any_order, remark="cache; a step queries only the positions it unmasks (Lemma 4.1)"),
    "no-lemma": partial(
        sample_any_order,
        remark="cache; a step queries all masked positions, draws a token for each, and keeps a part of them",
        is_linear=True,
        context=lambda model: packed_and_patched(ScheduledUnmasking, "is_adaptive", True),
    ),
    "confidence-blocks": partial(
        sample_any_order,
        remark=f"cache; blocks of {BLOCK_LENGTH} positions; a step queries the masked positions of the current block, "
        "and keeps those of which the model is most certain",
        order="confidence",
        block_length=BLOCK_LENGTH,
        stop_at_eos=False,
    ),
    "no-cache": partial(
        sample_any_order,
        remark="a step computes all rows of the context again",
        is_linear=True,
        context=lambda model: packed_and_patched(model, "decoding_state_class", WithoutCache),
    ),
    "one-by-one": partial(
        sample_any_order,
        remark="cache; one token per pass, in a random order: an exact sample of the model",
        takes_steps=False,
    ),
    "left-to-right": partial(
        sample_any_order,
        remark="like one-by-one, but from left to right",
        takes_steps=False,
        order="left_to_right",
        stop_at_eos=False,
    ),
    "speculative": partial(
        sample_any_order,
        remark="an exact sample like one-by-one, with drafts from the model itself",
        takes_steps=False,
        strategy="speculative",
    ),
    "prompt-lookup": partial(
        sample_any_order,
        remark="an exact sample like one-by-one, with drafts from the text so far",
        takes_steps=False,
        strategy="speculative",
        draft="prompt_lookup",
    ),
    "plain-products": partial(
        sample_any_order,
        remark="on a CPU: PyTorch's default matrix products, without packed weights",
        context=lambda model: torch.backends.mkldnn.flags(enabled=False),
    ),
    "no-graphs": partial(
        sample_any_order,
        remark="on a GPU: without CUDA graphs, so the CPU launches operations one by one",
        context=lambda model: patch.object(decoding_state, "MIN_PASSES_TO_PREPARE", math.inf),
    ),
    "sorted-vocabulary": partial(
        sample_any_order,
        remark="the vocabulary is sorted for every token, as top-p does",
        logits_processor=LogitsProcessorList([sort_vocabulary]),
    ),
}

# Configuration of each encoder, without the sizes (such as `hidden_size`), which are those of the decoder.
ENCODERS: dict[str, dict[str, Any]] = {"encoder": {}, "sedd": SEDD.settings}


def make_encoder(name: str, config: AOGPTConfig) -> MDMEncoderForMaskedLM:
    """Return the encoder `name` of `ENCODERS`, with random weights and the sizes of the decoder of `config`."""
    sizes = {key: getattr(config, key) for key in AOGPTConfig.__annotations__}
    sizes["vocab_size"] = max(config.vocab_size, config.mask_token_id + 1)  # encoders embed the mask token
    return MDMEncoderForMaskedLM(MDMEncoderConfig(**sizes | ENCODERS[name]))


def sample_encoder(model: MDMEncoderForMaskedLM) -> Contender:
    """Return a contender that generates with an encoder. SEDD models have their own sampler; others use Lemma 4.1."""
    if model.config.target_injection == "sigma":
        remark = "SEDD with its sampler: a step predicts all masked positions, and the score selects those it unmasks"
        return sample_any_order(model, remark, is_linear=True, unmasking="analytic")
    remark = "full attention, so no cache; a step draws only the positions it unmasks (Lemma 4.1)"
    return sample_any_order(model, remark, is_linear=True)


# ----------------------------------------------------------------------------------------------------- other models


def load_causal_lm(name: str, config: AOGPTConfig, length: int, **options: Any) -> PreTrainedModel:
    """
    Return a causal language model that can generate `length` tokens.

    `name` is a folder or Hub name, or a model type of Transformers, such as `llama`. For a model type, the weights are
    random, and the sizes are those of `config`. `options` are arguments of `from_pretrained`, such as `dtype`.
    """
    if name in CONFIG_MAPPING:
        names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
        sizes = {key: getattr(config, key) for key in names}
        sizes["max_position_embeddings"] = config.max_position_embeddings + 1 + LOOKUP_TOKENS
        if name != "gpt2":  # a gated MLP has three matrices instead of two, so each has 2/3 of the width
            sizes |= {
                "intermediate_size": config.intermediate_size * 2 // 3,
                "num_key_value_heads": config.num_attention_heads,
            }
        model = AutoModelForCausalLM.from_config(
            CONFIG_MAPPING[name](**sizes, bos_token_id=0, eos_token_id=None), **options
        )
    else:
        model = load_pretrained(AutoModelForCausalLM, name, **options)
    longest = longest_sequence(model.config) or length
    if length > longest:
        raise ValueError(f"`length` must be at most {longest} for {name}, but is {length}. Decrease `length`.")
    return model.eval()


def sample_causal_lm(name: str, model: PreTrainedModel, length: int, compiles: bool = False) -> dict[str, Contender]:
    """
    Return contenders, by name, that generate `length` tokens with Transformers' `generate`.

    There are up to three: with the default cache, with a static cache, and with prompt lookup. The last pass of prompt
    lookup may draft tokens after the end of the text. Prompt lookup is left out if the model has too few positions for
    these tokens.
    """
    config, vocab_size = model.generation_config, model.config.get_text_config().vocab_size
    start_id = next((id for id in (config.bos_token_id, config.eos_token_id) if isinstance(id, int)), 0)
    # Saved settings could change the distribution. With end-of-text, a sequence could be shorter than `length`.
    model.generation_config = GenerationConfig(bos_token_id=start_id)

    def make(remark: str, max_batch_size: int | None = None, **settings: Any) -> Contender:
        def generate(batch_size: int, length: int, num_steps: int) -> torch.LongTensor:
            start = torch.full((batch_size, 1), start_id, device=model.device)
            mask, sampling = torch.ones_like(start), {"do_sample": True, "top_k": 0, "pad_token_id": 0}
            output = model.generate(start, attention_mask=mask, max_new_tokens=length, **sampling, **settings)
            return output[:, 1:]

        return Contender(generate, remark, vocab_size, model.num_parameters(), False, max_batch_size=max_batch_size)

    static: dict[str, Any] = {"cache_implementation": "static"}
    if compiles:
        static["compile_config"] = CompileConfig()
        static["compile_config"]._compile_all_devices = True  # otherwise, Transformers compiles nothing on a CPU
    contenders = {
        name: make("left to right, one token per pass, with the default cache"),
        f"{name} static-cache": make("left to right, with a static cache, compiled on a GPU or by --compile", **static),
    }
    longest = longest_sequence(model.config)
    if longest is None or length + LOOKUP_TOKENS < longest:
        remark = "left to right, with drafts from the text so far; Transformers supports only batch size 1"
        # For prompt lookup, some versions of Transformers need an end-of-text id. This id is outside the vocabulary, so
        # the model never generates it.
        drafts = {"prompt_lookup_num_tokens": LOOKUP_TOKENS, "eos_token_id": vocab_size}
        contenders[f"{name} prompt-lookup"] = make(remark, 1, **drafts)
    return contenders


def make_compared(name: str, config: AOGPTConfig, device: torch.device, dtype: torch.dtype) -> Contender:
    """
    Return a contender with a user's sampler.

    `name` is `module:function`. The function is called with `config`, `device` and `dtype`. It must return a function
    of the type `Generate`.
    """
    module_name, _, function_name = name.partition(":")
    try:
        make = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"`compare` ({name!r}) cannot be imported. Set it to module:function, and add the folder of the module to "
            f"PYTHONPATH. (Cause: {error})"
        ) from error
    return Contender(make(config, device, dtype), f"the function {name}", config.vocab_size)


# -------------------------------------------------------------------------------------------------------------- all

CONTENDERS = (*DECODERS, *ENCODERS, *CAUSAL_LMS)


def make_contenders(
    names: Sequence[str], decoder: AOGPTForAnyOrderLM, length: int, compiles: bool = False
) -> dict[str, Contender]:
    """
    Return contenders, by name, with the device and dtype of a decoder.

    `names` are names in `CONTENDERS`, and folders, Hub names or model types of causal language models. Encoders have
    random weights and the sizes of the decoder. With `compiles`, encoders and causal language models with a static
    cache are compiled. (The caller compiles the decoder.)
    """
    device, dtype = decoder.device, decoder.dtype
    contenders = {}
    for name in names:
        if name in DECODERS:
            contenders[name] = DECODERS[name](decoder)
        elif name in ENCODERS:
            with device:
                encoder = make_encoder(name, decoder.config).eval().to(dtype)
            if compiles:
                encoder.model.compile()
            contenders[name] = sample_encoder(encoder)
        else:
            with device:
                model = load_causal_lm(name, decoder.config, length, dtype=dtype).to(device)
            contenders |= sample_causal_lm(name, model, length, compiles)
    return contenders
