"""claimwise bench eval: what measuring costs, and how good the shipped verifier's credit and its audit of rubrics are.

In: the shipped models and the digits world. Out: seconds and memory of the agreement of two big tables; fidelity of the
verifier's credit beside tossed coins; recall and precision of the criterion audit against the planted wrong criteria.
"""

from __future__ import annotations

import resource
import sys
import time
from importlib import resources
from typing import Any

DESCRIPTION = """Measure the measuring: agreement of two tables of a million verdicts with bootstrap intervals; on
held-out digits, the fidelity of the shipped verifier's credit (arm prefix, rubric term alone) and its criterion audit."""
EXAMPLE = """example:
  claimwise bench eval --json

output with --json, one object on the last line:
  bootstrap_s           seconds from two lists of verdicts to all figures, overall and per dimension, with intervals over
                        examples (1,000 draws; AUROC 100)
  peak_rss_mb           the whole process's peak memory
  credit_fidelity       mean cosine of the tokens' advantages under the verifier's and the oracle's verdicts
  coin_flip_fidelity    the same with the verifier's spans and tossed verdicts
  audit_recall, audit_precision    of the criteria that are wrong on purpose"""

PER_EXAMPLE, PER_RESPONSE = 40, 5  # verdicts of the big tables: 8 responses of 5 criteria to an example
GROUPS = ("VF", "RC", "IF", "PITFALL", "VF")


def add_flags(parser) -> None:
    parser.add_argument("--pairs", type=int, default=1_000_000, metavar="N", help="verdicts in each big table")
    parser.add_argument("--examples", type=int, default=110, metavar="N", help="pictures whose rubrics are audited")
    parser.add_argument("--groups", type=int, default=40, metavar="N", help="of them those whose responses are judged")
    parser.add_argument("--samples", type=int, default=8, metavar="N", help="responses in a group")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of all that is drawn (default 0)")


def measure(args) -> dict[str, Any]:
    from ...verifier.errors import InputError

    for name, least in (("pairs", 2), ("examples", 1), ("groups", 1), ("samples", 2), ("seed", 0)):
        if getattr(args, name) < least:
            raise InputError(f"--{name} is {getattr(args, name)}; it must be at least {least}")
    seconds = time_agreement(args.pairs, args.seed)
    figures = on_digits(args.examples, args.groups, args.samples, args.seed)
    per_mb = 1024**2 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / per_mb
    return {"bootstrap_s": round(seconds, 2), "peak_rss_mb": round(peak), **figures}


def time_agreement(pairs: int, seed: int) -> float:
    """Seconds of `agree` on two generated tables, whose making does not count."""
    from ...eval.agreement import agree

    tables = big_tables(pairs, seed)
    started = time.monotonic()
    agree(*tables, draws=1000, seed=seed)
    return time.monotonic() - started


def big_tables(pairs: int, seed: int) -> tuple[list, list]:
    """A reference, and a judge that agrees with it nine times out of ten, spans and P(yes) included."""
    import numpy as np
    from tqdm import tqdm

    from ...verifier.schema import Verdict

    rng = np.random.default_rng(seed)
    said = rng.random(pairs) < 0.5
    judged = said ^ (rng.random(pairs) < 0.1)
    p_yes = np.clip(np.where(judged, 0.8, 0.2) + rng.normal(0, 0.1, pairs), 0, 1)
    end = np.where(rng.random(pairs) < 0.1, 60, 20)
    names = [f"c{k}" for k in range(PER_RESPONSE)]
    reference, other = [], []
    for i in tqdm(range(pairs), desc="making tables", unit="pair"):
        key = f"e{i // PER_EXAMPLE}", f"r{i // PER_RESPONSE}", names[i % PER_RESPONSE]
        group = GROUPS[i % PER_RESPONSE]
        reference.append(Verdict(*key, "a", "image", bool(said[i]), None, 0, 20, "exact", dimension=group))
        judge = "b", "image", bool(judged[i]), float(p_yes[i]), 0, int(end[i]), "pointer"
        other.append(Verdict(*key, *judge, dimension=group))
    return reference, other


def on_digits(examples: int, groups: int, samples: int, seed: int) -> dict[str, float | None]:
    """Credit fidelity and criterion audit of the shipped verifier on held-out pictures and the shipped policy's
    responses."""
    import torch
    from tqdm import tqdm

    from ...distill.oracle import OracleJudge
    from ...distill.rollouts import sample
    from ...eval.criteria_audit import score
    from ...trainer.offsets import text_and_offsets
    from ...verifier.judge import load_judge
    from ...verifier.model import load_model
    from ...verifier.progress import only_our_bars
    from ...verifier.tables import pair_up
    from ..commands.audit_criteria import audit_all, oracle
    from ..credit_groups import fidelity_by_arm, groups_of
    from ..quickstart_data import make_examples

    only_our_bars()
    assets = resources.files("claimwise.distill") / "assets"
    pictures = make_examples("test", examples, seed)
    policy = load_model(str(assets / "policy"), dtype=torch.float32)
    rollouts = sample(policy, pictures[:groups], samples, max_new_tokens=64, seed=seed)
    judge = load_judge(str(assets / "verifier"), "image", dtype=torch.float32)
    pairs = pair_up(pictures, rollouts)
    tokenizer = policy.processor.tokenizer
    ids = {r.rollout_id: tokenizer(r.response, add_special_tokens=False)["input_ids"] for r in rollouts}
    offsets = {name: text_and_offsets(tokenizer, row)[1] for name, row in ids.items()}
    bar = tqdm(judge.judge_each(pairs), total=len(pairs), desc="judging responses", unit="response")
    tables = OracleJudge("image").judge(pairs), [verdict for row in bar for verdict in row]
    credit = fidelity_by_arm(*tables, groups_of(pairs)[0], offsets, ["prefix"], draws=0, seed=seed)["prefix"]
    found = score(audit_all(pictures, judge.judge), audit_all(pictures, oracle()))
    return {
        "credit_fidelity": credit["cosine"],
        "coin_flip_fidelity": credit["coin_flip"]["cosine"],
        "audit_recall": found["recall"],
        "audit_precision": found["precision"],
    }
