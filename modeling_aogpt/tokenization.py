# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Functions that load tokenizers and add a mask token with the highest id, so that all lower ids stand for text."""

import os
from pathlib import Path

from transformers import AddedToken, AutoTokenizer, PreTrainedTokenizerBase

from .configuration_aogpt import AOGPTConfig

# With `lstrip`, the mask token includes the space before it, because the token of a word also includes the space before
# the word. Otherwise, filling in "LETTER <|mask|> WITH" would leave two spaces after "LETTER".
MASK = AddedToken("<|mask|>", lstrip=True, special=True)


def load_tokenizer(name_or_path: str | Path) -> PreTrainedTokenizerBase:
    """
    Load a tokenizer from a Hub repository or folder, and give it a mask token (see [`add_mask_token`]).

    A tokenizer without a padding token gets its end-of-text token as padding token.

    Raises:
        ValueError: If no tokenizer can be loaded, or if the tokenizer has no end-of-text token.
    """
    is_folder = os.path.isdir(name_or_path)
    if is_folder and not any(name.startswith(("tokenizer", "vocab")) for name in os.listdir(name_or_path)):
        raise ValueError(
            f"The folder {name_or_path} contains no tokenizer. Pass the tokenizer that the model was trained with, "
            "or save it to this folder."
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, trust_remote_code=False)
    except Exception as error:  # a damaged file can raise errors of any kind
        raise ValueError(
            f"The tokenizer {name_or_path!r} cannot be loaded from the Hub or a folder: {error}"
        ) from error
    if tokenizer.eos_token_id is None:
        raise ValueError(f"The tokenizer {name_or_path!r} has no end-of-text token. Set its `eos_token` and save it.")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return add_mask_token(tokenizer)


def load_matching_tokenizer(config: AOGPTConfig, name_or_path: str) -> PreTrainedTokenizerBase:
    """Load a tokenizer as [`load_tokenizer`] does, and check that its mask token has the mask id of the model."""
    tokenizer = load_tokenizer(name_or_path)
    if tokenizer.mask_token_id != config.mask_token_id:
        raise ValueError(
            f"The tokenizer {name_or_path!r} does not fit the model: its mask has the id {tokenizer.mask_token_id}, "
            f"but the mask of the model has the id {config.mask_token_id}. Use the tokenizer that the model was "
            "trained with."
        )
    tokenizer.model_max_length = config.max_position_embeddings
    return tokenizer


def add_mask_token(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """
    Give the tokenizer the mask token `<|mask|>` with the highest id, and return the tokenizer.

    If the mask token already has the highest id, the tokenizer is not changed. A mask token with a lower id, such as
    BERT's, is replaced, because a model predicts every id below its mask id.

    Raises:
        ValueError: If `<|mask|>` is already a token with a lower id, or if the ids have gaps. (The tokenizer would then
            give the mask a lower id than another token.)
    """
    vocabulary = tokenizer.get_vocab()
    last = max(vocabulary.values())
    if tokenizer.mask_token_id != last:
        tokenizer.add_special_tokens({"mask_token": MASK})
        if tokenizer.mask_token_id != max(tokenizer.get_vocab().values()):
            cause, hint = "the ids of its other tokens have gaps", "Number the tokens from 0 without gaps."
            if MASK.content in vocabulary:
                cause, hint = "it is already a token", "Rename that token, or remove it from the vocabulary."
            raise ValueError(
                f"In this tokenizer, {MASK.content} has the id {tokenizer.mask_token_id} instead of {last + 1}, "
                f"because {cause}. {hint}"
            )
    return tokenizer
