"""The audit of criteria without people: claims, questions and findings by hand, the planted wrong ones of the digits
world, and the command with the shipped verifier."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from claimwise.distill.digits import POSITIONS, truth_of
from claimwise.distill.oracle import OracleJudge
from claimwise.eval.criteria_audit import NO_CLAIM, NOT_ABOUT_IMAGE, NOT_FOUND, audit, claim_of, score, summarise
from claimwise.scripts.cli import main
from claimwise.scripts.commands import audit_criteria
from claimwise.scripts.quickstart_data import make_examples
from claimwise.verifier.errors import InputError
from claimwise.verifier.schema import Criterion, Example, Rollout, Verdict
from claimwise.verifier.tables import write_examples
from PIL import Image
from servers import Server, say


@pytest.mark.parametrize(
    ("text", "claim"),
    [
        ("States that the top-left digit is 3.", "The top-left digit is 3."),
        ("The response clearly states that sales fell in 2015", "Sales fell in 2015."),
        ("Wrongly says that the bar is blue.", "The bar is blue."),
        ("Identifies that there are two dogs!", "There are two dogs!"),
        ("Recognizes correctly that AB is a chord.", "AB is a chord."),
        ("Reads the top-left digit as 3.", "The top-left digit is 3."),
        ("Incorrectly identifies the animal as a cat", "The animal is a cat."),
        ("Labels the y axis as temperature.", "The y axis is temperature."),
        ("The legend has three entries.", "The legend has three entries."),  # no verb of saying: its own claim
        ("Mentions the red car", "Mentions the red car."),
    ],
)
def test_claims(text, claim):
    assert claim_of(text) == claim


CRITERIA = (
    Criterion("c1", "States that the cat is black.", dimension="VF"),
    Criterion("c2", "States that the dog is red.", dimension="VF"),
    Criterion("c3", "Wrongly says that the dog is blue.", dimension="VF", label="PITFALL", weight=-1),
    Criterion("c4", "The answer follows.", dimension="RC"),
    Criterion("c5", "Does not say that it rains.", label="PITFALL", weight=-1, yes_means="avoided"),
)
REFERENCE = "The cat is black. The dog is red. So it is two."


class Scripted:
    """A judge that answers from a dictionary: (criterion, response) -> (verdict, text pointed at, reading)."""

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    def __call__(self, items):
        out = []
        for example, rollout in items:
            for c in example.criteria:
                self.asked.append((c.text, rollout.response))
                verdict, pointed, reading = self.answers[c.id, rollout.response]
                start = rollout.response.index(pointed) if pointed else None
                end = None if start is None else start + len(pointed)
                error = "timed out" if verdict is None else None
                key = example.example_id, rollout.rollout_id, c.id, "scripted", "image", verdict
                out.append(Verdict(*key, None, start, end, "none", reading, error))
        return out


def test_questions_and_findings():
    red_dog = "The cat is black. The dog is red. So it is two."
    blue_dog = "The cat is black. The dog is blue. So it is two."
    judge = Scripted(
        {
            ("c1", REFERENCE): (True, "The cat is black.", "black"),
            ("c2", REFERENCE): (False, "The dog is red.", "blue"),
            ("c3", REFERENCE): (False, "The dog is red.", "blue"),
            ("c4", REFERENCE): (False, "So it is two.", ""),
            ("c5", REFERENCE): (True, None, ""),
            ("c2", red_dog): (False, "The dog is red.", "blue"),
            ("c3", blue_dog): (True, "The dog is blue.", "blue"),  # what it calls wrong is right
        }
    )
    found = {f.criterion_id: f for f in audit([Example("e", "What?", CRITERIA, reference=REFERENCE)], judge)}
    assert judge.asked[:5] == [(c.text, REFERENCE) for c in CRITERIA]
    assert judge.asked[5:] == [(CRITERIA[1].text, red_dog), ("States that the dog is blue.", blue_dog)]
    assert found["c1"].suspicious is False and found["c1"].asked == "reference"
    for name, sentence in (("c2", "The dog is red."), ("c3", "The dog is blue.")):
        assert (found[name].suspicious, found[name].suspicion, found[name].reading) == (True, 1.0, "blue")
        assert (found[name].asked, found[name].sentence) == ("reference with the claim", sentence)
    assert [found[name].reason for name in ("c4", "c5")] == [NOT_ABOUT_IMAGE, NO_CLAIM]
    assert summarise(list(found.values())) == {
        "criteria": 5,
        "decided": 3,
        "suspicious": 2,
        "by_dimension": {
            "VF": {"decided": 2, "suspicious": 1},
            "PITFALL": {"decided": 1, "suspicious": 1},
            "RC": {"decided": 0, "suspicious": 0},
        },
        "undecided": {NOT_ABOUT_IMAGE: 1, NO_CLAIM: 1},
    }


def only(answer, criterion=CRITERIA[0], reference=None, first=None):
    """The finding on one criterion whose claim, put before the reference or alone, gets `answer`."""
    example = Example("e", "What?", (criterion,), reference=reference)
    alone = claim_of(criterion.text) + (f" {reference}" if reference else "")
    answers = {(criterion.id, alone): answer} | ({(criterion.id, reference): first} if first else {})
    (finding,) = audit([example], Scripted(answers))
    return finding


def test_without_a_reference_the_claim_stands_alone():
    finding = only((False, "The cat is black.", "white"))
    assert finding.suspicious and finding.asked == "claim alone" and finding.sentence == "The cat is black."
    assert only((True, "The cat is black.", "black")).suspicious is False
    assert only((False, None, "white")).reason == NOT_FOUND
    assert only((None, None, "white")).reason == "missing: timed out"
    assert only((False, "The cat is black.", "")).reason == NOT_ABOUT_IMAGE
    (avoided,) = audit([Example("e", "What?", CRITERIA[4:])], Scripted({}))
    assert avoided.reason == NO_CLAIM and avoided.suspicious is None


def test_pitfalls():
    pitfall = CRITERIA[2]  # met or not, its claim is asked
    for first in ((True, "It is.", "blue"), (False, None, "blue")):
        alone = "It is." if first[1] is None else ""
        example = Example("e", "What?", (pitfall,), reference="It is.")
        response = f"The dog is blue. {alone}".strip()
        for yes, points, suspicious in ((True, True, True), (False, True, False), (False, False, None)):
            answer = yes, "The dog is blue." if points else None, "blue"
            (finding,) = audit([example], Scripted({("c3", "It is."): first, ("c3", response): answer}))
            assert finding.suspicious is suspicious and finding.suspicion == (None if suspicious is None else yes)
    other = replace(pitfall, text="Confuses the dog with the cat.")  # no claim to take from it: asked as it stands
    assert only((False, other.text, "dog"), other).suspicious
    assert only((True, other.text, "dog"), other).suspicious is False


def test_a_no_that_points_elsewhere_decides_nothing():
    first = False, None, "white"
    assert only((False, "It is.", "white"), reference="It is.", first=first).reason == NOT_FOUND
    assert only((False, "The cat is black.", "white"), reference="It is.", first=first).suspicious


def test_without_readings_the_dimension_says_what_is_in_the_image():
    first = False, None, None
    assert only((False, "The cat is black.", None), reference="It is.", first=first).suspicious
    reasoning = replace(CRITERIA[3], text="It follows.")
    assert only((True, None, None), reasoning, "It is.", first).reason == NOT_ABOUT_IMAGE


def test_a_judge_that_skips_a_question_is_refused():
    with pytest.raises(InputError, match="0 verdicts on 1 criteria"):
        audit([Example("e", "What?", CRITERIA[:1])], lambda items: [])


def planted(examples):
    """The criteria that the digits world made wrong, read off their texts and the human labels alone."""
    wrong = set()
    for example in examples:
        for c in example.criteria:
            if c.title in ("read", "pitfall"):
                place = next(k for k, name in enumerate(POSITIONS) if name in c.text)
                right = truth_of(example)[place] == int(re.findall(r"\d", c.text)[0])
                if right == (c.title == "pitfall"):
                    wrong.add((example.example_id, c.id))
    return wrong


def suspicious(findings):
    return {(f.example_id, f.criterion_id) for f in findings if f.suspicious}


@pytest.fixture(scope="module")
def pictures():
    return make_examples("test", 30, seed=3)


def test_the_oracle_finds_all_that_was_planted(pictures):
    findings = audit(pictures, OracleJudge("image").judge)
    assert suspicious(findings) == planted(pictures) and len(planted(pictures)) > 10
    assert all((f.reason == NOT_ABOUT_IMAGE) == (f.group in ("RC", "IF")) for f in findings)


def test_score_by_hand(pictures):
    gold = audit(pictures, OracleJudge("image").judge)
    wrong, right = [f for f in gold if f.suspicious], [f for f in gold if f.suspicious is False]
    found = [replace(f, suspicious=f in wrong[1:] or f in right[:3]) for f in gold]
    figures = score(found, gold)
    n = len(wrong)
    assert (figures["wrong"], figures["flagged"], figures["found"]) == (n, n + 2, n - 1)
    assert figures["recall"] == (n - 1) / n and figures["precision"] == (n - 1) / (n + 2)
    assert figures["recall_ci"][0] < figures["recall"] < figures["recall_ci"][1]
    nothing = score([replace(f, suspicious=None) for f in gold], [replace(f, suspicious=False) for f in gold])
    assert nothing["precision"] is None and nothing["recall"] is None
    assert nothing["undefined"] == {"precision": "no criterion is suspicious", "recall": "no criterion is wrong"}


@pytest.mark.slow
def test_the_shipped_verifier_finds_them(pictures, assets, tmp_path, capsys):
    write_examples(tmp_path / "e.parquet", pictures)
    argv = ["audit", "criteria", "--adapter", str(assets / "verifier"), "--examples", str(tmp_path / "e.parquet")]
    assert main([*argv, "--gold", "oracle", "--out", str(tmp_path / "ranked.jsonl"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["gold"]["wrong"] == len(planted(pictures))
    assert result["gold"]["recall"] >= 0.9 and result["gold"]["precision"] >= 0.8
    assert sorted(path.name for path in tmp_path.glob("ranked*")) == ["ranked.jsonl"]
    rows = [json.loads(line) for line in (tmp_path / "ranked.jsonl").read_text().splitlines()]
    assert [row["rank"] for row in rows] == list(range(1, 7 * 30 + 1))
    scores = [row["suspicion"] for row in rows if row["suspicion"] is not None]
    assert scores == sorted(scores, reverse=True) and result["top"][0] == rows[0]
    truth = truth_of(next(e for e in pictures if e.example_id == rows[0]["example_id"]))
    assert int(rows[0]["reading"]) in truth  # the reading beside the criterion is what the picture shows


def test_a_stopped_audit_goes_on(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(audit_criteria, "AT_ONCE", 4)
    asked = []

    def stops(items):
        if len(asked) == 4:  # the third batch's references
            raise KeyboardInterrupt
        asked.append(items)
        return OracleJudge("image").judge(items)

    settings = {"teacher": "oracle"}
    with pytest.raises(KeyboardInterrupt), audit_criteria.open_part(tmp_path / "x", settings) as part:
        audit_criteria.audit_all(pictures[:10], stops, part)
    with part.path.open("a") as file:
        file.write('{"example_id": "cut o')
    asked.clear()

    def goes_on(items):
        asked.append(items)
        return OracleJudge("image").judge(items)

    with audit_criteria.open_part(tmp_path / "x", settings) as part:
        found = audit_criteria.audit_all(pictures[:10], goes_on, part)
    assert {e.example_id for e, _ in asked[0]} == {e.example_id for e in pictures[8:10]} and len(asked) == 2
    assert found == audit(pictures[:10], OracleJudge("image").judge)
    with pytest.raises(InputError, match="other settings"):
        audit_criteria.open_part(tmp_path / "x", {"teacher": "another"})


def knows_the_picture(pictures):
    """A teacher behind a server that answers as the human labels do: it finds the example by its question and picture."""
    import base64
    import io

    def key(question, image):
        return question, image.convert("RGB").tobytes()

    known = {key(e.question, e.images[0]): e for e in pictures}

    def answer(call):
        content = call.body["messages"][1]["content"]
        (url,) = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
        image = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))
        example, asked = known[key(call.question["question"], image)], call.question["criterion"]
        item = (
            replace(example, criteria=(Criterion("asked", asked["text"] if isinstance(asked, dict) else asked),)),
            Rollout("r", example.example_id, call.question["response"], "p"),
        )
        (verdict,) = OracleJudge("image").judge([item])
        span = slice(*verdict.span) if verdict.span else slice(0)
        said = {"quote": item[1].response[span], "verdict": "yes" if verdict.verdict else "no"}
        return say(json.dumps(said | ({"reading": verdict.reading} if verdict.reading else {})))

    return answer


def test_a_teacher_behind_a_server_audits_too(pictures, tmp_path, capsys):
    write_examples(tmp_path / "e.parquet", pictures[:6])
    argv = ["audit", "criteria", "--examples", str(tmp_path / "e.parquet"), "--gold", "oracle", "--json"]
    with Server(knows_the_picture(pictures[:6])) as server:
        argv += ["--teacher", server.url, "--model", "m", "--ledger", str(tmp_path / "l.sqlite")]
        assert main(argv) == 0
        result = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert result["gold"]["wrong"] == len(planted(pictures[:6])) > 0
        assert result["gold"]["recall"] == result["gold"]["precision"] == 1
        calls = len(server.calls)
        assert calls > 6 * 7  # the references by all criteria, then the claims
        assert main(argv) == 0 and len(server.calls) == calls  # the ledger knows it all
        capsys.readouterr()
        other = [*argv[:-1], str(tmp_path / "other.sqlite"), "--price-in", "0", "--price-out", "1", "--budget", "1e-9"]
        assert main(other) == 3 and len(server.calls) == calls  # there is no money for a call
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["decided"] == 0


def test_a_place_that_cannot_be_written_is_one_line(tmp_path, capsys, pictures):
    write_examples(tmp_path / "e.parquet", pictures[:2])
    (tmp_path / "file").write_text("")
    argv = ["audit", "criteria", "--examples", str(tmp_path / "e.parquet"), "--teacher", "oracle", "--out"]
    for out, told in (
        (tmp_path, "a folder; give the name of a file"),
        (tmp_path / "file/x.jsonl", "cannot be written"),
    ):
        assert main([*argv, str(out)]) == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.startswith("claimwise audit: ") and told in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.parquet", "file", "images"]


def other_reference(folder, pictures):
    write_examples(folder / "e.parquet", [pictures[0], replace(pictures[1], reference="Another reference.")])


def other_picture(folder, pictures):
    first, second = sorted((folder / "images").iterdir())
    second.write_bytes(first.read_bytes())


@pytest.mark.parametrize("change", [other_reference, other_picture])
def test_a_part_of_other_examples_is_not_gone_on_with(tmp_path, capsys, pictures, monkeypatch, change):
    def stops(*_):
        raise KeyboardInterrupt

    argv = ["audit", "criteria", "--examples", str(tmp_path / "e.parquet"), "--teacher", "oracle"]
    argv += ["--out", str(tmp_path / "ranked.jsonl")]
    write_examples(tmp_path / "e.parquet", pictures[:2])
    with monkeypatch.context() as patched:
        patched.setattr(audit_criteria, "remove_part", stops)  # when all is asked
        assert main(argv) == 130
    change(tmp_path, pictures)
    assert main(argv) == 2 and "other settings" in capsys.readouterr().err


def test_command(tmp_path, capsys, pictures, assets):
    write_examples(tmp_path / "e.parquet", pictures[:3])
    argv = ["audit", "criteria", "--examples", str(tmp_path / "e.parquet"), "--teacher", "oracle"]
    assert main([*argv, "--gold", "oracle", "--top", "1"]) == 0
    out = capsys.readouterr().out
    assert "recall 1.000" in out and "not decided: not about the image" in out and "the image shows" in out
    write_examples(tmp_path / "blind.jsonl", [Example("digits-1234", "What?", CRITERIA[:1])])
    for more, named in [
        (["audit"], None),
        (["audit", "rubrics"], "'rubrics'"),
        (argv[:4], "--adapter"),
        ([*argv[:4], "--adapter", str(tmp_path)], "verifier.json"),
        ([*argv, "--top", "-1"], "--top"),
        ([*argv, "--model", "m"], "--model is for a teacher behind a server"),
        ([*argv[:4], "--teacher", "http://localhost:1/v1", "--model", "m"], "--ledger is missing"),
        (["audit", "criteria", "--examples", str(tmp_path / "blind.jsonl"), "--teacher", "oracle"], "has no image"),
    ]:
        assert main(more) == 2
        out, err = capsys.readouterr()
        assert named is None or (not out and err.count("\n") == 1 and named in err)
