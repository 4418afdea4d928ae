# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The mask token of a tokenizer: every id below it stands for text, none above it exists."""

import os

from transformers import AddedToken, AutoTokenizer, PreTrainedTokenizerBase

from .configuration_aogpt import AOGPTConfig
from .configuration_mdm_encoder import MDMEncoderConfig

# The blank before a mask belongs to it, as one belongs to every word: "LETTER <|mask|> WITH" fills as it reads.
MASK = AddedToken("<|mask|>", lstrip=True, special=True)


def load_tokenizer(name_or_path: str) -> PreTrainedTokenizerBase:
    """Any tokenizer of the Hub or of a folder, given a mask token of its own.

    Raises:
        ValueError: if there is none, or it has no end-of-text token.
    """
    is_folder = os.path.isdir(name_or_path)
    if is_folder and not any(name.startswith(("tokenizer", "vocab")) for name in os.listdir(name_or_path)):
        raise ValueError(f"{name_or_path} has no tokenizer: name the one that its model was trained with.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_path)
    except Exception as error:  # the library raises whatever a damaged file makes it stumble over
        raise ValueError(f"There is no tokenizer {name_or_path!r}, on the Hub or as a folder: {error}") from error
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"The tokenizer {name_or_path!r} has no end-of-text token (eos_token); set it and save it first."
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return with_mask_token(tokenizer)


def tokenizer_of(config: AOGPTConfig | MDMEncoderConfig, name_or_path: str) -> PreTrainedTokenizerBase:
    """As `load_tokenizer`, for a model to be saved with. Raises a `ValueError` if it is another model's, too."""
    tokenizer = load_tokenizer(name_or_path)
    if tokenizer.mask_token_id != config.mask_token_id:
        raise ValueError(
            f"The tokenizer {name_or_path!r} has {tokenizer.mask_token_id} tokens before its mask, but the model "
            f"{config.mask_token_id}: name the one that the model was trained with."
        )
    tokenizer.model_max_length = config.max_position_embeddings
    return tokenizer


def with_mask_token(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Gives a tokenizer the mask token `<|mask|>` behind all its ids, unless its mask token already stands there.

    A mask token among the others (as BERT's) will not do: ids below the mask are those that a model can predict.
    """
    last = max(tokenizer.get_vocab().values())
    if tokenizer.mask_token_id != last:
        tokenizer.add_special_tokens({"mask_token": MASK})
        if tokenizer.mask_token_id != last + 1:
            raise ValueError(
                f"{MASK.content} is already a token of this tokenizer (id {tokenizer.mask_token_id} of {last})."
            )
    return tokenizer
