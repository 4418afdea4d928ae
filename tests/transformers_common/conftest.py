# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""
Common model tests of Transformers for the classes of this package: `make test-transformers`.

TRANSFORMERS_TESTS is the `tests` folder of the source of the installed version. The source distribution on PyPI has the
common tests, but lacks two files that they import. A checkout of the repository has all of them:

    git clone --depth 1 --branch v5.23.0 https://github.com/huggingface/transformers
    make test-transformers TRANSFORMERS_TESTS=transformers/tests
"""

import importlib
import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

# Modules that the source distribution lacks, and the names imported from them.
NOT_DISTRIBUTED = {
    "exporters.test_export": {"ExportTesterMixin": type("ExportTesterMixin", (), {})},
    "generation.test_utils": {"GenerationTesterMixin": type("GenerationTesterMixin", (), {})},
}
PACKAGE = "transformers_tests"

TESTS = os.environ.get("TRANSFORMERS_TESTS")
collect_ignore = [] if TESTS else ["test_common.py"]


def add_package(name: str, folder: Path) -> ModuleType:
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    sys.modules[name] = module_from_spec(spec)
    return sys.modules[name]


def add_upstream_tests(folder: Path) -> None:
    """Make the tests importable as `transformers_tests`, since `tests` is the name of our folder."""
    add_package(PACKAGE, folder)
    for name, content in NOT_DISTRIBUTED.items():
        parent, _, _ = name.partition(".")
        if not (folder / f"{name.replace('.', '/')}.py").is_file():
            add_package(f"{PACKAGE}.{parent}", folder / parent)
            stand_in = ModuleType(f"{PACKAGE}.{name}")
            vars(stand_in).update(content)
            sys.modules[f"{PACKAGE}.{name}"] = stand_in


if TESTS:
    add_upstream_tests(Path(TESTS).resolve())
    importlib.import_module(f"{PACKAGE}.test_modeling_common")
