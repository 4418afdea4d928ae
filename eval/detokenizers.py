# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
From the tokenised text of the benchmark data sets back to ordinary text, by the rules behind the published zero-shot
tables (SEDD, RADD and AO-GPT share them). The order of the rules matters.
"""

import re
from collections.abc import Iterable

Replacements = Iterable[tuple[str, str]]

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
    *[(" N ", " 1 ")] * 10,  # neighbours share a blank, so one pass leaves every second of them
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
    text = replace(text, WIKITEXT_MARKS)
    for opening, closing in WIKITEXT_PAIRS:
        inside = rf"\{opening}\s*([^\{closing}]*?)\s*\{closing}"
        text = re.sub(inside, rf"{opening}\1{closing}", text)
    return replace(text, WIKITEXT_REST)


def detokenize_ptb(text: str) -> str:
    return replace(text, PTB)


def detokenize_lm1b(text: str) -> str:
    for pattern, replacement in LM1B:
        text = re.sub(pattern, replacement, text)
    return text


def detokenize_lambada(text: str) -> str:
    """Straight quotes, and a line break in front."""
    return "\n" + replace(text, (("“", '"'), ("”", '"'))).strip()


def replace(text: str, replacements: Replacements) -> str:
    for old, new in replacements:
        text = text.replace(old, new)
    return text
