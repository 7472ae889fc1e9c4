"""Tables as streams: the same rows and the same refusals as the readers and writers that hold a whole table."""

import dataclasses
import json
import struct

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from claimwise.verifier.errors import InputError
from claimwise.verifier.schema import Criterion, Example, Rollout, Verdict
from claimwise.verifier.streams import Pairs, write_verdict_stream
from claimwise.verifier.tables import (
    pair_up,
    read_examples,
    read_rollouts,
    read_verdicts,
    write_examples,
    write_rollouts,
    write_verdicts,
)
from PIL import Image

SUFFIXES = [".jsonl", ".parquet"]
CRITERIA = (Criterion("c1", "Says 3.", dimension="VF", weight=5), Criterion("c2", "Errs.", label="PITFALL", weight=-1))
EXAMPLES = [Example(f"e{n}", f"q{n}", CRITERIA[: 1 + n % 2], (Image.new("RGB", (2, 2)),)) for n in range(150)]
ROLLOUTS = [
    Rollout(f"r{n}", f"e{n * 7 % 150}", f"text {n}", "p") for n in range(400)
]  # not in the order of the examples


@pytest.fixture(params=SUFFIXES)
def tables(request, tmp_path):
    paths = tmp_path / f"e{request.param}", tmp_path / f"r{request.param}"
    write_examples(paths[0], EXAMPLES)
    write_rollouts(paths[1], ROLLOUTS)
    return paths


def test_pairs_are_those_of_the_whole_tables(tables):
    whole = pair_up(read_examples(tables[0]), read_rollouts(tables[1]))
    with Pairs(*tables) as pairs:
        assert list(pairs) == whole and list(pairs) == whole  # more than once
        assert (pairs.rollouts, pairs.criteria) == (400, sum(len(example.criteria) for example, _ in whole))


def rewrite(path, change):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("tables", [".jsonl"], indirect=True)
@pytest.mark.parametrize(
    ("which", "change", "named"),
    [
        (0, lambda rows: rows.append(rows[0]), "e.jsonl, row 151: example_id 'e0' is already in an earlier row"),
        (1, lambda rows: rows.append(rows[5]), "r.jsonl, row 401: rollout_id 'r5' is already in an earlier row"),
        (1, lambda rows: rows[3].update(example_id="x"), "row 4: rollout 'r3' answers example 'x'"),
        (0, lambda rows: rows[8].update(images=["no.png"]), "row 9: key 'images': there is no file"),
        (0, lambda rows: rows[8].update(criteria=[{"id": "c"}]), "row 9: key 'criteria', criterion 1"),
        (0, lambda rows: rows[8].update(schema_version=7), "row 9: key 'schema_version' is 7"),
        (1, lambda rows: rows[2].pop("response"), "row 3: key 'response' is missing"),
    ],
)
def test_bad_rows_are_refused_on_opening(tables, which, change, named):
    rewrite(tables[which], change)
    with pytest.raises(InputError) as error:
        Pairs(*tables)
    assert named in str(error.value)


@pytest.mark.parametrize("tables", [".jsonl"], indirect=True)
def test_images_that_nobody_looks_at_may_be_missing(tables):
    rewrite(tables[0], lambda rows: rows[8].update(images=["no.png"]))
    with Pairs(*tables, check_images=False) as pairs:
        assert len(list(pairs)) == 400


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("count", [0, 1, 10_001])
def test_a_stream_of_verdicts_is_a_table_like_any_other(tmp_path, suffix, count):
    yes = Verdict("e", "r", "c", "j", "image", True, 0.5, 0, 3, "exact", "ä", None, "h", "2026-01-01", "VF")
    rows = [dataclasses.replace(yes, rollout_id=f"r{n}") for n in range(count)]
    rows[1::2] = [dataclasses.replace(row, verdict=None, p_yes=None, error="gone") for row in rows[1::2]]
    assert write_verdict_stream(tmp_path / f"s{suffix}", iter(rows)) == count
    assert read_verdicts(tmp_path / f"s{suffix}") == rows
    write_verdicts(tmp_path / f"w{suffix}", rows)
    assert read_verdicts(tmp_path / f"w{suffix}") == rows


def test_half_a_stream_leaves_no_table(tmp_path):
    def rows():
        yield Verdict("e", "r", "c", "j", "text", False)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_verdict_stream(tmp_path / "v.parquet", rows())
    assert not list(tmp_path.iterdir())


def test_a_value_that_cannot_be_read_is_one_line(tmp_path):
    """Bytes in a column of texts that are no UTF-8: Parquet holds them, Python does not."""
    write_rollouts(tmp_path / "good.parquet", [Rollout("r", "e", "ab", "p")])
    table = pq.read_table(tmp_path / "good.parquet")
    bad = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(struct.pack("<ii", 0, 2)), pa.py_buffer(b"\xff\xfe")]
    )
    pq.write_table(table.set_column(table.schema.names.index("response"), "response", bad), tmp_path / "bad.parquet")
    with pytest.raises(InputError, match=r"bad.parquet: it has a value that cannot be read \('utf-8' codec"):
        read_rollouts(tmp_path / "bad.parquet")
