"""Small runs of each kind, made by hand, and a parser of the pages that reports write of them."""

import json
from dataclasses import asdict, replace
from html.parser import HTMLParser

from claimwise.verifier.schema import Criterion, Example, Rollout, Verdict
from claimwise.verifier.tables import write_examples, write_rollouts, write_verdicts
from PIL import Image

CRITERIA = (
    Criterion("c1", "States that the top <b>digit</b> is 3.", dimension="VF", label="ESSENTIAL", weight=5),
    Criterion("c2", "The conclusion follows.", dimension="RC", label="IMPORTANT", weight=3),
    Criterion("c3", "Misreads the digit as 4.", dimension="VF", label="PITFALL", weight=-3),
)
EVIL = "The top digit is 3. <script>alert(1)</script> So it reads 3."
TEXT = "The top digit is 3. So it reads 3."
FIRST = (0, 20)  # "The top digit is 3. "


def gold(mode):
    """Of 12 rollouts c1 holds in the first half, c2 always, c3 never. c1 of examples 0 and 1 is wrong: the text alone
    says yes, the picture no."""
    rows = []
    for n in range(12):
        for criterion in CRITERIA:
            yes = {"c1": n < 6, "c2": True, "c3": False}[criterion.id]
            if criterion.id == "c1" and mode == "image" and n < 6:
                yes = n % 3 == 2  # rollouts 2 and 5
            span = FIRST if criterion.id == "c1" else None
            rows.append(verdict(n, criterion, f"oracle-{mode}", mode, yes, float(yes), span))
    return rows


def verdict(n, criterion, judge, mode, yes, p_yes, span):
    start, end = span or (None, None)
    return Verdict(
        example_id=f"e{n // 3}",
        rollout_id=f"r{n:02d}",
        criterion_id=criterion.id,
        judge=judge,
        mode=mode,
        verdict=yes,
        p_yes=p_yes,
        span_start=start,
        span_end=end,
        match="pointer" if span else "none",
        reading="3" if mode == "image" and criterion.id == "c1" else None,
        dimension=criterion.group,
    )


def judged(rows, judge, mode, flips=()):
    """A judge that answers as `rows` do, P(yes) .9 or .1, but for the flipped (rollout, criterion)."""
    out = []
    for v in rows:
        yes = v.verdict ^ (v.key in flips)
        out.append(replace(v, judge=judge, mode=mode, verdict=yes, p_yes=0.9 if yes else 0.1))
    return out


CREDIT = {
    "arm": "prefix",
    "budget": "paper",
    "example_id": "e0",
    "question": "What is at the top?",
    "criteria": [asdict(c) for c in CRITERIA],
    "responses": [
        {
            "response": "It is 3.<script>",
            "token_offsets": [[0, 2], [2, 5], [5, 7], [7, 8], [8, 16]],
            "arms": {
                "scalar": {
                    "advantages": [-0.125] * 5,
                    "terms": [
                        {"name": "answer", "added": -0.25, "first": 0, "last": 4},
                        {"name": "format", "added": 0.0, "first": 0, "last": 4},
                        {"name": "rubric", "added": 0.125, "first": 0, "last": 4},
                    ],
                },
                "prefix": {
                    "advantages": [0.5, 0.5, 0.5, -0.25, -0.25],
                    "terms": [
                        {"name": "answer", "added": -0.25, "first": 0, "last": 4},
                        {"name": "format", "added": 0.0, "first": 0, "last": 4},
                        {"name": "c1", "added": 0.75, "first": 0, "last": 2},
                        {"name": "c2", "added": 0.0, "first": 0, "last": 4},
                    ],
                },
            },
            "rewards": {"answer": 0.0, "format": 1.0, "rubric": None, "vetoed": False},
            "verdicts": {
                "c1": {"verdict": True, "span": [0, 8], "reading": "three"},
                "c2": {"verdict": None, "span": None, "reading": None, "error": "timed <out>"},
            },
        }
    ],
}
SUMMARY = {
    "verifier": {
        "image": {
            "agreement": 0.944,
            "kappa": 0.888,
            "by_dimension": {"VF": {"agreement": 0.917}, "RC": {"agreement": 0.917}, "IF": {"agreement": None}},
            "wrong_criteria_agreement": 1.0,
            "span_exact_given_yes": 0.987,
            "ece": 0.123,
            "attacks": {
                "n": 40,
                "missing": 1,
                "false_yes": 0.075,
                "false_yes_ci": [0.026, 0.199],
                "by_kind": {"echo": 0.25, "hedge": 0.0},
            },
        },
        "text": {"agreement": 0.889, "wrong_criteria_agreement": 0.0},
        "base": {"agreement": 0.444, "kappa": -0.111},
    },
    "policy": {
        "before": {"digits": 0.576, "conclusion": 0.5, "answer": 0.295},
        "after": {"digits": 0.893, "conclusion": 0.75, "answer": None},
    },
    "in_loop": {"agreement": 0.951, "kappa": 0.9, "sampled": 3},
    "fidelity": {
        "prefix": {
            "cosine": 0.951,
            "cosine_ci": [0.914, 0.982],
            "sign": 0.931,
            "groups": 24,
            "coin_flip": {"cosine": 0.027},
        }
    },
    "criteria_audit": {
        "gold": {
            "wrong": 10,
            "flagged": 11,
            "found": 9,
            "recall": 0.9,
            "recall_ci": [0.6, 0.98],
            "precision": 9 / 11,
            "precision_ci": [0.52, 0.95],
        }
    },
    "seconds": {"distill": 83.2, "grpo": 7.25},
    "versions": {"torch": "2.13.0", "claimwise": "0.1.0"},
    "seed": 17,
}


def make_run(folder):
    pictures = [Image.new("RGB", (64, 64), (60 * n, 20, 90)) for n in range(2)]
    examples = [Example(f"e{n}", f"What is at the top of {n}?", CRITERIA, (pictures[n % 2],)) for n in range(4)]
    write_examples(folder / "heldout/examples.parquet", examples)
    rollouts = [Rollout(f"r{n:02d}", f"e{n // 3}", EVIL if n < 9 else TEXT, "policy", n % 3) for n in range(12)]
    write_rollouts(folder / "heldout/rollouts.parquet", rollouts)
    tables = {
        "gold-image": gold("image"),
        "gold-text": gold("text"),
        "image": judged(gold("image"), "verifier", "image", {("r07", "c1"), ("r08", "c2")}),
        "text": judged(gold("text"), "verifier-text", "text"),
        "base": judged(gold("image"), "base", "image", {(f"r{n:02d}", "c2") for n in range(10)}),
    }
    for name, rows in tables.items():
        write_verdicts(folder / f"verdicts/{name}.jsonl", rows)
    (folder / "summary.json").write_text(json.dumps(SUMMARY))
    pictures[0].save(folder / "credit.png")
    (folder / "credit.json").write_text(json.dumps(CREDIT))
    log = [
        {
            "step": n,
            "rubric/reward": 0.3 + n / 40,
            "rewards/digits_read/mean": 0.5 + n / 50,
            "rubric/VF/located": 1.0,
            "rubric/fallbacks": 2.0,
            "judge/agreement": float("nan") if n == 3 else 0.95,  # what json.dumps writes for a figure without basis
        }
        for n in range(1, 9)
    ]
    (folder / "policy/in_loop").mkdir(parents=True)
    (folder / "policy/log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    samples = zip(tables["image"][:3], tables["gold-image"][:3], strict=True)
    (folder / "policy/in_loop/samples.jsonl").write_text(
        "".join(
            json.dumps({"step": 1, "weight": 2.0, "judge": asdict(a), "teacher": asdict(b)}) + "\n" for a, b in samples
        )
    )


class Page(HTMLParser):
    """Elements with their attributes, the visible text by section, and a check that what is opened is closed."""

    VOID = ("meta", "img", "br", "link", "input")

    def __init__(self, source):
        super().__init__()
        self.source, self.elements, self.open, self.sections, self.text = source, [], [], {}, ""
        self.feed(source)
        self.close()
        assert not self.open
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append((tag, dict(attrs)))

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open[-1][0] == tag
        self.open.pop()
        if tag in ("td", "th"):
            self.handle_data(" ")

    def handle_data(self, data):
        if self.open and self.open[-1][0] != "style":
            self.text += data
            for tag, attrs in self.open:
                if tag == "section":
                    self.sections[attrs["id"]] = self.sections.get(attrs["id"], "") + data

    def section(self, name):
        return " ".join(self.sections[name].split())

    def of(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]
