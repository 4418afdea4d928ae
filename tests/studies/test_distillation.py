# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
from common.corpora import python_stdlib
from common.data_arguments import DataArguments
from common.splitting import is_held_out, sha256
from eval.studies.distillation.corpus import few_files


def test_few_files_contains_all_held_out_files() -> None:
    paths, few = ([path for path, _ in texts] for texts in (python_stdlib(), few_files()))
    held_out, others = (
        {path for path in paths if is_held_out(sha256(path), DataArguments.validation_fraction) == expected}
        for expected in (True, False)
    )
    assert held_out < set(few) < set(paths)
    assert 0.02 < len(set(few) & others) / len(others) < 0.08
