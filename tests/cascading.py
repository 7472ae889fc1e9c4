"""What the tests of the cascade share: a verifier that says what it is told, and questions for it."""

from __future__ import annotations

from claimwise.verifier.schema import Criterion, Example, Rollout, Verdict

QUICK = {"backoff_s": 0.01, "tries": 2, "max_in_flight": 2}
# the honest server says yes to c0, c2 and c4, whose texts the response has
CRITERIA = tuple(Criterion(f"c{n}", f"It says {n}.", dimension="VF") for n in range(6))
EXAMPLE = Example("e", "What?", CRITERIA)
RESPONSE = "It says 0. It says 2. It says 4."


def items(*ids, response=RESPONSE):
    return [(EXAMPLE, Rollout(name, "e", response, "p")) for name in ids or ("r",)]


class First:
    """A verifier that always gives these P(yes), one a criterion; None: missing."""

    name, mode = "verifier", "text"

    def __init__(self, *p_yes):
        self.p_yes = p_yes

    def judge(self, items):
        return [self._verdict(r, c, p) for e, r in items for c, p in zip(e.criteria, self.p_yes, strict=True)]

    def _verdict(self, rollout, criterion, p):
        said = {"verdict": None, "error": "lost"} if p is None else {"verdict": p > 0.5, "p_yes": p}
        return Verdict(
            rollout.example_id, rollout.rollout_id, criterion.id, self.name, self.mode, dimension="VF", **said
        )


def said(verdicts):
    return [(v.judge, v.verdict) for v in verdicts]
