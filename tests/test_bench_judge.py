"""`claimwise bench judge`: every figure it promises, at sizes that take seconds; no time is tested."""

from __future__ import annotations

import argparse
import json

import pytest
from claimwise.distill.attacks import KINDS
from claimwise.scripts.benches import vllm_orders
from claimwise.scripts.benches.judge import SHIPPED
from claimwise.scripts.benches.speed import FULL, QUICK, Timer, judged, median_ratio, whole_trees
from claimwise.scripts.benches.vllm_orders import WAYS
from claimwise.scripts.benches.workload import SENTENCE, Shape, Workload
from claimwise.scripts.cli import main
from claimwise.verifier.adapter import read_card
from claimwise.verifier.processor import load_processor
from conftest import ASSETS
from judging import watched
from tqdm import tqdm


def bench(capsys, *flags: str) -> dict:
    assert main(["bench", "judge", *flags, "--json"]) == 0
    out, err = capsys.readouterr()
    assert "vllm_order_ratio and vllm_uuid_ratio are null: --quick starts no server" in err
    return json.loads(out.splitlines()[-1])


@pytest.mark.slow
def test_every_figure_is_there(capsys):
    figures = bench(capsys, "--quick")
    for name in ("packed_vs_single", "packed_vs_batch", "k7_vs_k1", "depth2_vs_depth1"):
        assert figures[name] > 0
    assert [count for count, _ in figures["cost_curve"]] == [1, 2, 4]
    assert all(seconds > 0 for _, seconds in figures["cost_curve"])
    assert 0 <= figures["max_logit_diff"] < 1e-4
    names = ["vllm_order_ratio", "vllm_uuid_ratio"]
    assert figures["not_measured"] == dict.fromkeys(names, "--quick starts no server")
    assert [figures[name] for name in names] == [None, None]
    told = figures["attacks"]
    assert told["n"] > 50 and {*told["by_kind"]} | {"repeated"} == {*KINDS}  # which may not fit the base
    assert told["missing"] > 0 or "repeated" in told["by_kind"]
    assert told["false_yes"] < figures["adversarial_false_yes"] < 0.12  # the upper bound, on few attacks
    assert figures["grpo_step_vs_oracle"] > 0
    assert 0 <= figures["ece"] < 0.08 and figures["calibration"]["n"] > 50
    assert figures["speed_setting"]["repeats"] == 1
    assert figures["speed_setting"]["clock"] == "processor seconds of one thread"


def test_repeats_below_one_are_refused(capsys):
    assert main(["bench", "judge", "--repeats", "0"]) == 2
    assert "--repeats is 0; it must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["abacus", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(device, capsys):
    assert main(["bench", "judge", "--quick", "--device", device]) == 2
    line = capsys.readouterr().err.strip()
    assert line.startswith(f"claimwise bench: --device {device}: ") and "\n" not in line


def test_the_shapes_that_the_figures_are_promised_for():
    assert (FULL.packed.width, FULL.packed.layers) == (256, 6)
    assert FULL.packed.opening + FULL.packed.response == 1200 and FULL.packed.criterion == 40
    assert FULL.curve[0] == 1 and FULL.curve[-1] == 32
    depth = FULL.depth
    assert depth.width >= 512 and (depth.responses, depth.response, depth.opening) == (8, 300, 900)


@pytest.mark.parametrize("shape", [FULL.packed, FULL.depth, QUICK.packed])
def test_the_workload_has_exactly_so_many_tokens(shape):
    small = Shape(**{**vars(shape), "width": 64, "layers": 1})
    work = Workload(small, "cpu")
    example, encoder = work.example(7), work.model.encoder
    opening = work.model.opening(example, "image")
    assert len(opening) == shape.opening
    assert opening.prefix.count(encoder.image_id) == shape.picture[0] * shape.picture[1] // 32**2
    assert len(work.rollouts) == shape.responses
    texts = {rollout.response for rollout in work.rollouts}
    assert len(texts) == shape.responses  # none is spared as a repeat
    for rollout in work.rollouts:
        assert len(work.model.tree(example, rollout.response, [], "image")) == shape.opening + shape.response
    frame = len(encoder.branch("")) - len(encoder.text(" "))
    assert {len(encoder.branch(c.text)) - frame for c in example.criteria} == {shape.criterion}
    assert len({c.text for c in work.example(32).criteria}) == 32


def test_lengths_that_cannot_be_made_are_an_error():
    with pytest.raises(ValueError, match="an opening of 10 tokens cannot be made"):
        Workload(Shape(64, 1, (64, 64), 10, SENTENCE, 5, 1), "cpu")
    with pytest.raises(ValueError, match="it must be a multiple of 20"):
        Workload(Shape(64, 1, (64, 64), 120, SENTENCE + 1, 5, 1), "cpu")


def test_what_the_ways_feed_to_the_model():
    """The ways differ in what they encode, and in nothing else. Tokens before decoding, for 3 responses of 40 behind an
    opening of 120 with 7 criteria of b: once 120 + 3 (40 + 7b), else 3 (120 + 40 + 7b); singly 160 + b."""
    work = Workload(QUICK.depth, "cpu")
    branch = len(work.model.encoder.branch(work.criteria[0].text))
    with watched(work.model) as fed:
        shared = judged(work, 7)
    assert [passed[:2] for passed in (fed.openings[0], fed.packs[0])] == [(1, 120), (3, 40 + 7 * branch)]
    with watched(work.model) as fed:
        whole = whole_trees(work, [(rollout, range(7)) for rollout in work.rollouts])
    assert fed.passes[0] == (3, 160 + 7 * branch, 0)
    with watched(work.model) as fed:
        single = whole_trees(work, [(work.rollouts[1], [4])])
    assert fed.passes[0] == (1, 160 + branch, 0) and fed.patches == 0  # the tower's output was computed before
    assert shared == pytest.approx(whole, abs=1e-4) and single == pytest.approx(whole[11:12], abs=1e-4)


def test_ways_take_turns_after_a_warm_up_and_ratios_are_medians():
    calls = []
    now = [0.0]
    ways = {name: lambda name=name: calls.append(name) or now.append(now[-1] + 3) or [1.0] for name in "ab"}
    with tqdm(disable=True) as bar:
        seconds, margins = Timer(lambda: now[-1], 2, bar).interleave(ways)
    assert calls == ["b", "a", "a", "b", "b", "a"]  # the first round warms up
    assert seconds == {"a": [3.0, 3.0], "b": [3.0, 3.0]}  # each call takes three
    assert margins == {"a": [1.0], "b": [1.0]}
    assert median_ratio([4.0, 9.0, 100.0], [2.0, 3.0, 10.0]) == 3.0  # of 2, 3 and 10


def test_the_criterion_first_and_last_are_the_same_tokens(items):
    """The criterion with the verifier's turn in front of all else; what is sent before still ends behind the image."""
    card, processor = read_card(SHIPPED), load_processor(ASSETS / "base")
    last, first = (WAYS[name](card, processor, "bench", "http://h/v1", "m") for name in ("last", "first"))
    example, rollout = items[0]
    keys = [b""] * len(example.criteria)
    asked = [way.questions(example, rollout, keys, [1, 4]) for way in (last, first)]
    for k, one, other in zip([1, 4], *asked, strict=True):
        branch = last.encoder.branch(example.criteria[k].text)
        assert one.ids[-len(branch) :] == branch == other.ids[: len(branch)]
        assert other.ids[len(branch) :] == one.ids[: -len(branch)]
        assert other.ids[len(branch) : other.opening] == one.ids[: one.opening]
        assert (one.length, one.labels, one.images) == (other.length, other.labels, other.images)


def test_without_a_vllm_its_ratios_are_null_and_say_why(tmp_path, monkeypatch, capsys):
    args = argparse.Namespace(quick=False, repeats=1)
    monkeypatch.setattr("claimwise.scripts.benches.vllm_orders.vllm_python", lambda: None)
    found = vllm_orders.figures(args)
    assert [found["vllm_order_ratio"], found["vllm_uuid_ratio"]] == [None, None]
    assert "are null: there is no vLLM; bash scripts/vllm_cpu.sh install" in capsys.readouterr().err
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to("/bin/false")  # a Python that has none
    monkeypatch.undo()
    monkeypatch.setenv("CLAIMWISE_VLLM_ENV", str(tmp_path))
    reasons = set(vllm_orders.figures(args)["not_measured"].values())
    assert len(reasons) == 1
    assert f"vLLM did not start: claimwise serve: vLLM is not installed for {tmp_path}" in reasons.pop()
