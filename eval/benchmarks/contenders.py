# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Contenders: the samplers that `speed.py` times. Each is a model with a way to generate.

To add a sampler, add its settings to `SAMPLERS`. To add an encoder, also add its configuration to `ENCODERS`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from common.commands import import_function
from common.models import longest_sequence
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderConfig, MDMEncoderForMaskedLM
from modeling_aogpt.convert_reference_checkpoint import SEDD
from modeling_aogpt.decoding_state import CachedDecodingState, QueryResult
from modeling_aogpt.loading import Model, load_pretrained
from modeling_aogpt.unmasking import ScheduledUnmasking

# Called as generate(batch_size, length, num_steps). Returns ids of shape (batch_size, length).
Generate = Callable[[int, int, int], torch.LongTensor]

BLOCK_LENGTH = 32  # as in the examples of LLaDA's authors


@dataclass
class Contender:
    """A sampler to time."""

    generate: Generate
    remark: str  # what the contender computes and samples, for the report
    num_ids: int  # the ids from 0 to `num_ids` - 1 may be generated
    num_parameters: int | None = None  # if known
    takes_steps: bool = True  # whether the number of steps is given; otherwise, the contender chooses it itself

    def sample(self, batch_size: int, length: int, num_steps: int) -> torch.LongTensor:
        """Generate ids (batch_size, length). Raise a `ValueError` if the shape is wrong, or an id is not allowed."""
        ids = self.generate(batch_size, length, num_steps)
        if ids.shape != (batch_size, length) or ids.min() < 0 or ids.max() >= self.num_ids:
            raise ValueError(
                f"A contender ({self.remark}) must return ids from 0 to {self.num_ids - 1} of shape ({batch_size}, "
                f"{length}), but returned ids from {ids.min()} to {ids.max()} of shape {tuple(ids.shape)}. Do not "
                "return mask tokens, or ids that only pad the vocabulary."
            )
        return ids


# ------------------------------------------------------------------------------------------- models of this package


def sample_any_order(
    model: Model,
    remark: str,
    takes_steps: bool = True,
    context: Callable[[Model], AbstractContextManager] = nullcontext,
    **settings: Any,
) -> Contender:
    """Return a contender that calls `generate` of a model of this package.

    `context` maps the model to a context manager, which can change the model during a generation. `settings` are
    arguments of `model.generate`. See `Contender` for the other arguments.
    """
    if takes_steps:
        settings = {"unmasking": "fixed_count"} | settings

    def generate(batch_size: int, length: int, num_steps: int) -> torch.LongTensor:
        steps = {"num_steps": num_steps} if takes_steps else {}
        with context(model):
            return model.generate(num_return_sequences=batch_size, max_length=length, **steps, **settings)

    return Contender(generate, remark, model.config.num_valid_tokens, model.num_parameters(), takes_steps)


class WithoutCache(CachedDecodingState):
    """Decoding state without a cache: every pass recomputes all rows of the context."""

    def query(self, num_queries: torch.LongTensor) -> QueryResult:
        """Predict the next `num_queries[b]` masked ranks of sequence b, each given all unmasked tokens of b."""
        self.num_cached.zero_()
        return super().query(num_queries)

    def fill_in(self, *arguments: Any) -> bool:
        """Do what `query` does in a recorded step."""
        self.num_cached.zero_()
        return super().fill_in(*arguments)


# Arguments of `sample_any_order` by name: first for decoders, then for encoders. `patch.object` changes an attribute
# while the contender generates.
SAMPLERS: dict[str, dict[str, Any]] = {
    "decoder": {"remark": "cache; a step queries only the positions it unmasks (Lemma 4.1)"},
    "no-lemma": {
        "remark": "cache; a step queries all masked positions, draws a token for each, and keeps a part of them",
        "context": lambda model: patch.object(ScheduledUnmasking, "is_adaptive", True),
    },
    "confidence-blocks": {
        "remark": f"cache; blocks of {BLOCK_LENGTH} positions; a step queries the masked positions of the current "
        "block, and keeps those of which the model is most certain",
        **{"order": "confidence", "block_length": BLOCK_LENGTH, "stop_at_eos": False},
    },
    "no-cache": {
        "remark": "a step computes all rows of the context again",
        "context": lambda model: patch.object(model, "decoding_state_class", WithoutCache),
    },
    "one-by-one": {
        "remark": "cache; one token per pass, in a random order: an exact sample of the model",
        "takes_steps": False,
    },
    "left-to-right": {
        "remark": "like one-by-one, but from left to right",
        **{"takes_steps": False, "order": "left_to_right", "stop_at_eos": False},
    },
    "speculative": {
        "remark": "an exact sample like one-by-one, with drafts from the model itself",
        **{"takes_steps": False, "strategy": "speculative"},
    },
    "prompt-lookup": {
        "remark": "an exact sample like one-by-one, with drafts from the text so far",
        **{"takes_steps": False, "strategy": "speculative", "draft": "prompt_lookup"},
    },
    "encoder": {"remark": "full attention, so no cache; a step draws only the positions it unmasks (Lemma 4.1)"},
    "sedd": {
        "remark": "SEDD with its sampler: a step predicts all masked positions, and the score selects those it unmasks",
        "unmasking": "analytic",
    },
}

# Configuration of each encoder. Sizes, such as `hidden_size`, are taken from the decoder.
ENCODERS: dict[str, dict[str, Any]] = {"encoder": {}, "sedd": SEDD.settings}


def make_encoder(name: str, config: AOGPTConfig) -> MDMEncoderForMaskedLM:
    """Return the encoder `name` of `ENCODERS`, with random weights and the sizes in a decoder's `config`."""
    sizes = {key: getattr(config, key) for key in AOGPTConfig.__annotations__}
    sizes["vocab_size"] = max(config.vocab_size, config.mask_token_id + 1)  # encoders embed the mask token
    return MDMEncoderForMaskedLM(MDMEncoderConfig(**sizes | ENCODERS[name]))


# ----------------------------------------------------------------------------------------------------- other models


def make_llama(config: AOGPTConfig) -> PreTrainedModel:
    """Return a Llama of Transformers with random weights and the sizes of the decoder of `config`."""
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    sizes = {name: getattr(config, name) for name in names}
    llama_config = LlamaConfig(
        **sizes,
        num_key_value_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size * 2 // 3,  # its MLP has three matrices instead of two
        max_position_embeddings=config.max_position_embeddings + 1,
        bos_token_id=0,
    )
    return LlamaForCausalLM(llama_config)


def load_causal_lm(name: str, length: int) -> PreTrainedModel:
    """Load the causal language model of a folder or Hub name, which must be able to generate `length` tokens."""
    model = load_pretrained(AutoModelForCausalLM, name)
    longest = longest_sequence(model.config) or length
    if length > longest:
        raise ValueError(f"`length` must be at most {longest} for {name}, but is {length}. Decrease `length`.")
    return model


def sample_causal_lm(model: PreTrainedModel, compiles: bool = False) -> Contender:
    """Return a contender that generates with Transformers' `generate` and, with `compiles`, a static cache."""
    config, vocab_size = model.generation_config, model.config.get_text_config().vocab_size
    start_id = next((id for id in (config.bos_token_id, config.eos_token_id) if isinstance(id, int)), 0)
    # Saved settings could change the distribution. With end-of-text, a sequence could be shorter than `length`.
    model.generation_config = GenerationConfig(bos_token_id=start_id)
    settings = {"do_sample": True, "top_k": 0, "pad_token_id": 0}
    settings |= {"cache_implementation": "static"} if compiles else {}

    def generate(batch_size: int, length: int, num_steps: int) -> torch.LongTensor:
        start = torch.full((batch_size, 1), start_id, device=model.device)
        return model.generate(start, attention_mask=torch.ones_like(start), max_new_tokens=length, **settings)[:, 1:]

    cache = "a static cache (on a GPU, Transformers compiles it)" if compiles else "the default cache"
    remark = f"left to right, one token per pass, with {cache}"
    return Contender(generate, remark, vocab_size, model.num_parameters(), takes_steps=False)


# -------------------------------------------------------------------------------------------------------------- all

CONTENDERS = (*SAMPLERS, "llama")


def make_contenders(
    names: Sequence[str], decoder: AOGPTForAnyOrderLM, length: int, compiles: bool = False
) -> dict[str, Contender]:
    """Return contenders, by name, with the device and dtype of a decoder.

    `names` are names in `CONTENDERS`, folders or Hub names of causal language models, and a user's own functions as
    `module:function`. Such a function gets the configuration, the device and the dtype of `decoder`, and must return a
    function of the type `Generate`. The encoders and `llama` have random weights. With `compiles`, encoders and
    causal language models are compiled. (The caller compiles the decoder.)
    """
    contenders = {}
    for name in names:
        if ":" in name:
            generate = import_function("contender", name)(decoder.config, decoder.device, decoder.dtype)
            contenders[name] = Contender(generate, f"the function {name}", decoder.config.vocab_size)
            continue
        with decoder.device:
            if name in SAMPLERS:
                model = make_encoder(name, decoder.config) if name in ENCODERS else decoder
            else:
                model = make_llama(decoder.config) if name == "llama" else load_causal_lm(name, length)
        model = model.eval().to(decoder.device, decoder.dtype)
        if compiles and name in ENCODERS:
            model.model.compile()
        if name in SAMPLERS:
            contenders[name] = sample_any_order(model, **SAMPLERS[name])
        else:
            contenders[name] = sample_causal_lm(model, compiles)
    return contenders
