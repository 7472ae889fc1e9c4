"""The benchmarks' commands and their results: files laid out as the harnesses' sources write them (see
`scripts.benchmark_results`), read back, and what is missing or strange in them named."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from claimwise.scripts.benchmark_tasks import BENCHMARKS, CHECKED
from claimwise.scripts.cli import main

# Each as its function makes it: a DataFrame, dumped by to_csv(index=False, quoting=QUOTE_ALL).
VLMEVALKIT = {
    # report_acc: shares by split
    "policy_MMBench_DEV_EN_acc": {"split": ["dev"], "Overall": [0.8], "AR": [0.7]},
    "policy_MMMU_DEV_VAL_acc": {"split": ["dev", "validation"], "Overall": [0.9, 0.5], "Accounting": [1.0, 0.4]},
    "policy_MMMU_Pro_10c_COT_acc": {"split": ["none"], "Overall": [0.4]},
    "policy_MMMU_Pro_10c_COT_cotpost_acc": {"split": ["none"], "Overall": [0.4]},
    "policy_MMMU_Pro_V_acc": {"split": ["test"], "Overall": [0.3]},
    # MATH_V_acc, MathVerse_acc, evaluate_logicvista, Hallusion_rating: percents
    "policy_MathVision_gpt-4o-mini_score": {
        "Subject": ["Overall", "algebra"], "tot": [4, 2], "prefetch": [0, 0], "hit": [1, 0],
        "prefetch_rate": [0.0, 0.0], "acc": [25.0, 0.0],
    },
    "policy_MathVerse_MINI_Vision_Only_cot_gpt-4o-mini_score": {"split": ["Vision Only"], "Overall": [60.0]},
    # Dynamath.evaluate: shares
    "policy_DynaMath_gpt-4o-mini_score": {"Setting": ["Average", "Worst Case"], "Overall": [0.55, 0.35]},
    # wemath_evaluate_models and wemath_accuracy, combined
    "policy_WeMath_COT_gpt4o-mini_score": {
        "Score (Strict)": ["41.90%"], "InsufficientKnowledge (Strict)": ["30.0% (157)"], "Score (Loose)": ["55.00%"],
    },
    "policy_LogicVista_gpt4o-mini_score": {
        "Task&Skill": ["Overall", "spatial"], "tot": [2, 1], "hit": [1, 1], "acc": [50.0, 100.0],
    },
    # CharXiv.get_scores: shares
    "policy_CharXiv_reasoning_val_gpt-4o-mini_acc": {"Text-in-Chart": [0.5], "Overall": [0.45]},
    "policy_HallusionBench_score": {
        "split": ["Overall", "VD"], "aAcc": [70.0, 1.0], "fAcc": [40.0, 1.0], "qAcc": [46.0, 1.0],
    },
}  # fmt: skip
GENERAL, VISUAL = (80 + 50 + 40 + 30) / 4, (25 + 60 + 55 + 41.9 + 50 + 45) / 6


def put(folder: Path, name: str, columns: dict) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(columns).to_csv(folder / f"{name}.csv", index=False, encoding="utf-8", quoting=1)
    return folder / f"{name}.csv"


def run_folder(folder: Path) -> Path:
    """One run as VLMEvalKit leaves it: tables in the run's folder, links to the last run's above it."""
    for name, columns in VLMEVALKIT.items():
        table = put(folder / "T20260820_Gabc", name, columns)
        (folder / table.name).symlink_to(table.relative_to(folder))
    put(folder / "T20260819_Gabc", "policy_MMBench_DEV_EN_acc", {"split": ["dev"], "Overall": [0.1]})
    (folder / "T20260820_Gabc" / "policy_MMBench_DEV_EN.xlsx").write_bytes(b"predictions")
    (folder / "T20260820_Gabc" / "status.json").write_text("{}")
    return folder


# EvaluationTracker.save_results_aggregated: metrics as "metric,filter", percents or shares as each task aggregates.
LMMS_EVAL = {
    "results": {
        "mmbench_en_dev": {"alias": "mmbench_en_dev", "gpt_eval_score,none": 81.5, "gpt_eval_score_stderr,none": "N/A",
                           "submission,none": None},
        "mmmu_val": {"alias": "mmmu_val", "mmmu_acc,none": 0.51, "mmmu_acc_stderr,none": "N/A"},
        "mathvision_test": {"alias": "mathvision_test", "mathvision_standard_eval,none": 26.31},
        "wemath_testmini_reasoning": {"alias": " ", "acc_score,none": 0.5, "wemath_strict,none": "42.10%"},
        "logicvista_reasoning": {"alias": " ", "acc_score,none": "N/A", "format_score,none": 1.0},
        "hallusion_bench_image": {"alias": " ", "aAcc,none": 66.0, "qAcc,none": 40.0, "fAcc,none": 38.0},
        "mme": {"alias": "mme", "mme_cognition_score,none": 640.0},
    },
    "configs": {}, "model_source": "vllm", "model_name": "runs/policy",
}  # fmt: skip


def table(capsys, *argv: object) -> dict:
    assert main(["benchmarks", "table", *map(str, argv), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_whole_run_of_vlmevalkit(tmp_path, capsys):
    found = table(capsys, run_folder(tmp_path / "policy"))
    (own,) = found["columns"].values()
    scores = {name: score["percent"] for name, score in own["scores"].items()}
    assert scores == pytest.approx({
        "MMBench-Dev": 80.0, "MMMU Val": 50.0, "MMMU-Pro": 40.0, "MMMU-Pro vision": 30.0, "MathVision": 25.0,
        "MathVerse vision-only": 60.0, "DynaMath": 55.0, "WeMath": 41.9, "LogicVista": 50.0, "CharXiv reasoning": 45.0,
        "DynaMath worst case": 35.0, "HallusionBench": 52.0,
    })  # fmt: skip
    assert own["averages"] == pytest.approx({"general": GENERAL, "visual": VISUAL})
    assert own["missing"] == ["CharXiv descriptive"] and found["unread"] == {}
    assert own["scores"]["MMMU-Pro vision"]["task"] == "MMMU_Pro_V"
    assert main(["benchmarks", "table", str(tmp_path / "policy"), "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| percent | policy (VLMEvalKit) | paper: SFT | paper: answer-only | paper: rubric |"
    assert "| general average | 50.00 | 64.93 | 66.25 | 68.04 |" in lines
    assert f"| visual average | {VISUAL:.2f} | 58.45 | 61.94 | 62.45 |" in lines


def test_lmms_eval_beside_it_with_gaps(tmp_path, capsys):
    results = tmp_path / "logs" / "runs__policy" / "20260820_101500_results.json"
    results.parent.mkdir(parents=True)
    results.write_text(json.dumps(LMMS_EVAL, indent=2))
    one = put(tmp_path, "other_MMBench_DEV_EN_acc", {"split": ["dev"], "Overall": [0.5]})
    found = table(capsys, tmp_path / "logs", one)
    own = found["columns"]["runs/policy (lmms-eval)"]
    assert {name: score["percent"] for name, score in own["scores"].items()} == pytest.approx(
        {"MMBench-Dev": 81.5, "MMMU Val": 51.0, "MathVision": 26.31, "WeMath": 42.1, "HallusionBench": 48.0}
    )
    assert own["averages"] == {"general": None, "visual": None}
    told = {path.rpartition("_results.json ")[2]: reason for path, reason in found["unread"].items()}
    assert set(told) == {"(LogicVista)", "(mme)"} and "'N/A'" in told["(LogicVista)"]
    assert main(["benchmarks", "table", str(results), str(one)]) == 0
    shown = capsys.readouterr().out
    assert "– (2 of 4)" in shown and "– (1 of 4)" in shown and "not read: " in shown


def test_the_reasoning_tasks_of_lmms_eval(tmp_path, capsys):
    """Shares under acc_score, as their `aggregation: mean` leaves them."""
    found = {name: {"acc_score,none": share, "format_score,none": 1.0}
             for name, share in (("mmbench_en_dev_reasoning", 0.82), ("mmmu_val_reasoning", 0.55))}  # fmt: skip
    (tmp_path / "1_results.json").write_text(json.dumps({**LMMS_EVAL, "results": found}))
    (own,) = table(capsys, tmp_path)["columns"].values()
    scores = {name: score["percent"] for name, score in own["scores"].items()}
    assert scores == pytest.approx({"MMBench-Dev": 82.0, "MMMU Val": 55.0})


@pytest.mark.parametrize(
    ("name", "columns", "told"),
    [
        ("policy_MMStar_acc", {"split": ["none"], "Overall": [0.5]}, "no task of these benchmarks is in its name"),
        ("policy_MMBench_DEV_EN_acc", {"split": ["test"], "Overall": [0.5]}, "of its 1 rows, 0 could hold the score"),
        ("policy_MMBench_DEV_EN_acc", {"split": ["dev"], "Accuracy": [0.5]}, "no number under 'Overall'"),
        ("policy_MMBench_DEV_EN_acc", {"split": ["dev"], "Overall": [80.0]}, "another layout"),  # a percent already
        ("policy_CharXiv_reasoning_val_acc", {"Overall": [0.5, 0.6]}, "of its 2 rows, 2 could"),
        ("policy_LogicVista_score", {"Task&Skill": ["Overall"], "acc": [float("nan")]}, "no number under 'acc'"),
        ("policy_LogicVista_score", {"Task&Skill": ["Overall"], "acc": [0.5]}, "not shares"),
        (
            "policy_HallusionBench_score",
            {"split": ["Overall"], "aAcc": [0.7], "fAcc": [0.4], "qAcc": [0.5]},
            "shares",
        ),
        # other data sets, whose names begin like ours
        ("policy_MMBench_DEV_EN_V11_acc", {"split": ["dev"], "Overall": [0.8]}, "in its name, but MMBench_DEV_EN_V11"),
        ("policy_MathVision_MINI_gpt-4o-mini_score", {"Subject": ["Overall"], "acc": [25.0]}, "but MathVision_MINI"),
        ("policy_DynaMath_noprompt_score", {"Setting": ["Average"], "Overall": [0.5]}, "but DynaMath_noprompt"),
        (
            "policy_MathVerse_MINI_Text_Lite_score",
            {"split": ["Vision Only"], "Overall": [60.0]},
            "MathVerse_MINI_Text_Lite",
        ),
    ],
)
def test_what_cannot_be_read_is_named(name, columns, told, tmp_path, capsys):
    strange = put(tmp_path, name, columns)
    known = put(tmp_path, "policy_MMMU_DEV_VAL_acc", {"split": ["validation"], "Overall": [0.5]})
    found = table(capsys, strange, known)
    (path, reason), *others = found["unread"].items()
    assert not others and path.startswith(str(strange)) and told in reason
    assert main(["benchmarks", "table", str(strange)]) == 2  # nothing else to show
    assert "no score can be read" in capsys.readouterr().err


def test_a_models_name_stays_in_its_cell(tmp_path, capsys):
    model = "a|b\n<script> \ud800"
    results = tmp_path / "1_results.json"
    results.write_text(json.dumps({**LMMS_EVAL, "model_name": model}))
    assert main(["benchmarks", "table", str(results)]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("percent                a|b <script> ? (lmms-eval)  ")
    assert main(["benchmarks", "table", str(results), "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(r"| percent | a\|b \<script\> ? (lmms-eval) | paper: SFT |")
    assert any(line.startswith("- not read: ") for line in lines)


def test_a_byte_order_mark_hides_no_column(tmp_path, capsys):
    name = "policy_MathVision_score.csv"
    (tmp_path / name).write_text("Subject,acc\nOverall,25.0\nalgebra,10.0\n", encoding="utf-8-sig")
    (own,) = table(capsys, tmp_path)["columns"].values()
    assert own["scores"]["MathVision"]["percent"] == 25


def test_refused(tmp_path, capsys):
    broken, binary = tmp_path / "x_results.json", tmp_path / "policy_MMBench_DEV_EN_acc.csv"
    broken.write_text('{"results": [')
    (deep := tmp_path / "y_results.json").write_text("[" * 100_000)
    binary.write_bytes(b"\xff\xfe\x00")
    notes = tmp_path / "notes.txt"
    notes.write_text("")
    assert main(["benchmarks", "table", str(broken), str(binary), str(notes), str(deep)]) == 2
    told = capsys.readouterr().err
    assert "no result of lmms-eval" in told and "it cannot be read" in told and "no result is called so" in told
    assert main(["benchmarks", "table", str(tmp_path / "nowhere")]) == 2
    assert "there is no such file or folder" in capsys.readouterr().err
    for run, share in (("a", 0.5), ("b", 0.6)):
        put(tmp_path / "two" / run, "policy_MMBench_DEV_EN_acc", {"split": ["dev"], "Overall": [share]})
    assert main(["benchmarks", "table", str(tmp_path / "two")]) == 2
    assert "50.00 and 60.00; give the results of one run" in capsys.readouterr().err


@pytest.mark.parametrize("harness", ["vlmevalkit", "lmms-eval"])
@pytest.mark.parametrize("backend", ["vllm", "transformers"])
def test_the_commands_are_a_script_with_every_task_once(harness, backend, capsys):
    argv = ["benchmarks", "commands", "--model", "Qwen/Qwen3-VL-8B-Instruct", "--harness", harness]
    assert main([*argv, "--backend", backend, "--gpus", "2", "--max-new-tokens", "999"]) == 0
    script = capsys.readouterr().out
    assert not subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=True).stderr
    assert CHECKED[harness][1] in script and "999" in script
    tasks = {task.names[0] for b in BENCHMARKS if (task := b.task(harness)) is not None}
    if (harness, backend) == ("vlmevalkit", "transformers"):
        config = json.loads(script.partition("<<'EOF'\n")[2].partition("\nEOF")[0])
        assert set(config["data"]) == tasks and all(v["dataset"] == name for name, v in config["data"].items())
        (model,) = config["model"].values()
        assert model["class"] == "Qwen3VLChat" and model["model_path"] == "Qwen/Qwen3-VL-8B-Instruct"
    else:
        listed = script.partition("--data " if harness == "vlmevalkit" else "--tasks ")[2].partition(" \\")[0]
        assert sorted(listed.replace(",", " ").split()) == sorted(tasks)
    if harness == "lmms-eval":
        assert "USE_LLM_JUDGE=True JUDGE_MODEL_NAME=gpt-4o-mini" in script and "mmmu_val_reasoning" in script
        assert f"--model {'vllm' if backend == 'vllm' else 'qwen3_vl'} " in script


def test_a_models_type_comes_from_its_folder(assets, capsys):
    argv = ["benchmarks", "commands", "--harness", "lmms-eval", "--backend", "transformers", "--model"]
    assert main([*argv, str(assets / "policy")]) == 0
    assert f"--model qwen3_vl --model_args pretrained={assets / 'policy'}" in capsys.readouterr().out
    assert main([*argv, "lab/our-model"]) == 2
    assert "--model-type" in capsys.readouterr().err


def test_the_names(capsys):
    assert main(["benchmarks", "tasks"]) == 0
    shown = capsys.readouterr().out
    assert all(benchmark.name in shown for benchmark in BENCHMARKS) and CHECKED["lmms-eval"][1] in shown
