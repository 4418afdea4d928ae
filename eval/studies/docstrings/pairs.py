# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Command that cuts pairs for fine-tuning from the standard library of this Python.

    python eval/studies/docstrings/pairs.py

A pair is the head of a function with its docstring, and its body. The command writes train.jsonl and held_out.jsonl to
the current folder. The held-out pairs are from the files that training on the corpus `python-stdlib` holds out.
"""

import ast
import json
from collections.abc import Iterator
from textwrap import dedent

from common.corpora import python_stdlib
from common.data_arguments import DataArguments
from common.splitting import is_held_out, sha256


def cut_pairs(source: str) -> Iterator[dict[str, str]]:
    """Yield a `prompt` and its `completion` for each function of `source` with a docstring and a body after it."""
    lines = source.split("\n")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) and len(node.body) > 1:
            function = dedent("\n".join(lines[node.lineno - 1 : node.end_lineno])).split("\n")
            end = node.body[0].end_lineno - node.lineno + 1  # of the docstring
            prompt, completion = ("\n".join(part) + "\n" for part in (function[:end], function[end:]))
            yield {"prompt": prompt, "completion": completion}


def main() -> None:
    """Run the command."""
    with open("train.jsonl", "w", encoding="utf-8") as train, open("held_out.jsonl", "w", encoding="utf-8") as held_out:
        for path, source in python_stdlib():
            file = held_out if is_held_out(sha256(path), DataArguments.validation_fraction) else train
            file.writelines(json.dumps(pair) + "\n" for pair in cut_pairs(source))


if __name__ == "__main__":
    main()
