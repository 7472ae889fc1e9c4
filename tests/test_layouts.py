"""Public layouts and single rows, written by hand: which column is which field, and what a row becomes."""

import json
from decimal import Decimal

import pytest
from claimwise.distill.layouts import ALIASES, CRITERION_ALIASES, EXAMPLE_ALIASES, find_fields, parse_map
from claimwise.distill.rows import read_row
from claimwise.trainer.credit import criterion_weights
from claimwise.verifier.errors import InputError

GOOD = {"uid": "u1", "question": "How many?", "rubrics": [{"description": "It says 3.", "weight": 5}]}
# Every column of a row at once would leave only the first alias of each field: these are tried one by one.
CRITERION = {"description": "It says 3.", "weight": 5}

V_RUBRICS = {
    "uid": "chart_02501_3c2e6864",
    "original_id": "2501",
    "source": "AI2D",
    "rs_score": "0/8",
    "problem": "<image>\nWhat is represented in this image?\n1. neap tide\n2. eclipse\n3. spring tide\n4. none",
    "answer": 3,
    "rubrics": [
        {"title": "Bodies", "description": "Identifies the Sun, the Earth and the Moon.", "type": "VF", "weight": 5},
        {"title": "Line", "description": "Says that the three are in line.", "type": "VF", "weight": 5},
        {"title": "Bulges", "description": "Identifies the tidal bulges.", "type": "VF", "weight": 4},
        {"title": "Sum", "description": "Explains that the pulls add up.", "type": "RC", "weight": 4},
        {"title": "Selection_of_Spring_Tide", "description": "Selects spring tide.", "type": "IF", "weight": 5},
        {"title": "Not_Neap", "description": "Tells it from a neap tide, at 90 degrees.", "type": "RC", "weight": 3},
    ],
}
RAR = {
    "question": "Which test confirms it?",
    "reference_answer": "A biopsy.",
    "question_source": "medical-o1",
    "rubric": [
        {"title": "Test", "description": "Essential Criteria: Names the biopsy.", "weight": 5},
        {"title": "Why", "description": "Important Criteria: Says why.", "weight": 3},
        {"title": "No X-ray", "description": "Pitfall Criteria: Does not recommend an X-ray.", "weight": -1},
    ],
    "rubric_count": 3,
}
HEALTHBENCH = {
    "prompt_id": "p7",
    "prompt": [
        {"role": "user", "content": "My head hurts."},
        {"role": "assistant", "content": "Since when?"},
        {"role": "user", "content": "Yesterday."},
    ],
    "rubrics": [
        {"criterion": "Asks for other symptoms.", "points": 7, "tags": ["level:example", "axis:completeness"]},
        {"criterion": "Gives a dose without asking.", "points": -8, "tags": ["axis:accuracy"]},
    ],
}
RUBRICHUB = {
    "prompt": [{"role": "user", "content": "Write a haiku."}],
    "data_source": "writing",
    "reward_model": {
        "ground_truth": "",
        "rubrics": [{"criterion": "Has three lines.", "points": 10, "tags": {"verifier": "llm"}}],
    },
}


def read(row, *maps, yes_means=None):
    fields = find_fields([row], parse_map(maps), yes_means)
    fields.check_complete()
    return read_row(row, fields, 1)


def criteria_of(*items):
    return read({**GOOD, "rubrics": list(items)}).example.criteria


def layout(row):
    return find_fields([row], {}).layout


def test_v_rubrics():
    raw = read({**V_RUBRICS, "image": b"picture"})
    example = raw.example
    assert layout(V_RUBRICS) == "V-Rubrics" and raw.images == (b"picture",)
    assert (example.example_id, example.source, example.answer) == ("chart_02501_3c2e6864", "AI2D", "3")
    assert example.question.startswith("What is represented in this image?\n1.") and example.difficulty == "hard"
    assert [c.dimension for c in example.criteria] == ["VF", "VF", "VF", "RC", "IF", "RC"]
    assert [c.label[0] for c in example.criteria] == list("EEIIEI")
    assert criterion_weights(example.criteria)["c5"] == pytest.approx(5 / 26)


def test_rar():
    example = read(RAR).example
    assert layout(RAR) == "RaR" and example.example_id == "row-000001"
    assert (example.reference, example.source, example.answer) == ("A biopsy.", "medical-o1", None)
    assert [c.label for c in example.criteria] == ["ESSENTIAL", "IMPORTANT", "PITFALL"]
    assert [c.yes_means for c in example.criteria] == ["committed", "committed", "avoided"]
    assert example.criteria[2].text == "Pitfall Criteria: Does not recommend an X-ray."
    assert read(RAR, yes_means="committed").example.criteria[2].yes_means == "committed"


def test_healthbench():
    example = read(HEALTHBENCH).example
    assert layout(HEALTHBENCH) == "HealthBench" and example.example_id == "p7"
    assert example.question == "User: My head hurts.\n\nAssistant: Since when?\n\nUser: Yesterday."
    assert [(c.label, c.weight, c.dimension, c.yes_means) for c in example.criteria] == [
        ("ESSENTIAL", 7.0, None, "committed"),
        ("PITFALL", -8.0, None, "committed"),
    ]


@pytest.mark.parametrize("as_json", [False, True])
def test_rubrichub(as_json):
    row = {**RUBRICHUB, "reward_model": {**RUBRICHUB["reward_model"], "ground_truth": "no 3"}}
    if as_json:
        row["reward_model"] = json.dumps(row["reward_model"])
    example = read(row).example
    assert layout(row) == "RubricHub"
    assert (example.question, example.answer, example.source) == ("Write a haiku.", "no 3", "writing")
    assert example.criteria[0].text == "Has three lines." and example.criteria[0].weight == 10
    assert read(RUBRICHUB).example.answer is None  # an empty ground truth is none


@pytest.mark.parametrize(("field", "column"), [(f, c) for f, names in EXAMPLE_ALIASES.items() for c in names])
def test_every_alias_of_an_example(field, column):
    value = {"criteria": [CRITERION], "rs_score": "1/8"}.get(field, "text")
    row = {
        name: v for name, v in GOOD.items() if name != {"criteria": "rubrics", "question": "question"}.get(field, "uid")
    }
    head, dot, rest = column.partition(".")
    row[head] = {rest: value} if dot else value
    assert find_fields([row], {}).columns[field] == column


@pytest.mark.parametrize(("field", "key"), [(f, k) for f, names in CRITERION_ALIASES.items() for k in names])
def test_every_alias_of_a_criterion(field, key):
    item = {"text": {key: "It says 3."}, "weight": {key: 4}, "label": {key: "optional"}, "dimension": {key: "RC"}}
    row = {
        "question": "?",
        "rubrics": [({} if field == "text" else {"description": "x"}) | item.get(field, {key: "T"})],
    }
    criterion = read(row).example.criteria[0]
    wanted = {"text": "It says 3.", "weight": 4.0, "label": "OPTIONAL", "dimension": "RC", "title": "T"}
    assert getattr(criterion, field) == wanted[field]


def test_of_two_aliases_the_first_is_taken_and_named():
    fields = find_fields(
        [{"prompt": "b", "question": "a", "rubrics": [CRITERION | {"text": "other", "points": 3}]}], {}
    )
    assert fields.columns["question"] == "question" and fields.keys["text"] == "description"
    assert fields.passed_over == {"question": ("prompt",), "text": ("text",), "weight": ("points",)}


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"frage": "?", "rubrics": [CRITERION]}, ["'question'", "frage, rubrics", "--map question=NAME"]),
        ({"question": "?", "checks": [CRITERION]}, ["'criteria'", "question, checks", "--map criteria=NAME"]),
        ({"question": "?", "rubrics": [{"check": "x"}]}, ["'text'", "a criterion has check", "--map text=NAME"]),
    ],
)
def test_a_needed_field_without_column(row, named):
    with pytest.raises(InputError) as error:
        find_fields([row], {}).check_complete()
    assert all(text in str(error.value) for text in named)


def test_map():
    row = {"frage": "?", "data": {"gold": "7"}, "checks": [{"what": "x", "type": "VF", "level": "hard"}]}
    maps = ["question=frage", "answer=data.gold", "criteria=checks", "text=what", "label="]
    example = read(row, *maps).example
    assert (example.question, example.answer, example.criteria[0].text) == ("?", "7", "x")
    assert example.criteria[0].label is None and example.criteria[0].weight == 1.0
    for maps, named in [
        (["question"], "field=column"),
        (["frage=question"], "no field 'frage'"),
        (["answer=a", "answer=b"], "twice"),
        (["question=gone"], "no such column; there are frage, data"),
        (["weight=gone", "criteria=checks"], "there are what, type, level"),
    ]:
        with pytest.raises(InputError, match=named):
            find_fields([row], parse_map(maps))
    assert set(ALIASES) >= set(parse_map(["title=", "rs_score=k"]))


@pytest.mark.parametrize(
    ("item", "label", "weight"),
    [
        ({"weight": 5}, "ESSENTIAL", 5),
        ({"weight": 3.5}, "IMPORTANT", 3.5),
        ({"weight": "2"}, "OPTIONAL", 2),
        ({"weight": -1}, "PITFALL", -1),
        ({"weight": "Important"}, "IMPORTANT", 3),
        ({"weight": "pitfall"}, "PITFALL", -1),
        ({"label": "ESSENTIAL"}, "ESSENTIAL", 5),
        ({"label": "Optional Criteria", "weight": 9}, "OPTIONAL", 9),
        ({"label": "pitfall", "weight": 4}, "PITFALL", 4),
        ({"description": "Important criterion: says 3."}, "IMPORTANT", 3),
        ({"description": "Pitfall Criteria: says 4.", "weight": 2}, "PITFALL", 2),
        ({"description": "Essential Criteria: says 4.", "weight": -2}, "PITFALL", -2),  # the sign decides
        ({"weight": float("nan")}, None, 1),
        ({"weight": Decimal("4.0")}, "IMPORTANT", 4),  # as Parquet has it
        ({}, None, 1),
    ],
)
def test_labels_and_weights(item, label, weight):
    criterion = criteria_of({"description": "x", **item})[0]
    assert (criterion.label, criterion.weight) == (label, weight)


def test_a_weight_of_zero_has_no_label():
    assert [c.label for c in criteria_of(CRITERION, {"description": "x", "weight": 0})] == ["ESSENTIAL", None]


@pytest.mark.parametrize(
    ("named", "dimension"),
    [
        ("vf", "VF"),
        ("Visual Faithfulness", "VF"),
        ("reasoning_consistency", "RC"),
        ("Instruction-Following", "IF"),
        ("style", None),
        ("", None),
        (None, None),
    ],
)
def test_dimensions(named, dimension):
    raw = read({**GOOD, "rubrics": [{**CRITERION, "type": named}]})
    assert raw.example.criteria[0].dimension == dimension
    assert raw.other_dimensions == (("style",) if named == "style" else ())


TEXT, IMAGE = {"type": "text", "text": "What?"}, {"type": "image"}


def user(*parts):
    return [{"role": "user", "content": list(parts)}]


@pytest.mark.parametrize(
    ("question", "images", "text", "taken"),
    [
        ("  as it is <b> ", None, "  as it is <b> ", ()),
        ("<image>\nWhat?", "a.png", "What?", ("a.png",)),
        ("What? <image><image>", ["a", "b"], "What?", ("a", "b")),
        ("<image>Compare <image> with <image>.", [1, 2, 3], "Compare [image 2] with [image 3].", (1, 2, 3)),
        (user(IMAGE, TEXT), "a.png", "What?", ("a.png",)),
        (user(TEXT, {"type": "image_url", "image_url": {"url": "data:,x"}}), None, "What?", ("data:,x",)),
        (user({"type": "image", "image": b"x", "text": None}, TEXT, TEXT), None, "What?\nWhat?", (b"x",)),
        ([{"role": "system", "content": "Be brief."}, *user(TEXT)], None, "System: Be brief.\n\nUser: What?", ()),
        ("What?", {"bytes": None, "path": None}, "What?", ()),
        ("What?", [None], "What?", ()),
        (json.dumps(user(IMAGE, TEXT)), "a.png", "What?", ("a.png",)),  # a conversation as its JSON
        ("[1, 2] or [3]?", None, "[1, 2] or [3]?", ()),
        ('[{"a": 1}]', None, '[{"a": 1}]', ()),
        ("What?", [b"x", None], "What?", (b"x", None)),  # the null is refused when images are read
        ("What?", '["a.png", "b.png"]', "What?", ("a.png", "b.png")),
    ],
)
def test_questions_and_images(question, images, text, taken):
    raw = read({**GOOD, "question": question, "image": images})
    assert raw.example.question == text and raw.images == taken


def test_image_is_a_word_like_any_other_where_there_are_no_images():
    assert read({**GOOD, "question": "What does <image> do in HTML?"}).example.question.count("<image>") == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"question": None}, "question is missing"),
        ({"question": " \n"}, "question is empty"),
        ({"question": 7}, "question is integer 7"),
        ({"question": []}, "question is empty list"),
        ({"question": "<image>", "image": "a"}, "question is empty"),
        ({"question": "<image> <image> What?", "image": "a"}, r"places for 2 image\(s\), but the row has 1"),
        ({"question": "<image> What?", "image": None}, r"places for 1 image\(s\), but the row has 0"),
        ({"question": user(IMAGE, TEXT)}, r"places for 1 image\(s\), but the row has 0"),
        ({"question": [{"role": "user", "content": 3}]}, "message 1: content is integer 3"),
        (
            {"question": [{"role": "tool", "content": "x"}]},
            "message 1: its role is string 'tool'; roles are",
        ),
        ({"question": [{"role": ["user"], "content": "x"}]}, "message 1: its role is list of string"),
        ({"question": ["What?"]}, "message 1: .*must have a role"),
        ({"question": [*user(TEXT), {"role": "assistant", "content": "3"}]}, "ends with the assistant's turn"),
        ({"question": user({"type": "video", "video": "v.mp4"})}, "neither text nor image"),
        ({"question": "half \ud800"}, "'question' holds half of a surrogate"),
        ({"uid": ["a"]}, "example_id is list of string"),
        ({"answer": {"a": 1}}, "answer is object {a}"),
        ({"answer": True}, "answer is true/false"),
        ({"rubrics": None}, "criteria are missing"),
        ({"rubrics": []}, "criteria are empty"),
        ({"rubrics": "[]"}, "criteria are empty"),
        ({"rubrics": "[{broken"}, "criteria are string"),
        ({"rubrics": 3}, "criteria are integer"),
        ({"rubrics": [CRITERION, "says 3"]}, "criterion 2: it is string"),
        ({"rubrics": [CRITERION, {"weight": 2}]}, "criterion 2: it has no text"),
        ({"rubrics": [{**CRITERION, "description": 4}]}, "criterion 1: its text is integer"),
        ({"rubrics": [{**CRITERION, "description": "\udc00"}]}, "criterion 1: key 'text' holds half"),
        ({"rubrics": [{**CRITERION, "weight": "heavy"}]}, "criterion 1: its weight is string 'heavy'"),
        ({"rubrics": [{**CRITERION, "weight": float("inf")}]}, "its weight is number inf"),
        ({"rubrics": [{**CRITERION, "weight": True}]}, "its weight is true/false"),
        ({"rubrics": [{**CRITERION, "label": "high"}]}, "its label is string 'high'; .*--map label="),
        ({"rubrics": [{**CRITERION, "label": "essential", "weight": -5}]}, "negative weight is a pitfall's"),
        ({"rubrics": [{**CRITERION, "weight": 0}] * 2}, "all have weight 0"),
        ({"rubrics": [{**CRITERION, "weight": 0}, {**CRITERION, "weight": -1}]}, "all have weight 0"),
        ({"rs_score": "9/8"}, "rs_score is '9/8'"),
        ({"rs_score": 3}, "rs_score is 3"),
    ],
)
def test_a_row_that_cannot_be_used(change, reason):
    row = {**GOOD, **change}
    fields = find_fields([{**GOOD, "image": None, "answer": "3", "rs_score": None, **change}, GOOD], {})
    if "image" not in change:
        fields.columns.pop("images", None)
    with pytest.raises(InputError, match=reason):
        read_row(row, fields, 1)


def test_criteria_as_json_and_items_as_json():
    assert criteria_of(json.dumps(CRITERION))[0].text == "It says 3."
    assert read({**GOOD, "rubrics": json.dumps([CRITERION])}).example.criteria[0].weight == 5


def test_a_column_that_comes_late_is_not_overlooked():
    fields = find_fields([GOOD], {"title": ""})
    fields.check_new({**GOOD, "note": 1, "problem": "unused: the question has a column"}, 21)
    with pytest.raises(InputError, match=r"row 22 has the column 'image'.*--map images=image, or --map images="):
        fields.check_new({**GOOD, "image": "a.png"}, 22)
    with pytest.raises(InputError, match=r"row 23 has the criterion key 'type'.*--map dimension=type"):
        fields.check_new({**GOOD, "rubrics": [CRITERION, {**CRITERION, "type": "VF"}]}, 23)
    fields.check_new({**GOOD, "rubrics": [{**CRITERION, "title": "left out by hand"}]}, 24)
