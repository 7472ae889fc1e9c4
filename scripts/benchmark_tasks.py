"""The benchmarks of the V-Rubrics paper (arXiv 2608.25580) and HallusionBench: what two harnesses call them, and where in
a result file the score stands.

In: nothing. Out: `BENCHMARKS`, `PAPER`, `CHECKED`. Names and layouts were read in the harnesses' sources, at the commits
in `CHECKED`; nothing was run against them.

    VLMEvalKit    names: DATASET_URL of the classes in vlmeval/dataset/image_{mcq,vqa,yorn}.py, dynamath.py, charxiv.py
    lmms-eval     names and metrics: the keys `task` and `metric_list` of the .yaml files under lmms_eval/tasks. Two of
                  them define mmbench_en_dev_reasoning (alike), two mmmu_val_reasoning: the harness walks from the top and
                  keeps the last, mmmu/reasoning's, whose metric is acc_score
"""

from __future__ import annotations

from dataclasses import dataclass

CHECKED = {  # repository, commit, its date
    "vlmevalkit": ("open-compass/VLMEvalKit", "e8e78f05f3080fe28154f2130321f17951c3be94", "2026-08-18"),
    "lmms-eval": ("EvolvingLMMs-Lab/lmms-eval", "75571cfe0fa36ca5ec2e6aa2bb268f9d38295af3", "2026-08-06"),
}
TITLES = {"vlmevalkit": "VLMEvalKit", "lmms-eval": "lmms-eval"}
# Averages as the paper prints them, in percent: general, visual.
PAPER = {
    "paper: SFT": {"general": 64.93, "visual": 58.45},
    "paper: answer-only": {"general": 66.25, "visual": 61.94},
    "paper: rubric": {"general": 68.04, "visual": 62.45},
}
# Which benchmarks each average is over is not known here: the split below follows the benchmarks' subjects.
GROUPS = ("general", "visual")


@dataclass(frozen=True)
class Task:
    """A benchmark in a harness. `names`: the first is run; results of the others are read too, and those of `also`, which
    are laid out in another way. The score is the mean of `values` (columns, or metrics), times `to_percent`, in the row
    where a column says what `row` says."""

    names: tuple[str, ...]
    values: tuple[str, ...]
    to_percent: float
    row: tuple[str, str] | None = None
    dataset_class: str = ""  # of VLMEvalKit's --config
    also: tuple[Task, ...] = ()


@dataclass(frozen=True)
class Benchmark:
    """`group`: the average that it counts in, None for what stands in the table only. A harness without a task: None."""

    name: str
    group: str | None
    vlmevalkit: Task | None
    lmms_eval: Task | None

    def task(self, harness: str) -> Task | None:
        return self.vlmevalkit if harness == "vlmevalkit" else self.lmms_eval


# Other data sets of VLMEvalKit whose names begin as one of those below; their results are no results of these.
ALIKE = ("MMBench_DEV_EN_V11", "MathVision_MINI", "DynaMath_noprompt")
ALIKE += tuple(
    f"MathVerse_MINI_{part}" for part in ("Text_Dominant", "Text_Lite", "Vision_Dominant", "Vision_Intensive")
)

_DYNAMATH, _HALLUSION = ("DynaMath",), ("aAcc", "fAcc", "qAcc")
_MMBENCH_PLAIN = Task(("mmbench_en_dev", "mmbench_en_dev_static"), ("gpt_eval_score",), 1)
_WEMATH = ("WeMath_COT", "WeMath")  # the prompts of the plain ones want the letter alone, at once
_MATHVERSE = ("MathVerse_MINI_Vision_Only_cot", "MathVerse_MINI_Vision_Only", "MathVerse_MINI")

BENCHMARKS = (
    Benchmark(
        "MMBench-Dev",
        "general",
        Task(("MMBench_DEV_EN",), ("Overall",), 100, ("split", "dev"), "ImageMCQDataset"),
        Task(("mmbench_en_dev_reasoning",), ("acc_score",), 100, also=(_MMBENCH_PLAIN,)),
    ),
    Benchmark(
        "MMMU Val",
        "general",
        Task(("MMMU_DEV_VAL",), ("Overall",), 100, ("split", "validation"), "MMMUDataset"),
        Task(("mmmu_val_reasoning",), ("acc_score",), 100, also=(Task(("mmmu_val",), ("mmmu_acc",), 100),)),
    ),
    Benchmark(
        "MMMU-Pro",
        "general",
        Task(("MMMU_Pro_10c_COT", "MMMU_Pro_10c"), ("Overall",), 100, None, "MMMUProDataset"),
        Task(("mmmu_pro_standard_cot", "mmmu_pro_standard"), ("mmmu_acc",), 100),
    ),
    Benchmark(
        "MMMU-Pro vision",
        "general",
        Task(("MMMU_Pro_V_COT", "MMMU_Pro_V"), ("Overall",), 100, None, "MMMUProDataset"),
        Task(("mmmu_pro_vision_cot", "mmmu_pro_vision"), ("mmmu_acc",), 100),
    ),
    Benchmark(
        "MathVision",
        "visual",
        Task(("MathVision",), ("acc",), 1, ("Subject", "Overall"), "MathVision"),
        Task(("mathvision_test",), ("mathvision_standard_eval",), 1),
    ),
    Benchmark(
        "MathVerse vision-only",
        "visual",
        Task(_MATHVERSE, ("Overall",), 1, ("split", "Vision Only"), "MathVerse"),
        Task(("mathverse_testmini_vision_only",), ("gpt_eval_score",), 100),
    ),
    Benchmark(
        "DynaMath",
        "visual",
        Task(_DYNAMATH, ("Overall",), 100, ("Setting", "Average"), "Dynamath"),
        Task(("dynamath_reasoning",), ("dynamath_average",), 100),
    ),
    Benchmark(
        "WeMath",
        "visual",
        Task(_WEMATH, ("Score (Strict)",), 1, None, "WeMath"),
        Task(("wemath_testmini_reasoning",), ("wemath_strict",), 1),
    ),
    Benchmark(
        "LogicVista",
        "visual",
        Task(("LogicVista",), ("acc",), 1, ("Task&Skill", "Overall"), "LogicVista"),
        Task(("logicvista_reasoning",), ("acc_score",), 100),
    ),
    Benchmark(
        "CharXiv reasoning",
        "visual",
        Task(("CharXiv_reasoning_val",), ("Overall",), 100, None, "CharXiv"),
        Task(("charxiv_val_reasoning",), ("reasoning_acc",), 100),
    ),
    Benchmark(
        "CharXiv descriptive",
        None,
        Task(("CharXiv_descriptive_val",), ("Overall",), 100, None, "CharXiv"),
        Task(("charxiv_val_descriptive",), ("descriptive_acc",), 100),
    ),
    Benchmark(
        "DynaMath worst case",
        None,
        Task(_DYNAMATH, ("Overall",), 100, ("Setting", "Worst Case"), "Dynamath"),
        Task(("dynamath_reasoning",), ("dynamath_worst",), 100),
    ),
    Benchmark(
        "HallusionBench",
        None,
        Task(("HallusionBench",), _HALLUSION, 1, ("split", "Overall"), "ImageYORNDataset"),
        Task(("hallusion_bench_image",), _HALLUSION, 1),
    ),
)


def task_names(harness: str) -> dict[str, str]:
    """What is run with a harness, each once, in the order of the table: name -> class of VLMEvalKit."""
    tasks = [task for benchmark in BENCHMARKS if (task := benchmark.task(harness)) is not None]
    return {task.names[0]: task.dataset_class for task in tasks}
