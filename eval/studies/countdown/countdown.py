# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Countdown problems: make a number from three or four given numbers, each used once, with +, -, * and parentheses.

A text is `[NUMBERS=TARGET:]EXPRESSION`, such as `[2 5 7=37:]5*7+2`, where the context is in brackets. Only texts of
at most `LENGTH` characters are used. A held-out problem has other numbers, or another target, than all others.
"""

import ast
import operator
from collections.abc import Iterator
from functools import cache
from itertools import islice
from random import Random

from common.data_arguments import DataArguments
from common.splitting import is_held_out, sha256
from modeling_aogpt.tokenization import MASK

NUM_PROBLEMS = 50_000
LENGTH = 31  # characters of the numbers, the target and the expression, without end-of-text
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
NODES = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def problems() -> Iterator[tuple[str, str, str]]:
    """Yield `NUM_PROBLEMS` different numbers with a target between 1 and 99, and an expression with this value."""
    rng, seen = Random("countdown"), set()
    while len(seen) < NUM_PROBLEMS:
        numbers = [rng.randint(1, 20) for _ in range(rng.choice((3, 4)))]
        text, value = _draw_expression(numbers, rng)
        given = " ".join(map(str, sorted(numbers)))
        if 1 <= value <= 99 and (given, value) not in seen and len(f"{given}={value}:{text}") <= LENGTH:
            seen.add((given, value))
            yield given, str(value), text


def _draw_expression(numbers: list[int], rng: Random) -> tuple[str, int]:
    """Return a random expression of the numbers, in this order, and its value."""
    if len(numbers) == 1:
        return str(numbers[0]), numbers[0]
    size, name = rng.randrange(1, len(numbers)), rng.choice("+-*")
    (left, first), (right, second) = (_draw_expression(part, rng) for part in (numbers[:size], numbers[size:]))
    if name == "*" and ("+" in left or "-" in left):
        left = f"({left})"
    if name != "+" and ("+" in right or "-" in right):
        right = f"({right})"
    return f"{left}{name}{right}", OPERATORS[name](first, second)


def solutions() -> Iterator[tuple[str, str]]:
    """Yield pairs (key, text) to train the initial model on."""
    return ((f"{given}={target}", f"[{given}={target}:]{text}") for given, target, text in problems())


def prompts() -> Iterator[tuple[str, str]]:
    """Yield pairs (key, prompt). Masks are in the places of the expression and of end-of-text."""
    for given, target, _ in problems():
        prompt = f"{given}={target}:"
        yield f"{given}={target}", prompt + str(MASK) * (LENGTH + 1 - len(prompt))


@cache  # all runs and decodings solve the same problems
def held_out_prompts(count: int) -> list[str]:
    """Return the first `count` prompts that training with the default `validation_fraction` does not use."""
    fraction = DataArguments().validation_fraction
    return list(islice((prompt for key, prompt in prompts() if is_held_out(sha256(key), fraction)), count))


def solved(prompts: list[str], completions: list[str]) -> list[float]:
    """Return 1 for each completion that solves its problem, and 0 for others."""
    return [float(is_solution(*pair)) for pair in zip(prompts, completions, strict=True)]


def is_solution(prompt: str, completion: str) -> bool:
    """Return whether the text after the prompt is an expression of all given numbers whose value is the target."""
    problem = prompt.replace(str(MASK), "")
    given, target = problem.removesuffix(":").split("=")
    try:
        tree = ast.parse(completion.removeprefix(problem), mode="eval").body
        numbers, value = sorted(_numbers_of(tree)), _evaluate(tree)
    except (SyntaxError, ValueError, KeyError, MemoryError, RecursionError):
        return False
    return completion.startswith(problem) and numbers == sorted(map(int, given.split())) and value == int(target)


def _numbers_of(tree: ast.AST) -> list[int]:
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) is int]


def _evaluate(tree: ast.AST) -> int:
    """Return the value of an expression. Raise a `ValueError` or a `KeyError` if it has other parts."""
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        return tree.value
    if not isinstance(tree, ast.BinOp):
        raise ValueError(f"An expression must have only +, -, * and numbers, but has {ast.dump(tree)}.")
    return NODES[type(tree.op)](_evaluate(tree.left), _evaluate(tree.right))
