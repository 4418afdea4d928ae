# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import ast
import importlib
import itertools
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
from packaging.version import Version
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.dynamic_module_utils import get_relative_import_files
from transformers.utils import ModelOutput

import modeling_aogpt

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # comes with pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "modeling_aogpt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ALLOWED = {*sys.stdlib_module_names, "torch", "transformers", "safetensors", "huggingface_hub"}


# ----------------------------------------------------------------------------------------------------------- imports


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.name)
def test_the_package_can_be_remote_code(path: Path) -> None:
    """Remote code is a flat folder, in which Transformers only follows imports of the form `from .x import y`."""
    assert path.parent == PACKAGE
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert {alias.name.partition(".")[0] for alias in node.names} <= ALLOWED
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module.partition(".")[0] in ALLOWED
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1
            assert (PACKAGE / f"{node.module}.py").is_file()


def test_a_decoder_ships_few_files() -> None:
    """Users are told to read the code of a Hub repository before they trust it."""
    model = PACKAGE / "modeling_aogpt.py"
    shipped = {model.stem, *(Path(path).stem for path in get_relative_import_files(model))}
    assert shipped == {
        *("modeling_aogpt", "configuration_aogpt", "causal", "orders", "devices", "validation"),
        *("generation", "generation_config", "decoding_state", "sampling", "unmasking", "cpu_inference", "cuda_graphs"),
        *("likelihood", "infill"),
    }


WITHOUT_OTHER_PACKAGES = """
import sys
from collections import defaultdict
from importlib.metadata import distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def hide_other_packages(*kept: str) -> set[str]:
    '''Make installed packages unavailable in this process, except those `kept` and their requirements.'''
    others = {canonicalize_name(installed.name): installed for installed in distributions()}
    names = list(kept)
    while names:
        package = others.pop(canonicalize_name(names.pop()), None)
        if package is not None:  # None: a package that was removed before, or is required only on another platform
            requirements = map(Requirement, package.requires or ())
            names += [r.name for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]
    owners = defaultdict(set)  # not `packages_distributions`, which finds few packages before Python 3.11
    for installed in distributions():
        for path in installed.files or ():
            owners[path.parts[0].removesuffix(".py")].add(canonicalize_name(installed.name))
    hidden = {module for module, names in owners.items() if module.isidentifier() and others.keys() >= names}
    sys.modules |= dict.fromkeys(hidden)  # an import of a module that is None fails
    return hidden


hidden = hide_other_packages("torch", "transformers", "aogpt")
assert {"accelerate", "datasets", "matplotlib", "pytest"} <= hidden, hidden
assert not {"torch", "transformers", "safetensors", "huggingface_hub", "numpy"} & hidden, hidden
sys.modules |= dict.fromkeys(("common", "training", "eval", "tests"))  # an import of a module that is None fails
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
assert all(sys.modules[name] is None for name in ("accelerate", "datasets", "matplotlib"))  # none was imported
"""


def test_torch_and_transformers_are_enough() -> None:
    command = [sys.executable, "-c", WITHOUT_OTHER_PACKAGES + USE]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def test_configurations_outputs_and_models_are_public() -> None:
    """Base classes of models are not."""
    kinds = (GenerationConfig, ModelOutput, PreTrainedConfig, PreTrainedModel)
    modules = [importlib.import_module(f"modeling_aogpt.{path.stem}") for path in PACKAGE.glob("[a-z]*.py")]
    classes = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    ours = {value for value in classes if value.__module__.startswith("modeling_aogpt") and issubclass(value, kinds)}
    public = {value for value in ours if issubclass(value, PreTrainedConfig) or ours.isdisjoint(value.__subclasses__())}
    assert set(modeling_aogpt.__all__) == {value.__name__ for value in public} | {"DataCollatorForAnyOrderLM"}
    assert all(hasattr(modeling_aogpt, name) for name in modeling_aogpt.__all__)


# ------------------------------------------------------------------------------------------------------ requirements


def list_requirements() -> Iterator[Requirement]:
    for listed in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()):
        yield from map(Requirement, listed)


def read_pins(python: str, constraints: str = "constraints.txt") -> dict[str, str]:
    """Return the version of each package that a constraints file pins on Linux, for a version of Python."""
    environment: Any = {
        **default_environment(),
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
    }
    lines = (ROOT / constraints).read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith(("#", " "))]
    here = [pin for pin in pins if pin.marker is None or pin.marker.evaluate(environment)]
    versions = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in here}
    assert len(versions) == len(here), "a package is pinned twice"
    return versions


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_every_requirement_is_pinned_within_its_bounds(python: str) -> None:
    versions = read_pins(python)
    for requirement in list_requirements():
        if requirement.marker is not None and not requirement.marker.evaluate({"python_version": python}):
            continue
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement
        assert requirement.specifier, f"{requirement} has no lower bound"


def test_lowest_constraints_are_the_lower_bounds_of_pyproject() -> None:
    versions = read_pins("3.10", "constraints-lowest.txt")
    extras = PROJECT["optional-dependencies"]
    for requirement in map(Requirement, [*PROJECT["dependencies"], *extras["train"], *extras["eval"], *extras["dev"]]):
        if requirement.name != "torch":
            lowest = str(requirement.specifier).removeprefix(">=")
            assert Version(versions[canonicalize_name(requirement.name)]) == Version(lowest), requirement


def test_torch_is_pinned_without_a_build() -> None:
    """The installer chooses the build (CPU or CUDA), so the pin must not contain one."""
    assert re.findall("^torch[^a-z].*", (ROOT / "constraints.txt").read_text(), re.MULTILINE) == ["torch==2.13.0"]


def test_installed_packages_have_type_hints() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert (PACKAGE / "py.typed").read_text() == ""
    assert setuptools["package-data"] == {PACKAGE.name: ["py.typed"]}
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_versions_agree() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [hook["rev"] for hook in hooks["repos"]] == [f"v{read_pins('3.12')['ruff']}"]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"][0] == PROJECT["requires-python"].removeprefix(">=")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]


# -------------------------------------------------------------------------------------------------------- repository


@pytest.mark.parametrize("target", ["quickstart", "findings", "sudoku", "gpu", "test", "lint"])
def test_make_targets_run_scripts_that_exist(target: str) -> None:
    command = ["make", "--dry-run", "--always-make", target]
    commands = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert ".venv/bin/" in commands
    recipes = " ".join(re.findall("for recipe in (.*?);", commands)).split() or [""]
    for script, recipe in itertools.product(re.findall(r"\s((?:training|eval|tests)/\S+)", commands), recipes):
        assert (ROOT / script.replace("$recipe", recipe)).is_file(), (script, recipe)


def test_make_test_installs_all_optional_libraries() -> None:
    """Without its library, a test would always be skipped."""
    command = ["make", "--dry-run", "--always-make", "test"]
    commands = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    extras = set(re.findall(r"'\.\[([\w,]+)\]'", commands)[0].split(","))
    assert extras == PROJECT["optional-dependencies"].keys() - {"quantization"}  # it has its own target


def test_imports_between_folders_go_one_way() -> None:
    """Scripts import `common`, and `common` imports the package. `training` and `eval` do not import each other."""
    allowed = {
        "common": {"common", "modeling_aogpt"},
        "training": {"training", "common", "modeling_aogpt"},
        "eval": {"eval", "common", "modeling_aogpt"},
        "eval/benchmarks": {"eval", "training", "common", "modeling_aogpt"},
        "model_cards": {"model_cards", "training", "eval", "common", "modeling_aogpt"},
        "aogpt": {"modeling_aogpt"},
        "demo": set(),
    }
    ours = set().union(*allowed.values(), {"tests"})
    for folder, allowed_folders in allowed.items():
        for path in sorted((ROOT / folder).glob("*.py")):
            imports = re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
            assert set(imports) & ours <= allowed_folders, path


def test_every_code_file_has_a_licence_header() -> None:
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    paths = [ROOT / name for name in tracked.splitlines()] or sorted(PACKAGE.glob("*.py"))
    header = "# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0\n"
    assert [path for path in paths if path.is_file() and not path.read_text().startswith(header)] == []
