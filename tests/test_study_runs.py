"""What a run of a study measures, and what the systematic annotator writes."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from claimwise.distill.digits import asked_line, gold, make_example, respond, truth_of
from claimwise.distill.grids import THREE
from claimwise.distill.pretrain import Stage
from claimwise.distill.rollouts import sample
from claimwise.distill.sampling import Sampler
from claimwise.scripts import cli
from claimwise.scripts.quickstart_data import recipe
from claimwise.scripts.studies import worlds as study_worlds
from claimwise.scripts.studies.metrics import measure
from claimwise.scripts.studies.runs import Meter, pictures, systematic
from claimwise.scripts.studies.settings import SWAPPING, Cell, StudySettings, numbers, quick, read_settings
from claimwise.trainer import RubricGRPOConfig
from claimwise.verifier.errors import InputError
from claimwise.verifier.model import load_model
from claimwise.verifier.tables import pair_up

READ = "The {} digit is {}. "
PLACES = ("top-left", "top-right", "bottom-left", "bottom-right")


def example_of(truth):
    """An example with these digits, asked for the top row; its picture and its criteria do not matter here."""
    example = make_example(random.Random(0), "test", 0)
    figures = "".join(map(str, truth))
    return replace(example, example_id=f"digits-test-0-{figures}", question="What does the top row read?")


def says(reads, conclusion, answer):
    return "".join(READ.format(p, d) for p, d in zip(PLACES, reads, strict=True)) + (
        f"So the top row reads {conclusion[0]} {conclusion[1]}.\nAnswer: {answer[0]} {answer[1]}"
    )


def test_outcomes_by_hand():
    """Truth 4 9 7 1, asked for 4 9. First response: reads 9 9 7 1, concludes 4 9 against its own reading, and answers
    right. Second: all right. Of the digits 3 and 4 of 4; of the 4s and 9s 1 and 2 of 2 right, 1 and 0 swapped."""
    example = example_of((4, 9, 7, 1))
    pairs = [(example, says((9, 9, 7, 1), (4, 9), (4, 9))), (example, says((4, 9, 7, 1), (4, 9), (4, 9)))]
    found = measure(pairs)
    assert found["digits"] == pytest.approx((3 / 4 + 1) / 2)
    assert (found["conclusion"], found["answer"]) == (0.5, 1.0)
    assert found["right answer, wrong reading"] == 0.5
    assert found["4 and 9 right"] == pytest.approx((1 / 2 + 1) / 2)
    assert found["4 and 9 swapped"] == pytest.approx(1 / 4) and found["other digits right"] == 1.0


def test_what_is_not_read_is_not_read_wrong_and_what_is_not_there_has_no_share():
    example = example_of((1, 2, 3, 5))
    found = measure([(example, "So the top row reads 1 2.\nAnswer: 1 2")])
    assert found["answer"] == 1 and found["right answer, wrong reading"] == 0 and found["digits"] == 0
    assert found["4 and 9 right"] is None and found["other digits right"] == 0


def test_thirds_go_by_the_order_of_the_sentences():
    """Four readings: two are the first third, then one and one. Nine: three each; here the places come last to first, and
    of what is said the 1st, the 4th and 5th, and none of the last three are wrong."""
    example = example_of((4, 9, 7, 1))
    found = measure([(example, says((0, 9, 7, 2), (4, 9), (4, 9)))])
    assert [found[f"{third} third right"] for third in ("first", "middle", "last")] == [0.5, 1, 0]
    nine = replace(example, example_id="digits-test-0-123456789")
    told = [1, 2, 3, 4, 0, 0, 7, 8, 0]
    order = list(reversed(range(9)))
    response = "".join(READ.format(THREE.positions[p], told[p]) for p in order)
    found = measure([(nine, response)])
    assert found["digits"] == pytest.approx(6 / 9)
    thirds = [found[f"{third} third right"] for third in ("first", "middle", "last")]
    assert thirds == pytest.approx([2 / 3, 1 / 3, 1])
    silent = measure([(nine, "")])
    assert silent["first third right"] is None and silent["digits"] == 0


def test_faithfulness_counts_the_readings_that_the_rubric_asks_for():
    (example,) = pictures("test", 1, "vf")
    truth, line = truth_of(example), asked_line(example.question)
    wanted = [c for c in example.criteria if c.dimension == "VF" and not c.is_pitfall]
    first = next(i for i, place in enumerate(PLACES) if place in wanted[0].text)
    misread = [(d + 1) % 10 if i == first else d for i, d in enumerate(truth)]
    rng = random.Random(1)
    assert measure([(example, respond(rng, truth, line))])["VF"] == 1
    assert measure([(example, respond(rng, misread, line))])["VF"] == pytest.approx(1 - 1 / len(wanted))


def test_clean_criteria_are_true_and_the_systematic_ones_are_true_of_the_swapped_digits():
    swap = {4: 9, 9: 4}
    changed = 0
    for example in pictures("train", 60, "annotator"):
        truth = truth_of(example)
        believed = [swap.get(d, d) for d in truth]
        other = systematic(example)
        for criteria, digits in ((example.criteria, truth), (other.criteria, believed)):
            response = respond(random.Random(0), digits, asked_line(example.question))
            assert [gold(c, response, digits).image for c in criteria] == [not c.is_pitfall for c in criteria]
        assert other.answer == example.answer and truth_of(other) == truth
        changed += other.criteria != example.criteria
        assert (4 in truth or 9 in truth) or other.criteria[:3] == example.criteria[:3]
    assert changed > 20


def test_the_divergence_is_that_of_the_distributions(assets):
    """k3 over many samples of one response token by token, against the KL of the two distributions themselves."""
    (example,) = pictures("test", 1, "kl")
    settings = StudySettings("arm", ["prefix"], ["oracle"], ["paper"], [False], ["digits"], [])
    config = RubricGRPOConfig(output_dir="", max_completion_length=3, report_to="none", bf16=False)
    policy = load_model(assets / "policy", dtype=torch.float32)
    meter = Meter(policy, [example], settings, config)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight += 0.02 * torch.randn_like(weight)
    count, prompt = 600, meter.prompts[0]
    ids = meter.policy.generate_ids([prompt] * count, 1.0)
    divergence = meter._divergence([prompt] * count, ids) / count
    assert divergence > 0.02

    def distributions(sampler: Sampler):
        with torch.inference_mode():
            batch = sampler._batch([type(prompt)([*prompt.ids, *row], prompt.pixels, prompt.grid) for row in ids])
            return sampler.policy.model(**batch).logits.log_softmax(-1)[:, -4:-1]  # what each of the 3 tokens came from

    now, start = distributions(meter.policy), distributions(meter.start)
    assert {len(row) for row in ids} == {3}
    exact = (now.exp() * (now - start)).sum(-1).sum(-1)
    assert divergence == pytest.approx(float(exact.mean()), rel=0.15)


def test_measuring_leaves_the_random_numbers_and_the_mode_alone(assets):
    settings = StudySettings("arm", ["prefix"], ["oracle"], ["paper"], [False], ["digits"], [])
    config = RubricGRPOConfig(output_dir="", max_completion_length=8, report_to="none", bf16=False)
    meter = Meter(load_model(assets / "policy", dtype=torch.float32), pictures("test", 2, "rng"), settings, config)
    meter.policy.policy.model.train()
    before = torch.random.get_rng_state()
    meter._measure(0)
    assert torch.equal(before, torch.random.get_rng_state()) and meter.policy.policy.model.training
    assert meter.points[0]["kl"] == pytest.approx(0, abs=1e-9)


def test_numbers_cells_and_the_quick_version():
    assert numbers("0-2,5") == [0, 1, 2, 5] == numbers("0-2,1,5,5")  # a seed named twice runs once
    settings = StudySettings(
        "arm", ["prefix", "span"], ["oracle"], ["paper"], [False, True], ["digits"], ["span - prefix"]
    )
    cells = settings.cells()
    assert len({cell.key for cell in cells}) == 4 and settings.pairs() == [("span", "prefix")]
    assert len({cell.table("arm") for cell in cells}) == 2
    small = quick(settings)
    assert numbers(small.seeds) == [0, 1] and small.match_rms == [False] and small.steps == 6
    assert Cell("2x2", "prefix", "oracle", "paper", True).key == "2x2_prefix_oracle_paper_rms"


STUDY_3X3 = """
compare: arm
worlds: [3x3, 2x2]
arms: [component, prefix]
judges: [oracle]
budgets: [paper]
match_rms: [false]
metrics: [digits, first third right, last third right]
contrasts: [prefix - component]
seeds: "0"
steps: 1
evaluate_at: [0, 1]
report_at: [1]
training_pictures: 2
test_pictures: 4
"""
GRPO_3X3 = """
learning_rate: 3.0e-4
per_device_train_batch_size: 4
num_generations: 4
max_completion_length: 48
beta: 0.0
bf16: false
gradient_checkpointing: false
save_strategy: "no"
report_to: none
dataloader_pin_memory: false
"""


@pytest.mark.slow
def test_a_study_of_two_worlds_makes_the_policy_that_is_not_shipped_once(tmp_path, monkeypatch):
    (tmp_path / "grpo.yaml").write_text(GRPO_3X3)
    (tmp_path / "study.yaml").write_text(STUDY_3X3 + f"recipe: {tmp_path / 'grpo.yaml'}\n")
    out, fit = tmp_path / "out", study_worlds.fit
    monkeypatch.setattr(study_worlds, "STAGES", (Stage(3, glances=1, answers=2, probes=0, claims=0),))
    monkeypatch.setattr(
        study_worlds, "NOISY_STAGES", (Stage(1, glances=0, answers=2, probes=0, claims=0, misread=0.5),)
    )
    made = []

    def stopped(*args, **kwargs):
        made.append(1)
        if len(made) == 2:  # in the first attempt's second stage
            raise KeyboardInterrupt
        fit(*args, **kwargs)

    monkeypatch.setattr(study_worlds, "fit", stopped)
    argv = ["study", "arms", "--out", str(out), "--config", str(tmp_path / "study.yaml")]
    assert cli.main(argv) == 130 and not (out / "policy-3x3").exists()
    assert cli.main(argv) == 0 and len(made) == 4
    weights = (out / "policy-3x3" / "model.safetensors").read_bytes()
    runs = {path.name: json.loads(path.read_text())["points"] for path in (out / "runs").iterdir()}
    assert len(runs) == 4 and "world 3x3" in (out / "study.md").read_text()
    starts = [points[0] for name, points in runs.items() if name.startswith("3x3")]
    assert len(starts) == 2 and starts[0] == starts[1]
    (out / "runs" / "3x3_prefix_oracle_paper_plain_seed0.json").unlink()
    assert cli.main(argv) == 0 and len(made) == 4  # the policy is kept, and the run comes out as before
    again = json.loads((out / "runs" / "3x3_prefix_oracle_paper_plain_seed0.json").read_text())
    assert again["points"] == runs["3x3_prefix_oracle_paper_plain_seed0.json"]
    study_worlds.make_policy(tmp_path / "again", THREE)
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == weights  # by its seed alone


@pytest.mark.slow
def test_the_swapping_policy_errs_as_the_annotator_does(tmp_path):
    """As often as the shipped one; but what it then reads for a 4 or a 9 is the other three times as often."""
    start = study_worlds.start_policies([SWAPPING], tmp_path)[SWAPPING]
    examples, found = pictures("validation", 60, "swapping"), {}
    for folder in (start, str(study_worlds.POLICY)):
        model = load_model(folder, dtype=torch.float32)
        pairs = pair_up(examples, sample(model, examples, 2, max_new_tokens=64))
        found[folder] = measure([(example, rollout.response) for example, rollout in pairs])
    swapping, shipped = found.values()
    for row in (swapping, shipped):
        assert 0.5 < row["4 and 9 right"] < 0.75 and 0.5 < row["other digits right"] < 0.75
    assert swapping["4 and 9 swapped"] > 0.12 and shipped["4 and 9 swapped"] < 0.08


def test_the_recipes_on_blindness_differ_in_the_start_policy_alone():
    one, other = (read_settings(Path(recipe(f"study-judges{end}.yaml")), None, "study") for end in ("", "-swapping"))
    assert (one.worlds, other.worlds) == (["2x2"], [SWAPPING])
    assert replace(other, worlds=one.worlds) == one


def test_a_verifier_judges_no_pictures_of_nine():
    with pytest.raises(InputError, match="give another world the judge oracle alone"):
        StudySettings(
            "judge", ["prefix"], ["oracle", "text"], ["paper"], [False], ["digits"], [], worlds=["2x2", "3x3"]
        )


def test_the_shipped_recipes_of_the_two_worlds_ask_the_same():
    two, three = (read_settings(Path(recipe(f"study-arms{end}.yaml")), None, "study") for end in ("", "-3x3"))
    assert (two.worlds, three.worlds) == (["2x2"], ["3x3"])
    assert three.contrasts == two.contrasts and three.arms == two.arms


@pytest.mark.parametrize("end", ["", "-3x3"])
def test_the_recipes_at_one_rate_differ_in_nothing_else(end):
    """So a run of an arm that had this rate anyway is the same run."""
    all_rates, one = (
        read_settings(Path(recipe(f"study-arms{end}{rate}.yaml")), None, "study") for rate in ("", "-one-rate")
    )
    assert set(one.arms) < set(all_rates.arms) and set(one.contrasts) < set(all_rates.contrasts)
    assert len(one.learning_rates) == 1 and one.learning_rates[0] in all_rates.learning_rates
    same = (
        "worlds",
        "seeds",
        "steps",
        "evaluate_at",
        "training_pictures",
        "test_pictures",
        "metrics",
        "annotator",
        "recipe",
    )
    assert [getattr(one, name) for name in same] == [getattr(all_rates, name) for name in same]
