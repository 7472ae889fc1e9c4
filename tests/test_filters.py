"""Difficulty, duplicates, what hangs together, and splits that share nothing."""

import hashlib
import io
import random

import numpy as np
import pyarrow.parquet as pq
import pytest
from claimwise.distill.digits import make_example
from claimwise.distill.filters import (
    Duplicates,
    Fingerprint,
    components,
    difficulty_of,
    image_groups,
    near,
    normalised,
    perceptual_hash,
)
from claimwise.distill.splits import assign, merge, prove
from claimwise.verifier.errors import InputError
from claimwise.verifier.schema import Criterion, Example
from claimwise.verifier.tables import write_examples
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_sample_images


@pytest.mark.parametrize(
    ("score", "wanted"),
    [(f"{k}/8", ("hard" if k == 0 else "medium" if k <= 5 else "simple", False)) for k in range(8)]
    + [("8/8", (None, True)), (" 1 / 4 ", ("medium", False)), ("3/4", ("simple", False)), (None, (None, False))]
    + [("", (None, False))],
)
def test_difficulty(score, wanted):
    assert difficulty_of(score) == wanted


@pytest.mark.parametrize("score", ["9/8", "0/0", "-1/8", "0.5", "3", 3, "a/b", ["1/8"]])
def test_a_score_that_is_none(score):
    with pytest.raises(InputError, match="it must be right of samples, like '3/8'"):
        difficulty_of(score)


def test_normalised():
    assert normalised("  What\n IS ﬁne? ") == normalised("what is fine?") and normalised(None) == ""


def picture(number):
    rng = np.random.default_rng(number)
    return Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).resize((160, 120))


def as_jpeg(image, quality=70):
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer)


def test_a_picture_is_near_its_copies_and_far_from_others():
    rng = random.Random(7)
    digits = [make_example(rng, "test", n).images[0] for n in range(20)]
    photographs = [Image.fromarray(whole[y : y + 200, :300]) for whole in load_sample_images().images for y in (0, 200)]
    pictures = [*digits, *photographs, *(picture(n) for n in range(20))]
    hashes = [perceptual_hash(image) for image in pictures]
    assert all(hash_ < 2**144 for hash_ in hashes)
    for image, hash_ in zip(pictures, hashes, strict=True):
        assert near(hash_, perceptual_hash(as_jpeg(image)))
        assert near(hash_, perceptual_hash(image.resize((image.width * 2, image.height * 2))))
    assert not any(near(a, b) for i, a in enumerate(hashes) for b in hashes[:i])


def print_of(row, question="q", answer="a", images=(), hashes=()):
    return Fingerprint(row, f"e{row}", question, answer, tuple(images), tuple(hashes))


def test_duplicates_have_question_answer_and_images_in_common():
    seen = Duplicates()
    seen.add(print_of(1, images=["x"], hashes=[0]))
    for new, why in [
        (print_of(2, images=["x"], hashes=[0]), "duplicate of 'e1'"),
        (print_of(2, images=["y"], hashes=[0b11]), "near duplicate of 'e1'"),
        (print_of(2, images=["y"], hashes=[2**8 - 1]), "near duplicate of 'e1'"),
        (print_of(2, images=["y"], hashes=[2**9 - 1]), None),  # 9 bits
        (print_of(2, "other", images=["x"], hashes=[0]), None),
        (print_of(2, "q", "other", images=["x"], hashes=[0]), None),
        (print_of(2), None),
        (print_of(2, images=["x", "x"], hashes=[0, 0]), None),
    ]:
        assert seen.find(new) == why


@settings(max_examples=40)
@given(st.lists(st.integers(0, 2**144 - 1), max_size=4), st.randoms(use_true_random=False))
def test_image_groups_are_the_chains_of_near_pairs(centres, rng):
    hashes = list(centres)
    for centre in centres:  # copies of copies, some bits away
        for bits in (0, 8, 9, 20):
            flipped = sum(1 << bit for bit in rng.sample(range(144), bits))
            hashes.append(centre ^ flipped)
    got = image_groups({str(n): hash_ for n, hash_ in enumerate(hashes)})
    group = list(range(len(hashes)))  # by hand: merge until nothing changes
    for _ in hashes:
        for i, a in enumerate(hashes):
            for j, b in enumerate(hashes):
                if near(a, b):
                    group[i] = group[j] = min(group[i], group[j])
    for i in range(len(hashes)):
        for j in range(len(hashes)):
            assert (got[str(i)] == got[str(j)]) == (group[i] == group[j])


ROWS = st.lists(
    st.tuples(st.integers(0, 8), st.lists(st.integers(0, 12), max_size=2)),  # question, images
    min_size=1,
    max_size=40,
)


@settings(max_examples=60)
@given(ROWS, st.integers(0, 3), st.sampled_from([{"a": 0.9, "b": 0.1}, {"a": 0.5, "b": 0.25, "c": 0.25}]))
def test_splits_never_share_an_image_or_a_question(rows, seed, shares):
    # Images 2n and 2n + 1 are near duplicates.
    hash_of = {f"i{n}": random.Random(n // 2).getrandbits(144) ^ n % 2 for n in range(13)}
    prints = [
        print_of(n, f"q{q}", images=[f"i{i}" for i in images], hashes=[hash_of[f"i{i}"] for i in images])
        for n, (q, images) in enumerate(rows)
    ]
    group_of = image_groups(hash_of)
    assert group_of["i0"] == group_of["i1"] != group_of["i2"]
    labels = components(prints, group_of)
    try:
        split_of = assign(labels, shares, seed)
    except InputError as error:
        assert len(set(labels)) < 2 * len(shares) + 20 and "would be empty" in str(error)
        return
    assert set(split_of) == set(shares) and split_of == assign(labels, shares, seed)
    for one in shares:
        mine = [row for row, split in zip(rows, split_of, strict=True) if split == one]
        others = [row for row, split in zip(rows, split_of, strict=True) if split != one]
        assert not {q for q, _ in mine} & {q for q, _ in others}
        assert not {i // 2 for _, images in mine for i in images} & {i // 2 for _, images in others for i in images}


def test_shares_are_met_where_little_hangs_together():
    labels = [n // 2 for n in range(2000)] + [5000] * 400  # pairs, and one large group
    split_of = assign(labels, {"train": 0.8, "validation": 0.1, "test": 0.1}, 0)
    assert {name: split_of.count(name) for name in ("train", "validation", "test")} == {
        "train": 1920,
        "validation": 240,
        "test": 240,
    }
    assert set(split_of[2000:]) == {"train"}
    assert split_of != assign(labels, {"train": 0.8, "validation": 0.1, "test": 0.1}, 1)


def test_what_hangs_together_whole_cannot_be_split():
    with pytest.raises(InputError, match=r"'test' would be empty: 9 examples .* in 1 groups, the largest of 9"):
        assign([0] * 9, {"train": 0.9, "test": 0.1}, 0)


@settings(max_examples=10)
@given(st.data())
def test_the_proof_finds_what_is_shared(tmp_path_factory, data):
    """Tables and image files on disk; the proof counts them, and fails where one image or question is in both."""
    folder = tmp_path_factory.mktemp("split")
    shared = data.draw(st.sampled_from(["nothing", "an image", "a question"]))
    examples = [
        Example(f"e{n}", f"Question {n}?", (Criterion("c1", "x"),), (picture(n),), answer=str(n)) for n in range(6)
    ]
    if shared == "an image":
        examples[5] = Example("e5", "Question 5?", examples[5].criteria, (picture(0),))
    elif shared == "a question":
        examples[5] = Example("e5", "question  0?", examples[5].criteria, examples[5].images)
    write_examples(folder / "rows.parquet", examples)
    merge(
        [folder / "rows.parquet"], {folder / "a.parquet": ["e0", "e1", "e2"], folder / "b.parquet": ["e3", "e4", "e5"]}
    )
    assert pq.read_table(folder / "b.parquet")["example_id"].to_pylist() == ["e3", "e4", "e5"]
    names = [hashlib.sha256(p.read_bytes()).hexdigest()[:32] + ".png" for p in sorted((folder / "images").iterdir())]
    group_of = {name: n for n, name in enumerate(dict.fromkeys(names))}
    tables = {"a": folder / "a.parquet", "b": folder / "b.parquet"}
    if shared == "nothing":
        proofs = prove(tables, group_of)
        assert [(p.rows, len(p.images), len(p.questions)) for p in proofs.values()] == [(3, 3, 3), (3, 3, 3)]
    else:
        with pytest.raises(RuntimeError, match=f"1 {shared.split()[1]}s are in a and in b"):
            prove(tables, group_of)
