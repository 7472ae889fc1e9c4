"""The command `claimwise`: finds the subcommand, runs it, and turns bad input into one line and exit status 2.

    claimwise credit group.json --arm prefix

Each subcommand is a module of `commands` with `main(argv) -> int`; it is imported only when called, so that help and the
light commands answer at once.
"""

from __future__ import annotations

import gc
import importlib
import io
import logging
import os
import sys
from importlib import metadata

from ..verifier.errors import InputError

COMMANDS = {
    "quickstart": "the whole product on handwritten digits, ending in a report",
    "data": "look at rubric data, and make the example table of it",
    "rubrics": "what is wrong with the criteria of an example table, or new ones by a model",
    "rollout": "sample responses from a policy, with counterfactual and truncated ones",
    "label": "a teacher's verdicts on rollouts, as a verdict table",
    "distill": "train a LoRA verifier on a teacher's verdicts",
    "judge": "a verifier's verdicts on rollouts, as a verdict table",
    "cascade": "the verifier first, the teacher where it is uncertain, within a budget",
    "serve": "a verifier behind a vLLM server, for judging from elsewhere",
    "push": "upload a verifier to the Hub, with a model card",
    "sft": "cold start: fine-tune a policy on conversations before GRPO",
    "train": "GRPO with the verifier as judge and component-wise prefix credit",
    "evaluate": "policies on held-out rubric data: answers, criteria, right answers that are unfaithful",
    "benchmarks": "the paper's benchmarks through VLMEvalKit and lmms-eval: commands, and one table of results",
    "refresh": "train a verifier on from what a GRPO run found it wrong on",
    "agree": "how far two verdict tables agree",
    "fidelity": "whether a judge's verdicts lead to the credit that the reference's lead to",
    "compare": "two judges pair by pair: with and without the image, or two verifiers",
    "study": "experiments on digits: what arms of the credit, judges and a verifier's order differ in",
    "audit": "what is wrong with rubrics: criteria that contradict the image",
    "credit": "the advantage of every token of one group of responses",
    "align": "find a quote in a response",
    "report": "one self-contained page for a run",
    "bench": "figures of this machine: rates, memory, exactness",
}


def overview() -> str:
    lines = [f"  {name:<11} {what}" for name, what in COMMANDS.items()]
    return "\n".join(
        [
            "usage: claimwise COMMAND ...",
            "",
            "Rubric-based GRPO of vision-language models with a distilled verifier.",
            "",
            *lines,
            "",
            "claimwise COMMAND --help shows a command's flags and an example to copy; --version the version.",
        ]
    )


def main(argv: list[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(overview())
        return 0 if argv else 2
    if argv[0] == "--version":
        print(f"claimwise {metadata.version('claimwise')}")
        return 0
    name, rest = argv[0], argv[1:]
    if name not in COMMANDS:
        print(f"claimwise: there is no command {name!r}; claimwise --help lists them", file=sys.stderr)
        return 2
    for stream in (sys.stdout, sys.stderr):  # half a surrogate pair in somebody's text is no reason to fail
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    os.environ.setdefault("GOMP_SPINCOUNT", "100000")  # threads that spin for long slow a busy two-core machine
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # without a GPU it says so wherever it is imported
    status = run(name, rest)
    leave_processes()
    return status


def run(name: str, rest: list[str]) -> int:
    """The command's exit status; 2 after one line about bad input."""
    try:
        return importlib.import_module(f".commands.{name}", __package__).main(rest) or 0
    except InputError as error:
        print(f"claimwise {name}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # who read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print(f"\nclaimwise {name}: stopped; the same command goes on from here", file=sys.stderr)
        return 130


def leave_processes() -> None:
    """Where several processes were launched on CPUs, ends this one's part while the interpreter still runs: a thread of
    gloo's that lets go of a tensor later than that aborts the process (pytorch/pytorch#190489). NCCL has no such threads,
    and a process that leaves it before the others may wait for them."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return
    if distributed.get_world_size() > 1 and distributed.get_backend() == "gloo":  # of one: a vLLM in this process
        gc.collect()  # the threads end with the last object that holds their group; a trainer holds it, and is a cycle
        distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
