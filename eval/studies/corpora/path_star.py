# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Path-star graphs: paths of equal length that have only their first node in common (arXiv 2403.06963).

The text `cd ab ae ef bc fg/ad=abcd` contains the edges of a graph in random order, the first and the last node of one
of its paths, and the nodes of this path. Nodes are letters or digits. A model that writes the path from left to right
must plan it from its end, because any neighbour of the first node may be the second. All random choices depend only on
seeds.
"""

import string
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from random import Random

NODES = string.ascii_letters + string.digits
NUM_DRAWN = 100_000  # graphs to draw; those for tests are then removed
TEST_FRACTION = 1 / 8  # fraction of all graphs that are used only for tests


def draw_graph(num_paths: int, length: int, rng: Random) -> tuple[str, str, str]:
    """Draw a graph, and one of its paths.

    Returns:
        A key, which is the same for all texts of a graph; the text up to and including `=`; and the nodes of the path.
    """
    first, *others = rng.sample(NODES, 1 + num_paths * (length - 1))
    paths = [first + "".join(others[start::num_paths]) for start in range(num_paths)]
    edges = [start + end for path in paths for start, end in pairwise(path)]
    rng.shuffle(edges)
    path = rng.choice(paths)
    return " ".join(sorted(paths)), f"{' '.join(edges)}/{first}{path[-1]}=", path


def is_test_graph(key: str) -> bool:
    """Return whether the graph with this key is used only for tests."""
    return Random(f"test {key}").random() < TEST_FRACTION


def training_texts(num_paths: int, length: int) -> Iterator[tuple[str, str]]:
    """Yield a pair (key, text) for each drawn graph that is not used for tests.

    The part of the text before the path is in brackets, which mark the context.
    """
    rng = Random("graphs")
    for _ in range(NUM_DRAWN):
        key, question, path = draw_graph(num_paths, length, rng)
        if not is_test_graph(key):
            yield key, f"[{question}]{path}"


def held_out_texts(num_paths: int, length: int, count: int) -> list[tuple[str, str]]:
    """Return `count` pairs of texts of test graphs: one with `_` for each node of the path, and the complete text."""
    rng, texts = Random("test graphs"), []
    while len(texts) < count:
        key, question, path = draw_graph(num_paths, length, rng)
        if is_test_graph(key):
            texts.append((question + "_" * length, question + path))
    return texts


# Corpora for the option `corpus`.
path_star_2_5 = partial(training_texts, 2, 5)
path_star_5_5 = partial(training_texts, 5, 5)
path_star_2_10 = partial(training_texts, 2, 10)
