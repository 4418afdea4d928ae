# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers with a mask token. The mask has the highest id: every id below it stands for text."""

import os

from transformers import AddedToken, AutoTokenizer, PreTrainedTokenizerBase

from .configuration_aogpt import AOGPTConfig
from .configuration_mdm_encoder import MDMEncoderConfig

# The blank before a mask is part of it, as the blank before a word is: "LETTER <|mask|> WITH" is filled in as it reads.
MASK = AddedToken("<|mask|>", lstrip=True, special=True)


def load_tokenizer(name_or_path: str) -> PreTrainedTokenizerBase:
    """
    Load a tokenizer from the Hub or a folder, and add a mask token if it has none.

    Args:
        name_or_path (`str`): Hub name or folder.

    Raises:
        ValueError: If there is no tokenizer, or it has no end-of-text token.
    """
    is_folder = os.path.isdir(name_or_path)
    if is_folder and not any(name.startswith(("tokenizer", "vocab")) for name in os.listdir(name_or_path)):
        raise ValueError(f"{name_or_path} contains no tokenizer. Use the one that the model was trained with.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_path)
    except Exception as error:  # a damaged file can raise errors of any kind
        raise ValueError(
            f"The tokenizer {name_or_path!r} cannot be loaded from the Hub or a folder: {error}"
        ) from error
    if tokenizer.eos_token_id is None:
        raise ValueError(f"The tokenizer {name_or_path!r} has no end-of-text token. Set its `eos_token`, and save it.")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return add_mask_token(tokenizer)


def load_matching_tokenizer(config: AOGPTConfig | MDMEncoderConfig, name_or_path: str) -> PreTrainedTokenizerBase:
    """
    Load a tokenizer to save with a model of this configuration.

    Args:
        config (`AOGPTConfig` or `MDMEncoderConfig`): Configuration of the model.
        name_or_path (`str`): Hub name or folder.

    Raises:
        ValueError: If its mask has another id than the configuration's, or as in [`load_tokenizer`].
    """
    tokenizer = load_tokenizer(name_or_path)
    if tokenizer.mask_token_id != config.mask_token_id:
        raise ValueError(
            f"The tokenizer {name_or_path!r} does not fit the model: its mask has the id {tokenizer.mask_token_id}, "
            f"the model's has {config.mask_token_id}. Use the tokenizer that the model was trained with."
        )
    tokenizer.model_max_length = config.max_position_embeddings
    return tokenizer


def add_mask_token(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """
    Add the mask token `<|mask|>` after all other ids, unless the tokenizer already has a mask there, and return it.

    A mask between other tokens, as BERT's, cannot be used: a model predicts all ids below its mask.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer, changed in place.

    Raises:
        ValueError: If `<|mask|>` is already another token.
    """
    last = max(tokenizer.get_vocab().values())
    if tokenizer.mask_token_id != last:
        tokenizer.add_special_tokens({"mask_token": MASK})
        if tokenizer.mask_token_id != last + 1:
            raise ValueError(
                f"{MASK.content} is already a token of this tokenizer (id {tokenizer.mask_token_id}, the last id is "
                f"{last}). Rename that token, or remove it from the vocabulary."
            )
    return tokenizer
