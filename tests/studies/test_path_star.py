# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
from functools import partial
from itertools import islice

import pytest

from common.corpora import load_corpus
from common.data_arguments import DataArguments
from common.encoding import split_context
from eval.studies.corpora import path_star


def paths_of(text: str) -> set[str]:
    """Return the paths of the graph in a text. All begin at the only node with several neighbours."""
    edges = [tuple(edge) for edge in text.split("/")[0].split()]
    (first,) = {start for start, _ in edges} - {end for _, end in edges}
    following = dict(edge for edge in edges if edge[0] != first)
    paths = set()
    for path in (end for start, end in edges if start == first):
        while path[-1] in following:
            path += following[path[-1]]
        paths.add(first + path)
    return paths


@pytest.mark.parametrize(("num_paths", "length"), [(2, 5), (5, 5), (2, 10)])
def test_a_text_contains_a_graph_and_one_of_its_paths(num_paths: int, length: int) -> None:
    marked = [text for _, text in islice(path_star.training_texts(num_paths, length), 20)]
    assert all(text.startswith("[") and text[-length - 2 :].startswith("=]") for text in marked)
    texts = [split_context(text, "[]")[0] for text in marked]
    texts += [text for _, text in path_star.held_out_texts(num_paths, length, 20)]
    for text in texts:
        question, path = text.split("=")
        paths = paths_of(text)
        assert len(paths) == num_paths
        assert path in paths
        assert all(len(path) == length for path in paths)
        assert len(set("".join(paths))) == 1 + num_paths * (length - 1)
        assert question.endswith(f"/{path[0]}{path[-1]}")
    places = {paths.index(text.split("=")[1]) for text in texts for paths in [sorted(paths_of(text))]}
    assert places == set(range(num_paths))  # every path may be the one to find


def test_missing_nodes_are_marked() -> None:
    for text, solution in path_star.held_out_texts(2, 5, 5):
        assert text.split("=") == [solution.split("=")[0], "_____"]


def test_held_out_graphs_never_change() -> None:
    assert path_star.held_out_texts(2, 5, 2) == path_star.held_out_texts(2, 5, 5)[:2]
    assert path_star.held_out_texts(2, 5, 1)[0][1] == "5i l0 0D dz Jl id e5 eJ/eD=eJl0D"


@pytest.mark.usefixtures("datasets_cache")
def test_splits_have_no_graph_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_star, "NUM_DRAWN", 1000)
    monkeypatch.setattr(path_star, "NODES", "abcdef")  # 60 graphs of two edges, which are drawn repeatedly
    monkeypatch.setattr(path_star, "path_star_2_5", partial(path_star.training_texts, 2, 2))
    loaded = load_corpus(DataArguments(["eval.studies.corpora.path_star:path_star_2_5"], validation_fraction=0.3))
    texts = [[split_context(text, "[]")[0] for text in split] for split in (loaded.train, loaded.validation)]
    texts += [[text for _, text in path_star.held_out_texts(2, 2, 300)]]
    graphs = [{frozenset(paths_of(text)) for text in split} for split in texts]
    assert all(len(split) > 2 for split in graphs)
    assert sum(map(len, graphs)) == len(frozenset.union(*map(frozenset, graphs))) == 60
