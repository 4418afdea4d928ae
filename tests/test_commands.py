# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import os
import re
import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, PreTrainedTokenizerFast

import training.pretrain
from common.commands import Options, Parser, one_line_errors, option
from tests.training_runs import reset_accelerator

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "training" / "configs" / "quickstart.yaml"

# Commands, and the error message they exit with. None: the parser reports the error, and the exit status is 2.
WRONG = [
    ("training/pretrain.py none.yaml", "none.yaml does not exist"),
    ("training/pretrain.py {quickstart} --lerning_rate 1", "Did you mean `learning_rate`"),
    ("training/pretrain.py {quickstart} --output_dir out --corpus none.txt", "There is no file 'none.txt'"),
    ("training/pretrain.py {quickstart} --output_dir out --corpus empty.txt", "empty.txt is empty"),
    ("training/pretrain.py {quickstart} --output_dir out --tracker nothing", None),
    ("training/pretrain.py {quickstart} --output_dir damaged", r"damaged/results.json is not a JSON file"),
    ("training/pretrain.py {quickstart} --output_dir text.txt", "text.txt"),
    ("training/grpo.py nowhere.yaml", "nowhere.yaml"),
    ("training/conversion/causal_lm.py folder out", "The configuration of 'folder' cannot be used"),
    ("training/conversion/causal_lm.py gpt2 out", "The weights of gpt2 are missing or damaged"),
    ("training/conversion/causal_lm.py folder out --max_len 3", None),
    ("training/conversion/masked_lm.py folder out", "folder has no config.json"),
    ("training/conversion/masked_lm.py gpt2 out", "A model of type 'gpt2' cannot be converted"),
    ("training/conversion/masked_lm.py folder out --max_len 3", None),
    ("training/dry_run.py {quickstart} --mfu 1", "`mfu` must be below 1, but is 1.0"),
    ("training/conversion/export_causal_lm.py nowhere out", "There is no model 'nowhere'"),
    ("training/export_checkpoint.py folder out", "folder is neither a checkpoint"),
    ("training/conversion/export_causal_lm.py nowhere", None),
    ("training/export_checkpoint.py text.txt out", "text.txt"),
    ("training/export_checkpoint.py text.txt out --weight live", None),
    ("training/export_checkpoint.py text.txt damaged", "damaged exists and is not an empty folder"),
    ("eval/generative.py nowhere --output-dir out", "There is no model 'nowhere'"),
    ("eval/generative.py nowhere --output-dir out --length 0", "`length` must be at least 1, but is 0"),
    ("eval/infilling.py folder", "has no results.json, so the run is not finished"),
    ("eval/infilling.py", None),
    ("eval/tables.py none.json", "none.json"),
    ("eval/tables.py list.json", "list.json has no model, .*not written by eval/zero_shot.py"),
    ("eval/zero_shot.py nowhere --text-file text.txt", "There is no model 'nowhere'"),
    ("eval/zero_shot.py nowhere", "Set either `text_file` or `datasets`"),
    ("eval/zero_shot.py gpt2 --text-file text.txt", "The weights of gpt2 are missing or damaged"),
    ("eval/zero_shot.py nowhere --text-file text.txt --output_dir text.txt", "text.txt"),
    ("eval/benchmarks/speed.py --size tiny --device nothing", r"`device` \(nothing\) cannot be used"),
    ("eval/benchmarks/speed.py --model nowhere", "The weights of nowhere are missing"),
    ("eval/benchmarks/speed.py --size tiny --contenders nobody", "`contenders` must be one of 'decoder', 'no-lemma'"),
    ("eval/benchmarks/gpu_short.py --deadline 0", "`deadline` must be at least 1, but is 0"),
    ("model_cards/publish.py folder somebody/model", "neither a finished run nor a model folder"),
    ("model_cards/check_staged.py folder", "Usage: python -I check_staged.py FOLDER EXPECTED.safetensors"),
]


@dataclass
class Sizes(Options):
    sizes: list[int] = option([4, 8], "Sizes.", least=1)
    decay: float | None = option(None, "A decay.", least=0, below=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--sizes 3 0", "^`sizes` must be at least 1, but is 0"),
        ("--decay=-0.1", "^`decay` must be at least 0, but is -0.1"),
        ("--decay nan", "^`decay` must be at least 0, but is nan"),
        ("--decay 1", "^`decay` must be below 1, but is 1.0"),
    ],
)
def test_numbers_out_of_their_bounds_are_errors(given: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Parser(Sizes).parse(given.split())


def test_numbers_within_their_bounds_are_accepted() -> None:
    (one,), (other,) = Parser(Sizes).parse([]), Parser(Sizes).parse(["--sizes", "1", "2", "--decay", "0"])
    one.sizes.append(16)
    assert (one, other) == (Sizes([4, 8, 16], None), Sizes([1, 2], 0.0))
    assert Sizes().sizes == [4, 8]  # the default is copied


def test_repeated_options_are_errors(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit, match="2"):
        Parser(Sizes).parse(["--sizes", "1", "--sizes=2"])
    assert "--sizes is given twice" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [ValueError, FileNotFoundError])
def test_errors_are_reported_in_one_line(kind: type[Exception]) -> None:
    @one_line_errors()
    def command() -> None:
        raise kind("no such thing")

    with pytest.raises(SystemExit, match=r"^error: no such thing$"):
        command()


@pytest.mark.parametrize(("kinds", "bug"), [((), TypeError), ((LookupError,), ValueError)])
def test_bugs_keep_their_traceback(kinds: tuple[type[Exception], ...], bug: type[Exception]) -> None:
    with pytest.raises(bug), one_line_errors(*kinds):
        raise bug


def test_bugs_in_training_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `ValueError` reports a wrong setting before the run begins, but a bug afterwards."""

    class Run:
        def train(self) -> int:
            raise ValueError("operands could not be broadcast")

    monkeypatch.setattr(training.pretrain, "set_up", lambda argv, lock, kind: Run())
    with pytest.raises(ValueError, match="operands"):
        training.pretrain.main([])


def test_characters_that_the_terminal_lacks_are_replaced() -> None:
    script = "from common.commands import one_line_errors\nwith one_line_errors(): print('\u2192')"
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True)
    assert ended.stdout.strip() == b"?"


def test_an_error_of_all_processes_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def exit_code() -> str | int:
        with pytest.raises(SystemExit) as ended, one_line_errors():
            raise ValueError("no such thing")
        return ended.value.code

    monkeypatch.setenv("LOCAL_RANK", "1")
    assert exit_code() == 1
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    assert exit_code() == "error: no such thing"


@pytest.fixture
def _fresh_accelerator() -> None:
    """Clear Accelerate's states, which last as long as a process."""
    reset_accelerator()


@pytest.mark.usefixtures("_fresh_accelerator")
@pytest.mark.parametrize(("command", "message"), WRONG)
def test_commands_report_errors_without_a_traceback(
    command: str,
    message: str | None,
    tiny_tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    check_error(command, message, tiny_tokenizer, monkeypatch, capsys)


def check_error(
    command: str,
    message: str | None,
    tokenizer: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Run a command in the working folder, and check its error. It must leave no folders."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    files = {"text.txt": "[", "list.json": "[]", "empty.txt": "", "damaged/results.json": "{", "folder/some.txt": ""}
    GPT2Config(n_embd=4, n_layer=1, n_head=1).save_pretrained("gpt2")
    tokenizer.save_pretrained("gpt2")
    Path("gpt2/model.safetensors").write_text("damaged")
    for name, content in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(content)
    folders = {path for path in Path().rglob("*") if path.is_dir()}
    monkeypatch.setattr(sys, "argv", command.format(quickstart=QUICKSTART).split())
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / sys.argv[0]), run_name="__main__")
    if message is None:
        assert ended.value.code == 2
        assert "error: " in capsys.readouterr().err.splitlines()[-1]
    else:
        assert re.search(f"^error: .*{message}", str(ended.value.code))
    assert {path for path in Path().rglob("*") if path.is_dir()} == folders


def find_scripts(*folders: str) -> set[str]:
    """Return the paths of all commands in some folders, without those of studies in `eval`."""
    files = [(file, file.relative_to(ROOT).as_posix()) for folder in folders for file in (ROOT / folder).rglob("*.py")]
    return {
        name
        for file, name in files
        if '__name__ == "__main__"' in file.read_text() and not ("eval" in folders and "/studies/" in name)
    }


def test_the_errors_of_every_command_are_tested() -> None:
    commands = find_scripts("common", "training", "eval", "model_cards")
    assert commands - {"eval/harness.py"} == {command.split()[0] for command, _ in WRONG}  # tested in test_harness.py


def test_errors_of_data_loader_workers_have_no_traceback() -> None:
    dataset = Unreadable()
    with pytest.raises(SystemExit, match=r"^error: File 3 cannot be read\.$"), one_line_errors():
        next(iter(DataLoader(dataset, num_workers=1)))


class Unreadable(Dataset):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        raise OSError("File 3 cannot be read.")
