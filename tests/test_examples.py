# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""The examples in docstrings run, and their outputs are what the docstrings say."""

import doctest
import importlib
import inspect
import pkgutil
from types import ModuleType

import pytest
import torch
from transformers import set_seed

import modeling_aogpt
from modeling_aogpt import AOGPTForAnyOrderLM, MDMEncoderForMaskedLM
from tests.references import any_order_methods

MODULES = [f"modeling_aogpt.{module.name}" for module in pkgutil.iter_modules(modeling_aogpt.__path__)]
PUBLIC = [getattr(modeling_aogpt, name) for name in modeling_aogpt.__all__] + [
    method
    for model_class in (AOGPTForAnyOrderLM, MDMEncoderForMaskedLM)
    for method in any_order_methods(model_class).values()
]


class ExampleFinder(doctest.DocTestFinder):
    """Finder that also finds decorated functions, such as those under `torch.no_grad`."""

    def _from_module(self, module: ModuleType, object: object) -> bool:
        return super()._from_module(module, inspect.unwrap(object) if inspect.isroutine(object) else object)


def find_examples(module: ModuleType) -> list[doctest.DocTest]:
    """Return the examples of a module, one test for each docstring."""
    tests = ExampleFinder().find(module, extraglobs={"torch": torch})
    return [test for test in tests if test.examples]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module_give_the_outputs_that_they_show(name: str) -> None:
    report = []
    for test in find_examples(importlib.import_module(name)):
        set_seed(0)
        doctest.DocTestRunner().run(test, out=report.append)
    assert not report, "".join(report)


@pytest.mark.parametrize("value", PUBLIC, ids=lambda value: value.__qualname__)
def test_every_public_class_and_method_has_an_example_that_runs(value: object) -> None:
    module = importlib.import_module(value.__module__)
    name = f"{module.__name__}.{value.__qualname__}"
    assert name in [test.name for test in find_examples(module)]


def test_an_example_with_another_output_fails() -> None:
    module = ModuleType("examples")
    module.__doc__ = ">>> torch.zeros(1)\ntensor([1.])\n"
    (test,) = find_examples(module)
    assert doctest.DocTestRunner(verbose=False).run(test, out=lambda text: None) == (1, 1)
