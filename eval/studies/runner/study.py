# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Command that runs a study: it trains models with different settings and several seeds, and compares them.

    python eval/studies/runner/study.py STUDY.yaml [--jobs N] [--collect] [--runs_dir DIR] [--output_dir DIR]

An arm is a set of training settings that is compared with others. A question is a comparison of some arms. STUDY.yaml
contains the settings of training/pretrain.py that all runs share, the settings of each arm, the seeds, and the
questions. The command trains all arms with the first seed, then all arms with the second seed, and so on. Several runs
are trained at the same time. Finished runs are not repeated, and interrupted runs are resumed. The command then writes
the numbers of each question (NAME.json), and a report on all questions (see report.py). It uses the seeds for which it
has results of all arms of the question: those of finished runs, and those that are in the JSON files already.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from common.commands import Options, Parser, command_line, one_line_errors, option, progress_bar
from common.files import lock_folder, make_folder, read_json, read_yaml, write_text
from common.hardware import num_cores
from common.models import identity_of_weights
from common.results import read_results
from eval.studies.runner.report import write_report
from eval.studies.runner.results import (
    Question,
    TrainedModel,
    check_same_tokens,
    read_earlier_models,
    read_model,
    write_results,
)
from eval.studies.runner.scores import MEASURES
from modeling_aogpt.validation import check_choice
from training.command_line import parse_arguments, parse_keys
from training.resuming import changed_settings, check_same_run, to_settings

PRETRAIN = Path(__file__).parents[3] / "training" / "pretrain.py"
# Added to the seed once for each run that a run continues. With the same seed, these runs would use the same data.
CONTINUED = 1000
POLL_SECONDS = 0.2
SEE_DOCS = "See eval/studies/runner/README.md."


@dataclass(frozen=True)
class Study:
    """Content of a study's YAML file.

    Attributes:
        name: Name of the file without .yaml.
        settings: Settings of training/pretrain.py for all runs.
        arms: Settings of each arm. If `init_from` is the name of an earlier arm, the arm continues the run of that arm.
            `script` replaces training/pretrain.py.
        seeds: Seeds of the runs.
        questions: Comparisons of arms, by name.
    """

    name: str
    settings: dict[str, Any]
    arms: dict[str, dict[str, Any]]
    seeds: list[int]
    questions: dict[str, Question]


@dataclass(frozen=True, eq=False)
class Run:
    """A training run of a study.

    Attributes:
        arm: Name of the arm.
        seed: One of the seeds of the study. (A run that continues another run is trained with a different seed.)
        folder: Folder of the run. The files `config` and `log` are next to this folder.
        settings: Settings of training/pretrain.py.
        start: The run that this run continues, or None.
        script: Command that trains the run, with the arguments of training/pretrain.py.
    """

    arm: str
    seed: int
    folder: Path
    settings: dict[str, Any]
    start: "Run | None"
    script: Path = PRETRAIN

    @property
    def name(self) -> str:
        """Return the name of the run, as used in messages."""
        return f"{self.arm} (seed {self.seed})"

    @property
    def log(self) -> Path:
        """Return the path of the file with the output of training/pretrain.py."""
        return self.folder.with_name(f"{self.arm}.log")

    @property
    def chain(self) -> list["Run"]:
        """Return all runs in which the model was trained: those that this run continues, and this run."""
        return [*(self.start.chain if self.start else []), self]

    @property
    def config(self) -> Path:
        """Return the path of the YAML file for training/pretrain.py."""
        return self.folder.with_name(f"{self.arm}.yaml")

    @property
    def num_tokens(self) -> int:
        """Return the number of training tokens of the model, including those of the runs that this run continues."""
        _, data, training, _ = parse_keys([str(self.config)])
        tokens = training.max_steps * training.batch_size * data.sequence_length
        return tokens + (self.start.num_tokens if self.start else 0)

    def check_finished(self) -> bool:
        """Check the settings, and return whether the run is finished with the current settings.

        Raises:
            ValueError: If a setting is wrong, if the folder contains a finished run with other settings (except
                settings of the schedule, such as `max_steps`, with which training can continue), or if `start` was
                trained further after this run.
        """
        if self.start is not None and not self.start.check_finished():
            parse_keys([str(self.config)])  # checks the keys before `start` is trained
            return False
        settings = to_settings(*parse_arguments([str(self.config)]))
        results = read_results(self.folder)
        if results is None:
            return False
        saved = results["arguments"]
        source = saved.get("init_from")
        if self.start is not None and Path(source or "").parts[-2:] == (self.start.arm, "model"):
            # The folder of the study may have been moved since the training.
            saved |= {key: settings[key] for key in ("init_from", "tokenizer") if saved.get(key) == source}
        check_same_run(saved, settings, self.folder)
        if results.get("initial_weights") not in (None, self._weights_of_start()):
            raise ValueError(
                f"{self.folder} continues other weights than those in {self.start.folder}, which was trained again or "
                f"further. Remove {self.folder}."
            )
        return not changed_settings(saved, settings)

    def _weights_of_start(self) -> str | None:
        return None if self.start is None else identity_of_weights(str(self.start.folder / "model"))

    def train(self, num_threads: int) -> subprocess.Popen:
        """Start training in a new process, whose output is appended to `log`, and return the process.

        It uses `num_threads` CPU threads, unless the environment variable OMP_NUM_THREADS is set.
        """
        environment = {"OMP_NUM_THREADS": str(num_threads)} | os.environ
        with self.log.open("ab") as log:
            command = [sys.executable, str(self.script), str(self.config)]
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


@dataclass
class StudyArguments(Options):
    """Options of eval/studies/runner/study.py."""

    jobs: int | None = option(
        None, "Number of runs at the same time, which share the cores. Defaults to the number of cores.", least=1
    )
    collect: bool = option(False, "Train nothing, and write the results of the runs that are finished.")
    runs_dir: Path | None = option(None, "Folder for the runs; defaults to runs/NAME, where NAME.yaml is the study.")
    output_dir: Path | None = option(None, "Folder for the results; defaults to `results` in the folder of the runs.")


def read_study(path: Path) -> Study:
    """Read the YAML file of a study.

    Raises:
        ValueError: If the file cannot be read, or does not describe a study.
    """
    # The base loader keeps all values as text. training/pretrain.py converts the text of each setting itself.
    content = read_yaml(path, yaml.BaseLoader)
    expected = {"settings": dict, "arms": dict, "seeds": list, "questions": dict}
    if not isinstance(content, dict) or {key: type(value) for key, value in content.items()} != expected:
        raise ValueError(
            f"{path} must contain the mappings `settings`, `arms` and `questions` and the list `seeds`, but no other "
            f"keys. {SEE_DOCS}"
        )
    seeds = content["seeds"]
    if not all(isinstance(seed, str) and seed.isdecimal() for seed in seeds) or len(set(map(int, seeds))) < len(seeds):
        raise ValueError(f"`seeds` in {path} must be different integers, but is [{', '.join(map(str, seeds))}].")
    arms = {name: settings or {} for name, settings in content["arms"].items()}
    for name, settings in arms.items():
        if not isinstance(settings, dict):
            raise ValueError(
                f"The arm {name!r} in {path} is {settings!r}. It must be a mapping of settings of "
                "training/pretrain.py, or empty."
            )
    if chosen := {"seed", "output_dir"} & set().union(content["settings"], *arms.values()):
        raise ValueError(
            f"{path} sets {' and '.join(sorted(chosen))} of training/pretrain.py in `settings` or `arms`, but the "
            "study sets these keys itself. Remove them, and list the seeds in `seeds`, at the top level."
        )
    questions = {name: _read_question(name, entry, list(arms)) for name, entry in content["questions"].items()}
    return Study(path.stem, content["settings"], arms, [int(seed) for seed in seeds], questions)


def _read_question(name: str, entry: Any, arms: list[str]) -> Question:
    known = {item.name for item in fields(Question)}
    if not isinstance(entry, dict) or not {"title", "baseline"} <= entry.keys() <= known:
        raise ValueError(
            f"The question {name!r} is {entry!r}. It must have the keys `title` and `baseline`, and may have `arms`, "
            "`left_to_right` and `measure`."
        )
    question = Question(**{"arms": arms} | entry)
    check_choice("measure", question.measure, MEASURES)
    for arm in (*question.arms, question.baseline, question.left_to_right or question.baseline):
        if arm not in arms or arm not in question.arms:
            raise ValueError(
                f"The question {name!r} cannot use the arm {arm!r}. Its `arms` must be arms of the study. Its "
                f"`baseline` and `left_to_right` must be among its `arms` ({', '.join(question.arms)})."
            )
    return question


def list_runs(study: Study, runs_dir: Path) -> list[Run]:
    """Return all runs in the order in which they are trained: all arms with the first seed, then with the second."""
    runs = []
    for seed in study.seeds:
        of_seed: dict[str, Run] = {}
        for arm, changes in study.arms.items():
            folder = runs_dir / f"seed-{seed}" / arm
            settings = {**study.settings, **changes, "seed": seed, "output_dir": str(folder)}
            start = of_seed.get(settings.get("init_from"))
            if start is not None:
                settings |= {"init_from": str(start.folder), "seed": seed + CONTINUED * len(start.chain)}
            script = PRETRAIN.parents[1] / settings.pop("script", PRETRAIN)
            of_seed[arm] = Run(arm, seed, folder, settings, start, script)
        runs += of_seed.values()
    return runs


def write_configs(runs: list[Run], is_training: bool = False) -> None:
    """Write the YAML files of the runs.

    Args:
        runs: The runs.
        is_training: Whether another process trains them. It reads each file when a run starts.

    Raises:
        ValueError: If a setting is wrong, or differs in a finished run or, with `is_training`, in an existing file.
    """
    for run in runs:
        text = yaml.safe_dump(run.settings, sort_keys=False, allow_unicode=True)
        if is_training and run.config.exists() and run.config.read_text(encoding="utf-8") != text:
            raise ValueError(
                f"The settings of {run.name} differ from those in {run.config}, but another process is training the "
                "study. Wait until that process ends, or restore the settings."
            )
        write_text(run.config, text)
        run.check_finished()


def check_tokens(study: Study, runs: list[Run]) -> None:
    """Raise a `ValueError` if the arms of a question are trained on different numbers of tokens."""
    tokens = {run.arm: {run.num_tokens} for run in runs if run.seed == study.seeds[0]}
    for question in study.questions.values():
        check_same_tokens({arm: tokens[arm] for arm in question.arms})


def train_all(runs: list[Run], jobs: int) -> list[Run]:
    """Train all runs that are not finished, `jobs` at the same time. Return the runs that failed.

    A run that continues another run starts after that run. If the earlier run failed, the later one is not trained, and
    counts as failed too.
    """
    waiting = [run for run in runs if not run.check_finished()]
    jobs = min(jobs, len(waiting) or 1)
    num_threads = max(num_cores() // jobs, 1)
    running: dict[Run, subprocess.Popen] = {}
    failed: list[Run] = []
    bar = progress_bar(total=len(runs), initial=len(runs) - len(waiting), unit="run")
    old_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM raises a KeyboardInterrupt
    try:
        while waiting or running:
            while len(running) < jobs and (run := _next_run(waiting, running)) is not None:
                waiting.remove(run)
                if run.start in failed:
                    failed.append(run)
                    bar.write(f"{run.name} was not trained, because {run.start.name} failed.", sys.stderr)
                    bar.update()
                else:
                    running[run] = run.train(num_threads)
            bar.set_postfix_str(", ".join(run.name for run in running), refresh=False)
            time.sleep(POLL_SECONDS)
            for run in [run for run, process in running.items() if process.poll() is not None]:
                if running.pop(run).returncode == 0:
                    bar.write(f"{run.name} is finished.", sys.stderr)
                else:
                    failed.append(run)
                    bar.write(f"{run.name} failed. Its output is in {run.log}.", sys.stderr)
                bar.update()
    finally:
        for process in running.values():
            process.terminate()  # training/pretrain.py then writes a checkpoint
        for process in running.values():
            process.wait()
        signal.signal(signal.SIGTERM, old_handler)
        bar.close()
    return failed


def _next_run(waiting: list[Run], running: dict[Run, subprocess.Popen]) -> Run | None:
    """Return the first waiting run that does not continue a waiting or running run, or None."""
    return next((run for run in waiting if run.start not in waiting and run.start not in running), None)


def collect(study: Study, runs: list[Run], output_dir: Path, command: str) -> None:
    """Write the results of all questions.

    A question's results are those of the seeds for which there are results of all its arms. Its file is not written
    again if results of other seeds would be lost, also if they have other settings.
    """
    settings = {run.arm: {part.arm: study.arms[part.arm] for part in run.chain} for run in runs}
    models = _find_models(study, runs, settings, output_dir)
    for name, question in study.questions.items():
        path = output_dir / f"{name}.json"
        written = read_json(path, ("seeds",), "eval/studies/runner/study.py")["seeds"] if path.exists() else []
        listed = sorted({*study.seeds, *written})
        missing = {seed: [arm for arm in question.arms if (arm, seed) not in models] for seed in listed}
        seeds = [seed for seed in listed if not missing[seed]]
        if not seeds or not {*written} <= {*seeds}:
            reason = f"{path} has results of seeds that would be lost" if seeds or written else "no results yet"
            unfinished = ", ".join(f"{arm} (seed {seed})" for seed, arms in missing.items() for arm in arms)
            print(f"{name}: {reason}. These runs are not finished with the current settings: {unfinished}.")
            continue
        of_arms = {
            arm: [_read(models[arm, seed]) for seed in seeds]
            for arm in progress_bar(question.arms, desc=name, unit="arm")
        }
        settings_of_arms = {part: of_part for arm in question.arms for part, of_part in settings[arm].items()}
        details = {"settings": study.settings, "settings_of_arms": settings_of_arms, "seeds": seeds}
        write_results(question, of_arms, {"command": command} | details, path)
        print(f"Written: {path} (seeds: {', '.join(map(str, seeds))}).")
    write_report(output_dir)


def _find_models(
    study: Study, runs: list[Run], settings: dict[str, dict[str, Any]], output_dir: Path
) -> dict[tuple[str, int], TrainedModel | list[Path]]:
    """Return, for each arm and seed, the folders of its finished run and of the runs that this run continues.

    If there is no finished run, it is the result that an earlier call wrote to `output_dir` with the same settings, for
    any question.
    """
    models: dict[tuple[str, int], TrainedModel | list[Path]] = {}
    for name in study.questions:
        models |= read_earlier_models(output_dir / f"{name}.json", study.settings, settings)
    return models | {(run.arm, run.seed): [part.folder for part in run.chain] for run in runs if run.check_finished()}


def _read(model: TrainedModel | list[Path]) -> TrainedModel:
    return model if isinstance(model, TrainedModel) else read_model(model)


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(StudyArguments)
    parser.add_argument("study", type=Path, metavar="STUDY", help="YAML file of the study")
    arguments, others = parser.parse(argv)
    study = read_study(others.study)
    runs_dir = arguments.runs_dir or Path("runs") / study.name
    runs = list_runs(study, runs_dir)
    failed = []
    with make_folder(runs_dir), ExitStack() as stack:
        is_training = False
        try:
            stack.enter_context(lock_folder(runs_dir))
        except ValueError:
            if not arguments.collect:
                raise
            is_training = True
        write_configs(runs, is_training)
        check_tokens(study, runs)
        if not arguments.collect:
            try:
                failed = train_all(runs, arguments.jobs or num_cores())
            except KeyboardInterrupt:
                sys.exit("Stopped. The same command continues the study.")
    command = command_line(__file__, argv)
    collect(study, runs, arguments.output_dir or runs_dir / "results", command)
    if failed:
        logs = ", ".join(f"{run.name}, {run.log}" for run in failed if run.start not in failed)
        raise ValueError(f"{len(failed)} runs failed. Read the logs: {logs}.")


if __name__ == "__main__":
    main(sys.argv[1:])
