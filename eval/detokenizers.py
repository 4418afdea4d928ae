# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Detokenizers: rules that turn the tokenized text of the benchmark datasets into ordinary text.

The published zero-shot tables of SEDD, RADD and AO-GPT were computed with these rules. Their order matters,
because a rule may match the result of an earlier rule.
"""

import re
from collections.abc import Iterable

# A rule is a pair (old, new). In LM1B, the old texts are regular expressions.
WIKITEXT_MARKS = (
    ("s '", "s'"),
    (" @-@ ", "-"),
    (" @,@ ", ","),
    (" @.@ ", "."),
    *((f" {mark} ", f"{mark} ") for mark in ":;.!?,"),
)
WIKITEXT_PAIRS = ("()", "[]", "{}", '""', "''")
WIKITEXT_REST = (
    *((" ".join("=" * count), "=" * count) for count in (4, 3, 2)),
    (" ° ", "°"),
    (" \n", "\n"),
    ("\n ", "\n"),
    (" N ", " 1 "),
    (" 's", "'s"),
)
PTB = (
    (" 's", "'s"),
    ("s ' ", "s' "),
    (" n't", "n't"),
    (" \n ", "\n"),
    ("\\/", "/"),
    *[(" N ", " 1 ")] * 10,  # in " N N ", the two matches share a space, so each pass replaces only one N
    ("$ 1", "$1"),
    ("# 1", "#1"),
    ("<unk>", "?"),
)
LM1B = (
    (r"http : / / ", "http://"),
    (r"https : / / ", "https://"),
    (r" '(\w+)", r"'\1"),
    (r" (\w+) \. ", r" \1. "),
    (r" (\w+) \.$", r" \1."),
    (r" \? ", "? "),
    (r" \?$", "?"),
    (r" ! ", "! "),
    (r" !$", "!"),
    (r" , ", ", "),
    (r" : ", ": "),
    (r" ; ", "; "),
    (r" / ", "/"),
    (r'" ([^"]+) "', r'"\1"'),
    (r"' ([^']+) '", r"'\1'"),
    (r"\( ([^()]+) \)", r"(\1)"),
    (r"\[ ([^\[\]]+) \]", r"[\1]"),
    (r"\$ ", "$"),
    (r"£ ", "£"),
)


def detokenize_wikitext(text: str) -> str:
    """Detokenize a document of WikiText-2 or WikiText-103."""
    text = _replace(text, WIKITEXT_MARKS)
    for opening, closing in WIKITEXT_PAIRS:
        inside = rf"\{opening}\s*([^\{closing}]*?)\s*\{closing}"
        text = re.sub(inside, rf"{opening}\1{closing}", text)
    return _replace(text, WIKITEXT_REST)


def detokenize_ptb(text: str) -> str:
    """Detokenize a document of the Penn Treebank."""
    return _replace(text, PTB)


def detokenize_lm1b(text: str) -> str:
    """Detokenize a document of the One Billion Word benchmark."""
    for pattern, replacement in LM1B:
        text = re.sub(pattern, replacement, text)
    return text


def detokenize_lambada(text: str) -> str:
    """Detokenize a document of LAMBADA: make quotes straight, strip whitespace, and put a line break at the start."""
    return "\n" + _replace(text, (("“", '"'), ("”", '"'))).strip()


def _replace(text: str, replacements: Iterable[tuple[str, str]]) -> str:
    for old, new in replacements:
        text = text.replace(old, new)
    return text
