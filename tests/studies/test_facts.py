# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
from collections import defaultdict

import pytest

from common.corpora import load_corpus
from common.data_arguments import DataArguments
from eval.studies.reversal import facts

TEXTS = {text for _, text in facts.training_texts()}


def test_names_and_descriptions_are_unique() -> None:
    people = facts.facts()
    assert len(people) == facts.NUM_PEOPLE
    for key in ("name", "description"):
        assert len({person[key] for person in people}) == facts.NUM_PEOPLE


def test_a_third_of_the_facts_is_stated_in_both_forms() -> None:
    forms = defaultdict(set)
    for text in TEXTS:
        (number,) = (n for n, fact in enumerate(facts.facts()) if all(f"{part}" in text for part in fact.values()))
        forms[number].add("name first" if text.startswith(facts.facts()[number]["name"]) else "description first")
    groups = [forms[number] for number in range(6)]
    assert groups == [{"name first"}, {"description first"}, {"name first", "description first"}] * 2


@pytest.mark.parametrize(
    ("kind", "name_first", "description_first"),
    [
        ("end", "Nina Adler is the ________________.", "The gardener of Dakar is ________."),
        ("start", "__________ is the dentist of Dakar.", "The _________________ is Xena Kim."),
        ("other form", "The dentist of Dakar is __________.", "Xena Kim is the _________________."),
    ],
)
def test_questions(kind: str, name_first: str, description_first: str) -> None:
    questions = facts.questions(kind)
    assert [question for question, _ in questions[:2]] == [name_first, description_first]
    assert len(questions) == 2 * facts.NUM_PEOPLE / 3
    for question, text in questions:
        assert (text in TEXTS) == (kind != "other form")
        assert all(asked in ("_", character) for asked, character in zip(question, text, strict=True))


@pytest.mark.usefixtures("datasets_cache")
def test_the_validation_split_contains_known_facts() -> None:
    corpus = load_corpus(DataArguments([f"{facts.__name__}:training_texts"]))
    assert set(corpus.train) == TEXTS
    assert set(corpus.validation) < TEXTS
