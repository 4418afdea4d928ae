# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The mask token of a tokenizer: every id below it stands for text, none above it exists."""

from transformers import AddedToken, AutoTokenizer, PreTrainedTokenizerBase

# The blank before a mask belongs to it, as one belongs to every word: "LETTER <|mask|> WITH" fills as it reads.
MASK = AddedToken("<|mask|>", lstrip=True, special=True)


def load_tokenizer(name_or_path: str) -> PreTrainedTokenizerBase:
    """Any tokenizer of the Hub or of a folder, given a mask token of its own.

    Raises:
        ValueError: if there is none, or it has no end-of-text token.
    """
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
