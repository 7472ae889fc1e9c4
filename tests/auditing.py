"""Tables for the tests of the audit by people: 6 examples with an image, 2 responses each, 4 criteria, two judges."""

from __future__ import annotations

import os
import shutil

from claimwise.verifier.schema import Criterion, Example, Rollout, Verdict
from claimwise.verifier.tables import write_examples, write_rollouts, write_verdicts
from PIL import Image

CRITERIA = (
    Criterion("c1", "States that the <b>top</b> is red.", dimension="VF", label="ESSENTIAL", weight=5),
    Criterion("c2", "The conclusion follows.", dimension="RC", label="IMPORTANT", weight=3),
    Criterion("c3", "Wrongly says that the top is blue.", dimension="VF", label="PITFALL", weight=-3),
    Criterion("c4", "Answers in one word."),
)
EVIL = "A 😀 first. </script><img src=x onerror=alert(1)><script>alert(2)</script> So: red & <b>blue</b>."
PLAIN = "The top is red. So: red."


def tables():
    """(examples, rollouts, judge A, judge B). Judge A says yes to c1, c2 and c4 of the first response, no otherwise, and
    is silent (missing) on c4 of e5; it points at the first sentence for c1 and c2. Judge B is A, but for c1 of e0."""
    examples, rollouts, a, b = [], [], [], []
    for n in range(6):
        image = Image.new("RGB", (40, 30), (40 * n, 0, 0))
        source = "charts" if n < 2 else "photos"
        examples.append(Example(f"secret-e{n}", f"What is at the top of {n}?", CRITERIA, (image,), None, None, source))
        for k, text in enumerate((EVIL, PLAIN)):
            rollout = Rollout(f"secret-e{n}/attack-{k}", f"secret-e{n}", text, "secret-policy", k)
            rollouts.append(rollout)
            for criterion in CRITERIA:
                a.append(verdict(rollout, criterion, "judge-a", k == 0 and criterion.id != "c3", n))
                b.append(verdict(rollout, criterion, "judge-b", (a[-1].verdict is True) ^ (n == 0 == k), n))
    return examples, rollouts, a, b


def verdict(rollout, criterion, judge, yes, n):
    end = rollout.response.index(".") + 1 if criterion.id in ("c1", "c2") else None
    silent = criterion.id == "c4" and n == 5 and judge == "judge-a"
    return Verdict(
        rollout.example_id,
        rollout.rollout_id,
        criterion.id,
        judge,
        "image",
        None if silent else yes,
        None if silent else 0.87654 if yes else 0.12345,
        None if end is None else 0,
        end,
        "none" if end is None else "pointer",
        "secret-reading",
        "timed out" if silent else None,
    )


def write_tables(folder):
    """examples.parquet, rollouts.parquet, a.jsonl, b.jsonl."""
    examples, rollouts, a, b = tables()
    write_examples(folder / "examples.parquet", examples)
    write_rollouts(folder / "rollouts.parquet", rollouts)
    write_verdicts(folder / "a.jsonl", a)
    write_verdicts(folder / "b.jsonl", b)
    return folder


def sample_flags(folder, page, count=12):
    return [
        *("audit", "sample", "--examples", f"{folder}/examples.parquet", "--rollouts", f"{folder}/rollouts.parquet"),
        *("--verdicts", f"{folder}/a.jsonl", "--verdicts", f"{folder}/b.jsonl"),
        *("--count", str(count), "--seed", "3", "--out", str(page)),
    ]


def find_chromium(playwright):
    """A Chromium of the system, or Playwright's own; None where there is neither."""
    own = playwright.chromium.executable_path
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), own if os.path.exists(own) else None)
