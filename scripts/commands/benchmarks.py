"""claimwise benchmarks: the paper's benchmarks through VLMEvalKit and lmms-eval: their names there, the commands that run
them, and one table of what came out, beside the paper's rows."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

from ...verifier.errors import InputError
from ...verifier.text import one_line
from ..benchmark_results import Found, averages, read_results
from ..benchmark_tasks import BENCHMARKS, CHECKED, GROUPS, PAPER, TITLES, task_names
from ..parser import CommandParser

EXAMPLE = """example:
  claimwise benchmarks tasks
  claimwise benchmarks commands --model runs/policy --harness vlmevalkit --backend vllm > benchmarks.sh
  claimwise benchmarks table outputs/policy --markdown

claimwise benchmarks commands --help and claimwise benchmarks table --help say more."""
COMMANDS_EXAMPLE = """example:
  claimwise benchmarks commands --model runs/policy --harness lmms-eval --backend vllm --gpus 2

They are those of the commits that `claimwise benchmarks tasks` names, read there and not run here. Both harnesses ask a
judge model to grade free answers: set OPENAI_API_KEY. Where a benchmark has a prompt that lets a policy reason first,
that one is run; the plain one's results (mmbench_en_dev, mmmu_val, ...) are read too. lmms-eval's *_reasoning tasks grade
by rules and ask the judge about what these call wrong, which the environment variables in the commands switch on."""
TABLE_EXAMPLE = """example:
  claimwise benchmarks table outputs/policy logs/policy --markdown > benchmarks.md

RESULTS are files of the harnesses (*_acc.csv, *_score.csv, *_results.json) or folders that hold them. All scores are in
percent. A benchmark without a result is "–", and so is an average that lacks one. WeMath is the strict score, DynaMath
the average over variants, HallusionBench the mean of aAcc, fAcc and qAcc. The harnesses prompt and grade differently:
compare within one. Which prompts and variants the paper took, and which benchmarks its two averages are over, is not
known here: the split follows the benchmarks' subjects."""
CLASSES = {"qwen2_5_vl": "Qwen2VLChat", "qwen3_vl": "Qwen3VLChat"}  # VLMEvalKit's, by transformers' model type
NONE = "–"


def main(argv: list[str]) -> int:
    actions = {"tasks": tasks, "commands": commands, "table": table}
    if argv and argv[0] in actions:
        return actions[argv[0]](argv[1:])
    parser = CommandParser("benchmarks", "The paper's benchmarks through VLMEvalKit and lmms-eval.", EXAMPLE)
    parser.add_argument("action", choices=list(actions), help="list the names, print the commands, or read the results")
    parser.parse_args(argv)
    return 0


def tasks(argv: list[str]) -> int:
    parser = CommandParser("benchmarks tasks", "What the benchmarks are called in each harness.", EXAMPLE)
    parser.parse_args(argv)
    rows = [["benchmark", "average", *TITLES.values()]]
    for benchmark in BENCHMARKS:
        names = [t.names[0] if (t := benchmark.task(harness)) else "no task" for harness in TITLES]
        rows.append([benchmark.name, benchmark.group or "", *names])
    print("\n".join([*_aligned(rows), "", *(f"checked against {' '.join(what)}" for what in CHECKED.values())]))
    return 0


def commands(argv: list[str]) -> int:
    parser = CommandParser("benchmarks commands", "Print the shell commands that run the benchmarks.", COMMANDS_EXAMPLE)
    add = parser.add_argument
    add("--model", required=True, help="the policy: a folder, or a Hub name")
    add("--harness", choices=list(TITLES), default="vlmevalkit", help="default: vlmevalkit")
    add("--backend", choices=["vllm", "transformers"], default="vllm", help="what runs the policy (default: vllm)")
    add("--model-type", choices=list(CLASSES), help="with transformers, where the model does not say it itself")
    add("--gpus", type=int, default=1, help="default: 1")
    add("--max-new-tokens", type=int, default=16384, help="length limit of an answer (default: 16384)")
    add("--judge", default="gpt-4o-mini", help="the model that grades free answers (default: gpt-4o-mini)")
    args = parser.parse_args(argv)
    if args.gpus < 1 or args.max_new_tokens < 1:
        raise InputError("--gpus and --max-new-tokens must be at least 1")
    if Path(args.model).exists():
        args.model = str(Path(args.model).resolve())  # the harness runs in a folder of its own
    print("\n".join((_vlmevalkit if args.harness == "vlmevalkit" else _lmms_eval)(args)))
    return 0


def _name(args: argparse.Namespace) -> str:
    return args.model.rstrip("/").rpartition("/")[2]


def _model_type(args: argparse.Namespace) -> str:
    if args.model_type:
        return args.model_type
    config = Path(args.model) / "config.json"
    if config.is_file():
        found = json.loads(config.read_text(encoding="utf-8")).get("model_type")
    else:
        plain = args.model.lower().replace(".", "_").replace("-", "_")
        found = next((kind for kind in CLASSES if kind.replace("qwen", "") in plain and "qwen" in plain), None)
    if found not in CLASSES:
        raise InputError(f"{args.model} is not known to be one of {', '.join(CLASSES)} ({found}); give --model-type")
    return found


def _head(args: argparse.Namespace, extra: str = "") -> list[str]:
    repository, commit, date = CHECKED[args.harness]
    folder = repository.rpartition("/")[2]
    return [
        f"# {TITLES[args.harness]} of {date}; once, in an environment of its own:",
        f"# git clone https://github.com/{repository} && cd {folder}",
        f"# git checkout {commit} && pip install -e '.{extra}'",
        "# export OPENAI_API_KEY=...  # for grading",
        *([f"cd {folder}"] if args.harness == "vlmevalkit" else []),
    ]


def _vlmevalkit(args: argparse.Namespace) -> list[str]:
    """vLLM serves the policy, and run.py asks it (--base-url); with transformers the class stands in a --config."""
    head, name, names = _head(args), _name(args), task_names("vlmevalkit")
    end = f"--judge {shlex.quote(args.judge)} --work-dir outputs"
    if args.backend == "vllm":
        serve = f"vllm serve {shlex.quote(args.model)} --served-model-name {shlex.quote(name)}"
        return [
            *head,
            f"{serve} --tensor-parallel-size {args.gpus} --generation-config vllm --port 8000 &",
            "until curl -sf http://localhost:8000/v1/models > /dev/null; do kill -0 $! || exit 1; sleep 5; done",
            f"python run.py --api-mode --base-url http://localhost:8000/v1 --model {shlex.quote(name)} \\",
            f"    --max-tokens {args.max_new_tokens} --data {' '.join(names)} \\",
            f"    {end}",
            "kill $!  # the server",
        ]
    model = {"class": CLASSES[_model_type(args)], "model_path": args.model, "use_custom_prompt": False}
    model |= {"max_new_tokens": args.max_new_tokens}
    data = {task: {"class": kind, "dataset": task} for task, kind in names.items()}
    config = json.dumps({"model": {name: model}, "data": data}, indent=2)
    launch = "python" if args.gpus == 1 else f"torchrun --nproc-per-node={args.gpus}"
    return [*head, "cat > config.json <<'EOF'", config, "EOF", f"{launch} run.py --config config.json {end}"]


def _lmms_eval(args: argparse.Namespace) -> list[str]:
    head = _head(args, "[all]")
    launch = "python -m lmms_eval"
    if args.backend == "vllm":
        model, given = (
            "vllm",
            f"model={args.model},tensor_parallel_size={args.gpus},max_new_tokens={args.max_new_tokens}",
        )
    else:
        model, given = _model_type(args), f"pretrained={args.model}"
        launch = launch if args.gpus == 1 else f"accelerate launch --num_processes={args.gpus} -m lmms_eval"
    return [
        *head,
        f"export MODEL_VERSION={shlex.quote(args.judge)} OPENAI_BASE_URL=https://api.openai.com/v1",
        f'export USE_LLM_JUDGE=True JUDGE_MODEL_NAME={shlex.quote(args.judge)} JUDGE_API_KEY="$OPENAI_API_KEY"',
        f"{launch} --model {model} --model_args {shlex.quote(given)} \\",
        f"    --tasks {','.join(task_names('lmms-eval'))} \\",
        f"    --gen_kwargs max_new_tokens={args.max_new_tokens} --batch_size {64 if args.backend == 'vllm' else 1} \\",
        f"    --log_samples --output_path logs/{shlex.quote(_name(args))}",
    ]


def table(argv: list[str]) -> int:
    parser = CommandParser("benchmarks table", "Read the harnesses' results into one table.", TABLE_EXAMPLE)
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS", help="result files, or folders of them")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--markdown", action="store_true", help="print a Markdown table")
    how.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    from ...eval.report_text import plain

    found = read_results(args.results)
    if args.json:
        print(json.dumps(_as_json(found), allow_nan=False))
        return 0
    rows = _rows(found)
    if args.markdown:
        lines = [f"| {' | '.join(plain(cell) or ' ' for cell in row)} |" for row in rows]
        print("\n".join([lines[0], "| --- |" + " ---: |" * (len(rows[0]) - 1), *lines[1:]]))
    else:
        print("\n".join(map(one_line, _aligned(rows))))
    if found.unread:
        print()
    for path, reason in found.unread.items():
        told = one_line(f"not read: {path}: {reason}")
        print(f"- {plain(told)}" if args.markdown else told)
    return 0


def _as_json(found: Found) -> dict[str, Any]:
    columns = {}
    for column, scores in found.scores.items():
        own = {name: {"percent": s, "task": task, "file": str(path)} for name, (s, task, path) in scores.items()}
        means = {group: mean for group, (mean, _, _) in averages(scores).items()}
        columns[column] = {
            "scores": own,
            "averages": means,
            "missing": [b.name for b in BENCHMARKS if b.name not in own],
        }
    return {"columns": columns, "paper": PAPER, "unread": found.unread, "checked": CHECKED}


def _rows(found: Found) -> list[list[str]]:
    rows = [["percent", *found.scores, *PAPER]]
    means = {column: averages(scores) for column, scores in found.scores.items()}
    for group in (*GROUPS, None):
        for benchmark in (b for b in BENCHMARKS if b.group == group):
            own = [s[benchmark.name][0] if benchmark.name in s else None for s in found.scores.values()]
            rows.append([benchmark.name, *map(_number, own), *([NONE if group else ""] * len(PAPER))])
        if group is not None:
            own = [_mean(*means[column][group]) for column in found.scores]
            rows.append([f"{group} average", *own, *(_number(row[group]) for row in PAPER.values())])
    return rows


def _mean(mean: float | None, there: int, wanted: int) -> str:
    return f"{NONE} ({there} of {wanted})" if mean is None else _number(mean)


def _number(score: float | None) -> str:
    return NONE if score is None else f"{score:.2f}"


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
