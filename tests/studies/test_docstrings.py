# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
from eval.studies.docstrings.pairs import cut_pairs

SOURCE = '''\
class Counter:
    def up(self):
        """Count\x0c
        up."""

        self.n += 1  # by one

    def empty(self):
        """Do nothing."""

def other():
    return "no docstring"
'''


def test_pairs_are_cut_after_the_docstring() -> None:
    expected = {
        "prompt": 'def up(self):\n    """Count\x0c\n    up."""\n',
        "completion": "\n    self.n += 1  # by one\n",
    }
    assert list(cut_pairs(SOURCE)) == [expected]
