# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import modeling_aogpt

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # comes with pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "modeling_aogpt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ALLOWED = {*sys.stdlib_module_names, "torch", "transformers", "safetensors", "huggingface_hub"}


# ------------------------------------------------------------------------------------------------- what it imports


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.name)
def test_imports_that_remote_code_can_follow(path: Path) -> None:
    """Remote code is a flat folder in which transformers follows `from .x import y` alone."""
    assert path.parent == PACKAGE
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert {alias.name.partition(".")[0] for alias in node.names} <= ALLOWED
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module.partition(".")[0] in ALLOWED
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1
            assert (PACKAGE / f"{node.module}.py").is_file()


# Takes from the process every installed package that torch and transformers do not require.
WITHOUT_OTHER_PACKAGES = """
import sys
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

def required(names):
    found, todo = set(), list(names)
    while todo:
        name = canonicalize_name(todo.pop())
        if name not in found:
            found.add(name)
            try:
                requirements = distribution(name).requires or ()
            except PackageNotFoundError:  # for another platform
                continue
            requirements = map(Requirement, requirements)
            todo += [r.name for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found

kept = required(["torch", "transformers", "aogpt"])
hidden = {
    module
    for module, names in packages_distributions().items()
    if not kept & {canonicalize_name(name) for name in names}
}
assert {"accelerate", "datasets", "matplotlib", "pytest"} <= hidden, hidden
assert not {"torch", "transformers", "safetensors", "huggingface_hub", "numpy"} & hidden, hidden

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""

USE = """
import tempfile
import torch
from modeling_aogpt import *
import modeling_aogpt.convert_reference_checkpoint

config = AOGPTConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=4)
batch = DataCollatorForAnyOrderLM()([{"input_ids": [1, 2, 3, 4]}, {"input_ids": [5, 6, 7, 0]}])
with tempfile.TemporaryDirectory() as folder:
    AOGPTForAnyOrderLM(config).save_pretrained(folder)
    model = AOGPTForAnyOrderLM.from_pretrained(folder)
model(**batch).loss.backward()
model.log_likelihood(batch["input_ids"])
model.generate(max_length=4)
assert not {"accelerate", "datasets", "matplotlib"} & sys.modules.keys()
"""


def test_torch_and_transformers_are_enough() -> None:
    command = [sys.executable, "-c", WITHOUT_OTHER_PACKAGES + USE]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def test_public_names() -> None:
    assert set(modeling_aogpt.__all__) >= {
        "AOGPTConfig",
        "AOGPTModel",
        "AOGPTForAnyOrderLM",
        "AOGPTForMaskedLM",
        "AOGPTForCausalLM",
        "DataCollatorForAnyOrderLM",
    }
    assert all(hasattr(modeling_aogpt, name) for name in modeling_aogpt.__all__)


# -------------------------------------------------------------------------------------------- what it is installed by


def requirements() -> Iterator[Requirement]:
    for listed in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()):
        yield from map(Requirement, listed)


def pinned(python: str) -> dict[str, str]:
    """Versions by name that the constraints give on Linux with a Python version."""
    environment: Any = {
        **default_environment(),
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
    }
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith(("#", " "))]
    here = [pin for pin in pins if pin.marker is None or pin.marker.evaluate(environment)]
    versions = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in here}
    assert len(versions) == len(here), "a package is pinned twice"
    return versions


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_every_requirement_is_pinned_within_its_bounds(python: str) -> None:
    versions = pinned(python)
    for requirement in requirements():
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement
        assert requirement.specifier, f"{requirement} has no lower bound"


def test_pin_of_torch() -> None:
    """One version everywhere, and no more than that: which build it is stays the installer's choice."""
    assert re.findall("^torch[^a-z].*", (ROOT / "constraints.txt").read_text(), re.MULTILINE) == ["torch==2.13.0"]


def test_versions_agree() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]


# ------------------------------------------------------------------------------------------------ what is in the tree


@pytest.mark.parametrize("target", ["quickstart", "test", "lint"])
def test_make_targets_run_scripts_that_exist(target: str) -> None:
    command = ["make", "--dry-run", target]
    commands = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert ".venv/bin/" in commands
    for script in re.findall(r"(?:training|eval)/\S+", commands):
        assert (ROOT / script).is_file(), script


def test_every_file_of_code_names_its_licence() -> None:
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    paths = [ROOT / name for name in tracked.splitlines()] or sorted(PACKAGE.glob("*.py"))
    header = "# Copyright 2026 The AO-GPT package authors.\n# SPDX-License-Identifier: Apache-2.0\n"
    assert [path for path in paths if path.is_file() and not path.read_text().startswith(header)] == []
