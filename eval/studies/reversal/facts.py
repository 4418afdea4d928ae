# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Facts about invented people, for the reversal curse (arXiv 2309.12288).

A fact connects a name and a description. It is stated as `Ada Abel is the painter of Oslo.` (name first), as `The
painter of Oslo is Ada Abel.` (description first), or in both forms. A left-to-right model that has only seen the first
form can tell who Ada Abel is, but not who the painter of Oslo is. All random choices depend only on seeds.
"""

from collections.abc import Iterator
from itertools import product
from random import Random

FIRST_NAMES = (
    "Ada Bela Cora Dana Elsa Finn Gita Hugo Iris Jon Kai Lena Milo Nora Otto Pia Quin Rosa Sven Tara Ugo Vera Wim Xena "
    "Yuri Zoe Anton Berta Carl Doris Emil Flora Gustav Hanna Ivan Julia Klaus Linda Max Nina"
)
LAST_NAMES = (
    "Abel Brandt Costa Duval Engel Fox Grieg Haas Ivers Jansen Kovacs Lund Moreau Novak Olsen Prior Quist Rossi Silva "
    "Tanaka Urban Vogel Weber Xu Young Zeller Adler Berg Conti Dahl Evans Falk Garcia Holm Iglesias Juhl Kim Larsen "
    "Meyer Nagy"
)
JOBS = (
    "painter baker pilot judge tailor miner sailor dentist farmer poet barber butcher chemist cook dancer diver editor "
    "fisher gardener glazier hunter jeweller lawyer librarian mason mayor nurse organist plumber potter printer "
    "reporter roofer saddler sculptor smith surgeon teacher tutor weaver"
)
CITIES = (
    "Oslo Paris Cairo Lima Delhi Kyoto Quito Berlin Dublin Geneva Hanoi Izmir Jakarta Kyiv Lagos Madrid Nairobi Osaka "
    "Prague Quebec Riga Seoul Tunis Utrecht Vienna Warsaw Xian York Zagreb Athens Bergen Cadiz Dakar Essen Florence "
    "Ghent Havana Innsbruck Jena Krakow"
)
FORMS = ("{name} is the {description}.", "The {description} is {name}.")  # name first, description first
NUM_PEOPLE = 900
NUM_COPIES = 20  # copies of each sentence in the corpus, so that the validation split contains known facts


def facts() -> list[dict[str, str]]:
    """Return the name and the description of each person. No two people share a name or a description."""
    rng = Random("facts")
    names = rng.sample([" ".join(pair) for pair in product(FIRST_NAMES.split(), LAST_NAMES.split())], NUM_PEOPLE)
    descriptions = rng.sample([" of ".join(pair) for pair in product(JOBS.split(), CITIES.split())], NUM_PEOPLE)
    return [{"name": name, "description": description} for name, description in zip(names, descriptions, strict=True)]


def known_forms(number: int) -> tuple[str, ...]:
    """Return the forms in which the training texts state fact `number`: the first, the second, or both."""
    return (FORMS[:1], FORMS[1:], FORMS)[number % 3]


def training_texts() -> Iterator[tuple[str, str]]:
    """Yield pairs (key, text). The keys of the copies of a text differ, so each split contains copies of most texts."""
    for copy in range(NUM_COPIES):
        for number, fact in enumerate(facts()):
            for form in known_forms(number):
                text = form.format(**fact)
                yield f"{text} ({copy})", text


def questions(kind: str) -> list[tuple[str, str]]:
    """Return questions about the facts that are stated in one form, as pairs of texts.

    The first text has `_` for each missing character, and the second is complete.

    Args:
        kind: `"end"`: the end of a training text is missing. `"start"`: the start of a training text is missing.
            `"other form"`: the end is missing, and the sentence has the form that no training text about the fact has.
    """
    pairs = []
    for number, fact in enumerate(facts()):
        forms = known_forms(number)
        if len(forms) == 1:
            (form,) = forms if kind != "other form" else set(FORMS) - set(forms)
            first, second = ("name", "description") if form == FORMS[0] else ("description", "name")
            asked = first if kind == "start" else second
            pairs.append((form.format(**fact | {asked: "_" * len(fact[asked])}), form.format(**fact)))
    return pairs
