"""The verifier watched in the loop: how the sample is drawn, what it says of the whole, a teacher in the background."""

import json
import random
import threading
from collections import Counter

import pytest
from claimwise.trainer.in_loop import InLoopAgreement, Sample, draw, weighted_agreement
from claimwise.verifier.schema import Criterion, Example, Rollout, Verdict
from claimwise.verifier.tables import read_verdicts
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, cohen_kappa_score

CRITERIA = tuple(Criterion(f"c{i}", f"criterion {i}", dimension="VF") for i in range(10))
EXAMPLE = Example("e", "What does it read?", CRITERIA)
ROLLOUT = Rollout("r", "e", "It reads 3 5.", "policy")


def verdict(answer, criterion="c0", judge="verifier"):
    error = "no answer" if answer is None else None
    return Verdict("e", "r", criterion, judge, "image", answer, error=error, dimension="VF")


def judged(yes: int, no: int, missing: int = 0):
    answers = [True] * yes + [False] * no + [None] * missing
    return [(EXAMPLE, ROLLOUT, verdict(answer, f"c{i % 10}")) for i, answer in enumerate(answers)]


class Teacher:
    """Says yes to everything; waits for `gate` if there is one, and fails with `failure` if there is one."""

    name, mode = "teacher", "image"

    def __init__(self, gate=None, failure=None):
        self.gate, self.failure, self.asked = gate, failure, []

    def judge(self, items):
        if self.gate is not None:
            assert self.gate.wait(60)
        if self.failure is not None:
            raise self.failure
        self.asked += [(example.criteria, rollout) for example, rollout in items]
        return [verdict(True, c.id, "teacher") for example, _ in items for c in example.criteria]


@pytest.mark.parametrize(
    ("yes", "no", "count", "drawn"),
    [
        (90, 10, 8, (4, 4)),
        (90, 10, 7, (4, 3)),
        (90, 1, 8, (7, 1)),  # too few of one: the other fills up
        (2, 90, 8, (2, 6)),
        (0, 90, 8, (0, 8)),
        (3, 2, 8, (3, 2)),  # too few of both: all of them
        (0, 0, 8, (0, 0)),
        (5, 5, 0, (0, 0)),
    ],
)
def test_half_yes_and_half_no_as_far_as_they_go(yes, no, count, drawn):
    sample = draw(judged(yes, no, missing=5), count, random.Random(0))
    taken = Counter(v.verdict for (_, _, v), _ in sample)
    assert (taken[True], taken[False], taken[None]) == (*drawn, 0)
    assert len({id(j) for j, _ in sample}) == len(sample)  # none twice
    # weights: 90 yes of which 4 are drawn stand for 22.5 each; together they give the whole back
    for answer, whole, part in ((True, yes, drawn[0]), (False, no, drawn[1])):
        weights = [weight for (_, _, v), weight in sample if v.verdict is answer]
        assert weights == pytest.approx([whole / part] * part if part else [])


def test_weights_undo_the_sampling():
    """90 yes of the judge, of which the teacher shares half, and 10 no, all shared. Half and half of the sample would
    say .75; the whole says (45 + 10) / 100."""
    samples = [Sample(0, 90 / 4, verdict(True), verdict(i < 2)) for i in range(4)]
    samples += [Sample(0, 10 / 4, verdict(False), verdict(False)) for _ in range(4)]
    figures = weighted_agreement(samples)
    assert figures["agreement"] == pytest.approx(0.55)
    # teacher yes .45, judge yes .9: chance .45 x .9 + .55 x .1 = .46; (.55 - .46) / .54
    assert figures["kappa"] == pytest.approx(0.09 / 0.54)


def test_what_is_not_defined_is_none():
    assert weighted_agreement([]) == {"agreement": None, "kappa": None}
    assert weighted_agreement([Sample(0, 1.0, verdict(True), verdict(None))]) == {"agreement": None, "kappa": None}
    assert weighted_agreement([Sample(0, 2.0, verdict(True), verdict(True))]) == {"agreement": 1.0, "kappa": None}


def test_a_missing_answer_of_the_teacher_is_left_out():
    known = [Sample(0, 3.0, verdict(True), verdict(True)), Sample(0, 1.0, verdict(False), verdict(True))]
    assert weighted_agreement([*known, Sample(0, 5.0, verdict(True), verdict(None))]) == weighted_agreement(known)


pairs = st.tuples(st.booleans(), st.booleans(), st.floats(0.1, 100))


@settings(max_examples=50)
@given(st.lists(pairs, max_size=30))
def test_as_scikit_learn_has_it(rows):
    rows += [(True, False, 1.0), (False, True, 2.0)]  # both classes on both sides, or kappa is not defined
    teacher, judge, weights = zip(*rows, strict=True)
    samples = [Sample(0, w, verdict(b), verdict(a)) for a, b, w in rows]
    figures = weighted_agreement(samples)
    assert figures["kappa"] == pytest.approx(cohen_kappa_score(teacher, judge, sample_weight=weights), abs=1e-9)
    assert figures["agreement"] == pytest.approx(accuracy_score(teacher, judge, sample_weight=weights))


def test_samples_come_back_with_their_step_weight_and_criterion(tmp_path):
    teacher = Teacher()
    watch = InLoopAgreement(teacher, 4, tmp_path / "in_loop", seed=0)
    watch.observe(3, judged(8, 2))
    figures = watch.close()
    # 8 yes, all shared; 2 no, none shared
    assert (figures["agreement"], figures["kappa"], figures["sampled"]) == (pytest.approx(0.8), pytest.approx(0), 4)
    assert (figures["teacher_missing"], figures["escalated"], figures["alarms"]) == (0, 0, [])
    rows = [json.loads(line) for line in (tmp_path / "in_loop" / "samples.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [3] * 4 and sorted(row["weight"] for row in rows) == [1, 1, 4, 4]
    for row in rows:
        assert row["judge"]["criterion_id"] == row["teacher"]["criterion_id"]
        assert (row["judge"]["judge"], row["teacher"]["judge"]) == ("verifier", "teacher")
        assert [Verdict(**row["judge"]), Verdict(**row["teacher"])]
    for criteria, rollout in teacher.asked:
        assert len(criteria) == 1 and rollout is ROLLOUT  # asked only for what is sampled


def test_what_the_teacher_has_answered_in_a_cascade_is_counted_and_not_drawn(tmp_path):
    """Ten by the judge, all of which are drawn, and thirty by the teacher: a share of .75. A judge that is no cascade may
    have the teacher's name: the oracle that watches itself."""
    step = [
        (EXAMPLE, ROLLOUT, verdict(i % 2 == 0, f"c{i % 10}", "verifier" if i < 10 else "teacher")) for i in range(40)
    ]
    figures = {}
    for name, cascade in (("yes", True), ("no", False)):
        watch = InLoopAgreement(Teacher(), 20, tmp_path / name, seed=0, cascade=cascade)
        figures[name] = watch.observe(0, step)
        watch.close()
        assert (
            Counter(s.judge.judge for s in watch.samples)["teacher"] > 0 if name == "no" else len(watch.samples) == 10
        )
    assert figures["yes"]["judge/by_teacher"] == 0.75 and "judge/by_teacher" not in figures["no"]
    assert {v.judge for v in read_verdicts(tmp_path / "yes/judge.jsonl")} == {"verifier"}


def drawn(folder, seed, steps=(0, 1, 2)):
    watch = InLoopAgreement(Teacher(), 4, folder, seed)
    for step in steps:
        watch.observe(step, judged(50, 50))
    watch.close()
    return [(sample.step, sample.judge, sample.weight) for sample in watch.samples]


def test_the_same_seed_draws_the_same(tmp_path):
    first = drawn(tmp_path / "a", seed=0)
    assert first == drawn(tmp_path / "b", seed=0)
    assert first != drawn(tmp_path / "c", seed=1)
    assert [j for s, j, _ in first if s == 0] != [j for s, j, _ in first if s == 1]  # not the same places each step


def test_figures_roll(tmp_path):
    """Of a window of two steps: the judge's no, which the teacher does not share, drops out after two more."""
    watch = InLoopAgreement(Teacher(), 4, tmp_path, seed=0, window=2)
    seen = []
    for step, (yes, no) in enumerate([(0, 4), (4, 0), (4, 0), (4, 0)]):
        watch.observe(step, judged(yes, no))
        watch.collect(wait=True)
        recent = [s for s in watch.samples if s.step > step - 2]
        seen.append(weighted_agreement(recent)["agreement"])
    assert seen == [0, 0.5, 1, 1]
    assert watch.observe(4, [])["judge/agreement"] == 1
    assert watch.close()["agreement"] == 0.75  # over all


def test_a_slow_teacher_does_not_hold_up_the_training(tmp_path):
    gate = threading.Event()
    watch = InLoopAgreement(Teacher(gate), 4, tmp_path, seed=0)
    for step in range(3):  # would wait for ever if it waited
        assert watch.observe(step, judged(4, 4)) == {}
    assert not watch.samples and not (tmp_path / "samples.jsonl").exists()
    gate.set()
    assert watch.close()["sampled"] == 12
    assert [s.step for s in watch.samples] == [0] * 4 + [1] * 4 + [2] * 4


def test_a_failing_teacher_is_a_missing_verdict(tmp_path):
    """Counted, with its reason, and no error: the training goes on."""
    watch = InLoopAgreement(Teacher(failure=RuntimeError("the server is gone")), 4, tmp_path, seed=0)
    assert watch.observe(0, judged(4, 4)) in ({}, {"judge/teacher_missing": 1.0, "judge/alarms": 0})
    watch.collect(wait=True)
    assert watch.observe(1, []) == {"judge/teacher_missing": 1.0, "judge/alarms": 0}
    figures = watch.close()
    assert (figures["agreement"], figures["sampled"], figures["teacher_missing"]) == (None, 4, 4)
    assert {v.error for v in read_verdicts(tmp_path / "teacher.jsonl")} == {"RuntimeError: the server is gone"}


def test_a_run_at_its_end_gives_up_on_a_teacher_that_is_gone(tmp_path):
    """Ten steps are owed; three are answered by failures, one more may be on its way, the rest is asked no more."""
    gate = threading.Event()
    watch = InLoopAgreement(Teacher(gate, RuntimeError("the server is gone")), 2, tmp_path, seed=0)
    for step in range(10):
        watch.observe(step, judged(4, 4))
    gate.set()
    assert watch.close()["teacher_missing"] == 20
    reasons = [s.teacher.error for s in watch.samples]
    assert set(reasons[:6]) == {"RuntimeError: the server is gone"} and len(reasons) == 20
    assert set(reasons) <= {reasons[0], "not asked: the teacher had no answer to 3 steps in a row"}
    with pytest.raises(RuntimeError, match="after the end"):
        watch.observe(10, judged(4, 4))


def test_a_run_that_is_gone_on_with_has_each_step_once(tmp_path):
    """Steps 0-3, stopped, and from the checkpoint of step 2 again to 4: as if it had never been stopped."""
    whole = drawn(tmp_path / "whole", 0, range(5))
    drawn(tmp_path / "stopped", 0, range(4))
    with (tmp_path / "stopped" / "samples.jsonl").open("a") as file:
        file.write('{"step": 4, "wei')  # cut off while it was written
    assert drawn(tmp_path / "stopped", 0, range(2, 5)) == whole
    rows = (tmp_path / "stopped" / "samples.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [sample[0] for sample in whole]
    # stopped after its last step: nothing is drawn again and nothing is lost
    again = InLoopAgreement(Teacher(), 4, tmp_path / "stopped", 0)
    assert again.close()["sampled"] == len(whole)
