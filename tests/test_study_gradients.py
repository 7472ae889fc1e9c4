"""`claimwise study gradients`: the gradients are the trainer's, the estimators are unbiased, and a run goes on."""

from __future__ import annotations

import copy
import dataclasses
import json

import numpy as np
import pytest
import torch
from claimwise.distill.sampling import Sampler
from claimwise.scripts.studies import gradient_figures as figures
from claimwise.scripts.studies import gradients as study_gradients
from claimwise.scripts.studies.gradient_sample import Family, batch_of, credit_of, judged_group
from claimwise.trainer.credit import ARMS
from claimwise.verifier.errors import InputError
from claimwise.verifier.model import load_model
from grpo_runs import PLAIN_SGD, OracleJudge, make_examples, policy, rubric_trainer, write_down, written_completions

BUDGET, LENGTH = "0.3,0.1,0.6", 48


@pytest.fixture(scope="module")
def sampler(assets):
    return Sampler(load_model(assets / "policy", dtype=torch.float32), LENGTH)


@pytest.fixture(scope="module")
def written(assets, sampler):
    """Two examples, four written responses to each, as completions for a trainer and as groups for the study."""
    examples = make_examples(2)
    completions = written_completions(assets, examples)
    rows = [(e, sampler.prompt(e), completions[e.example_id]) for e in examples]
    return examples, completions, [judged_group(sampler.policy, k, *row) for k, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("arm", "loss"),
    [("scalar", "dr_grpo"), ("prefix", "dr_grpo"), ("span", "dapo")],
)
def test_a_gradient_is_that_of_the_trainers_own_loss(assets, tmp_path, sampler, written, arm, loss):
    examples, completions, groups = written
    model = policy(assets)
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    settings = {**PLAIN_SGD, "arm": arm, "budget": BUDGET, "loss_type": loss}
    trainer = rubric_trainer(assets, tmp_path, examples, OracleJudge("image"), model=model, **settings)
    write_down(trainer, completions).train()
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    theirs = ((before - after) / PLAIN_SGD["learning_rate"]).numpy()
    found = batch_of(sampler.policy, groups, [Family("f", BUDGET, "veto", 4, [arm])], LENGTH)
    ours = found.gradients[0]
    if loss == "dapo":  # the same direction: it divides by the batch's tokens where dr_grpo has a constant
        ours = ours * (8 * LENGTH / sum(len(row) for group in groups for row in group.rows))
    assert np.abs(theirs).max() > 1e-3
    assert ours == pytest.approx(theirs, abs=1e-5)
    assert np.linalg.norm(ours - theirs) < 1e-3 * np.linalg.norm(theirs)  # weights are rounded where they are changed


def test_parts_add_up_and_smaller_groups_take_the_first_responses(sampler, written):
    groups = written[2]
    families = [Family("all", "paper", "veto", 4, ["prefix"]), Family("two", "paper", "veto", 2, ["prefix"])]
    found = batch_of(
        sampler.policy, groups, [*families, Family("cut", "paper", "veto", 4, ["prefix"], parts=3)], LENGTH
    )
    whole, two, *parts = found.gradients
    assert sum(parts) == pytest.approx(whole, abs=1e-6)
    halved = [dataclasses.replace(g, rows=g.rows[:2], responses=g.responses[:2]) for g in groups]
    assert batch_of(sampler.policy, halved, families[1:], LENGTH).gradients[0] == pytest.approx(two, abs=1e-6)
    tokens = np.concatenate([row for group in groups for row in credit_of(group, families[0], "prefix").advantages])
    assert found.rms[0] == pytest.approx(np.sqrt(np.mean(tokens**2)))


def test_credit_kept_is_what_the_spans_leave(sampler, written):
    arms = ["component", "prefix", "span"]
    reading = Family("reading", "0,0,1", "off", 4, arms, dimensions=["VF"])
    component, prefix, span = batch_of(sampler.policy, written[2], [reading], LENGTH).covered
    assert component == 1 > prefix > span > 0
    terms = credit_of(written[2][0], reading, "prefix").terms[2:]
    wanted = {c.id for c in written[0][0].criteria if c.dimension == "VF" and not c.is_pitfall}
    assert {term.name for term in terms} == wanted


def gram_of(*arms):
    """Gram matrix of arms given as (n, D) gradients."""
    return np.array([[np.asarray(a, float) @ np.asarray(b, float).T for b in arms] for a in arms])


def test_moments_by_hand():
    gram = gram_of([[1.0], [2.0], [6.0]], [[0.0], [1.0], [1.0]])
    found = figures.moments(gram, np.array([[1.0, 1, 1], [2, 0, 1]]), scale=2)
    # all three: pairs (1*2 + 1*6 + 2*6) / 3; the noise is the sample variance, 7, of a step half as large
    assert found.product[0, 0, 0] == pytest.approx(20 / 3)
    assert found.noise[0, 0] == pytest.approx(2 * 7)
    # arm 0 on one batch with arm 1 on another: 1*1 + 1*1 + 2*0 + 2*1 + 6*0 + 6*1, of six pairs
    assert found.product[0, 0, 1] == found.product[0, 1, 0] == pytest.approx(10 / 6)
    # the first twice, the third once: the only pair of different batches is 1*6; squares (1 + 1 + 36) / 3
    assert found.product[1, 0, 0] == pytest.approx(6)
    assert found.noise[1, 0] == pytest.approx(2 * (38 / 3 - 6))


def test_signal_and_noise_of_known_mean_and_covariance():
    """Mean (3, 0, 4) of squared norm 25, covariance of trace 1 + 4 + 9 = 14; the second arm's mean is (0, 5, 0)."""
    rng, spread = np.random.default_rng(0), np.array([1.0, 2.0, 3.0])
    runs = []
    for _ in range(400):
        noise = rng.normal(size=(16, 3)) * spread
        gram = gram_of(np.array([3, 0, 4]) + noise, np.array([0, 5, 0]) + noise / 2)
        found = figures.moments(gram, np.ones((1, 16)))
        runs.append([found.product[0, 0, 0], found.product[0, 0, 1], *found.noise[0]])
    means, errors = np.mean(runs, 0), np.std(runs, 0) / 20
    assert np.all(np.abs(means - [25, 0, 14, 3.5]) < 4 * errors)
    assert np.all(errors < 0.4)


def test_figures_by_hand():
    """|mu| 5 and 4, inner product 16, noise of a step 11 and 9."""
    found = figures.Moments(np.array([[[25.0, 16], [16, 16]]]), np.array([[11.0, 9]]))
    told = {name: float(values[0]) for name, values in figures.figures_of(found, 0, 1).items()}
    assert told == pytest.approx(
        {
            "snr": 25 / 11,
            "own": 5 / 6,
            "aligned": 16 / (4 * 6),
            "bias": (25 - 32 + 16) / 16,
            "cosine": 0.8,
            "norm": 1.25,
            "noise": 11 / 9,
        }
    )


def test_an_arm_against_its_copy_is_exactly_nothing():
    rows = np.random.default_rng(1).normal(size=(12, 30)) + 0.5
    gram = gram_of(rows, rows, 2 * rows)
    for figure in figures.FIGURES:
        told = figures.contrast(gram, (0, 1), figure, 0, 500, seed=3)
        assert told == {"estimate": 0, "interval": [0, 0], "p": 1}
    assert figures.contrast(gram, (2, 0), "snr", 0, 500, seed=3)["estimate"] == pytest.approx(0, abs=1e-12)
    assert figures.contrast(gram, (2, 0), "bias", 0, 500, seed=3)["estimate"] == pytest.approx(1)


def test_a_bootstrap_by_hand():
    """Draws of three batches that take one alone have no pair; the rest are weighted as numpy draws them."""
    rows = np.array([[1.0, 0], [2, 1], [1, 3]])
    noisy = rows + np.array([[3, 0], [-3, 0], [0, 0]])
    weights = figures.draw_batches(3, 200, seed=5)
    expected = []
    for w in weights:
        picked = np.repeat([0, 1, 2], w.astype(int))
        ratios = []
        for arm in (rows, noisy):
            pairs = [arm[i] @ arm[j] for i in picked for j in picked if i != j]
            signal = np.mean(pairs) if pairs else np.nan
            ratios.append(signal / (np.mean([arm[i] @ arm[i] for i in picked]) - signal))
        with np.errstate(invalid="ignore", divide="ignore"):
            expected.append(np.log(ratios[0]) - np.log(ratios[1]))
    known = np.array(expected)[np.isfinite(expected)]
    told = figures.contrast(gram_of(rows, noisy), (0, 1), "snr", 0, 200, seed=5)
    assert 0 < len(known) < 200
    assert told["interval"] == pytest.approx(list(np.quantile(known, [0.025, 0.975])))


def test_two_sided_p_by_hand():
    assert figures.two_sided_p(np.array([1.0, 2, 3, 4, 5, 6, 7, 8, -1])) == pytest.approx(2 * 2 / 10)
    assert figures.two_sided_p(np.array([1.0, 2, 3, 4, 5, 6, 7, np.nan, -1])) == pytest.approx(2 * 3 / 10)
    assert figures.two_sided_p(np.zeros(9)) == 1


def test_random_signs_find_a_bias_and_no_other():
    rng, false_alarms = np.random.default_rng(2), 0
    for seed in range(200):
        noise = rng.normal(size=(24, 50))
        false_alarms += figures.sign_flip_p(noise @ noise.T, 200, seed) < 0.05
        biased = noise + 0.4
        assert figures.sign_flip_p(biased @ biased.T, 200, seed) < 0.05
    assert 2 <= false_alarms <= 20  # 10 expected


def test_equal_rms_and_positions():
    rng = np.random.default_rng(4)
    parts = [rng.normal(size=(10, 6)) + 1 for _ in range(4)]
    rms = rng.uniform(1, 2, size=(2, 10))
    scaled = [parts[0] / rms[0][:, None], parts[1] / rms[1][:, None]]
    assert figures.matched(gram_of(*parts[:2]), rms) == pytest.approx(gram_of(*scaled))
    shares = figures.position_shares(gram_of(*parts), [("a", 0), ("a", 1), ("b", 0), ("b", 1)], "a")
    whole = figures.moments(gram_of(parts[0] + parts[1], parts[2] + parts[3]), np.ones((1, 10)))
    assert sum(shares["a"]["noise"]) == pytest.approx(1)
    assert sum(shares["b"]["noise"]) == pytest.approx(whole.noise[0, 1] / whole.noise[0, 0])
    assert sum(shares["b"]["signal"]) == pytest.approx(whole.product[0, 1, 1] / whole.product[0, 0, 0])
    first = np.cov(np.hstack([parts[0], parts[0] + parts[1]]).T)[:6, 6:].trace()  # of the part with the whole
    assert shares["a"]["noise"][0] == pytest.approx(first / whole.noise[0, 0])


def test_inner_products_are_added_up_over_stretches(monkeypatch):
    monkeypatch.setattr(study_gradients, "COLUMNS", 7)
    batches = np.random.default_rng(6).normal(size=(5, 3, 20))
    expected = np.einsum("iad,jbd->abij", batches, batches)
    assert study_gradients.gram(list(batches)) == pytest.approx(expected)


def test_the_shipped_contrasts_are_of_arms_that_are_there():
    recipe = study_gradients.read_recipe()
    arms = {family["name"]: family["arms"] for family in recipe["families"]}
    assert {arm for row in arms.values() for arm in row} <= set(ARMS)
    for stated in recipe["contrasts"]:
        assert {stated["arm"], stated["against"], recipe["reference"]} <= set(arms[stated["family"]])
        assert stated["figure"] in figures.FIGURES and (stated["figure"] != "bias" or stated["against"] == "component")


@pytest.fixture
def small_recipe(monkeypatch):
    recipe = study_gradients.read_recipe()
    recipe |= {"pictures": 2, "responses": 4, "step": 8, "draws": 50}
    families = {family["name"]: family for family in recipe["families"]}
    recipe["families"] = [{**families["rubric"], "group": 4}, {**families["position"], "group": 4, "parts": 2}]
    recipe["contrasts"] = [stated for stated in recipe["contrasts"] if stated["family"] == "rubric"]
    monkeypatch.setattr(study_gradients, "read_recipe", lambda: copy.deepcopy(recipe))


def test_a_stopped_run_goes_on_to_the_same_results(small_recipe, tmp_path, monkeypatch, capsys):
    def run(name, *flags):
        return study_gradients.main(["--out", str(tmp_path / name), "--groups", "8", *flags])

    assert run("unbroken") == 0
    printed = capsys.readouterr().out
    one_batch, done = study_gradients.one_batch, []

    def stops_at_the_third(*args):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(one_batch(*args))
        return done[-1]

    monkeypatch.setattr(study_gradients, "one_batch", stops_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        run("broken")
    assert not (tmp_path / "broken" / "gradients.json").exists()
    with pytest.raises(InputError, match="seed"):
        run("broken", "--seed", "1")
    monkeypatch.setattr(study_gradients, "one_batch", one_batch)
    assert run("broken") == 0
    texts = [(tmp_path / name / "gradients.json").read_text() for name in ("broken", "unbroken")]
    assert texts[0] == texts[1]
    assert sorted(path.name for path in (tmp_path / "broken").iterdir()) == [
        *("gradients.json", "gradients.md", "gram.npz", "run.json")
    ]
    told = json.loads(texts[0])
    assert told["sample"]["responses"] == 32
    assert list(told["families"]["rubric"]) == ["scalar-z", "component", "prefix", "span", "prefix-shuffled"]
    assert told["families"]["rubric"]["component"]["bias"] == {"value": 0, "interval": [0, 0]}
    assert len(told["position"]["position"]["prefix"]["noise"]) == 2
    assert all(row["p"] <= row["p_holm"] for row in told["contrasts"])
    assert capsys.readouterr().out == printed and printed.count("| prefix |") == 1


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--groups", "12"], "multiple of 8"),
        (["--groups", "0"], "at least 32"),
        (["--seed", "-1"], "--seed -1"),
        (["--quick", "--groups", "64"], "give one of them"),
    ],
)
def test_bad_flags_are_named_before_anything_is_made(tmp_path, flags, reason):
    with pytest.raises(InputError, match=reason):
        study_gradients.main(["--out", str(tmp_path / "out"), *flags])
    assert not (tmp_path / "out").exists()
