"""`claimwise data`: somebody's rubric data, looked at (`inspect`) and made our example table (`convert`).

In: a data set of the Hub, or local Parquet, JSON Lines or JSON. Out: what is in it and how it would be read, or the
table, its images, its splits and the list of rows that are not in it.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...verifier.errors import InputError
from ...verifier.text import clean
from ..parser import CommandParser

if TYPE_CHECKING:
    from ...distill.convert import Work
    from ...distill.layouts import FieldMap
    from ...distill.sources import RawRow, Source
    from ...distill.splits import Proof

SAMPLE = 20  # rows from which columns are known
EXAMPLE = """example:
  claimwise data inspect v-rubrics/v-rubrics-50k
  claimwise data convert v-rubrics/v-rubrics-50k data/vr50k --split train=0.9,validation=0.05,test=0.05

claimwise data inspect --help and claimwise data convert --help say more."""
INSPECT_EXAMPLE = """example:
  claimwise data inspect rubrics.jsonl
  claimwise data inspect rubrics/ --part train --map answer=gold"""
CONVERT_EXAMPLE = """example:
  claimwise data convert rubrics.jsonl data/ours --map answer=gold --split train=0.9,test=0.1

OUT gets examples.parquet, images/, rejected.jsonl and a table for each split. rejected.jsonl names every row that is in
no table, with its reason: "refused" for a fault of the row (no question, a broken image, ...), "filtered" for
duplicates (same question and answer, same images or near ones) and for questions that every sample solved (rs_score
8/8). Only refused rows count against --max-rejected; above it no table is written, rejected.jsonl is, and the status
is 2; then the same command with a larger share has only the tables to write, and the very same one reads all rows anew.
Splits share no image, near duplicates included, and no question; the proof is counted from the written files.
A stopped run goes on where it was."""


def make_parser() -> CommandParser:
    parser = CommandParser("data", "Look at rubric data, and make our example table of it.", EXAMPLE)
    parser.add_argument("action", choices=["inspect", "convert"], help="what to do")
    return parser


def _common(name: str, description: str, example: str) -> CommandParser:
    parser = CommandParser(f"data {name}", description, example)
    parser.add_argument("source", metavar="SOURCE", help="a Hub name, or a .parquet, .jsonl or .json file or folder")
    parser.add_argument("--part", metavar="NAME", help="the source's split to read, where it has several")
    parser.add_argument("--subset", metavar="NAME", help="the configuration of a Hub data set")
    parser.add_argument(
        "--map",
        action="extend",
        nargs="+",
        default=[],
        metavar="FIELD=COLUMN",
        help="columns of fields that no alias finds; FIELD= leaves a field out",
    )
    parser.add_argument(
        "--pitfall-yes-means",
        choices=["committed", "avoided"],
        help="yes to a pitfall: the response commits the failure, or avoids it (default: the layout's, or committed)",
    )
    return parser


def main(argv: list[str]) -> int:
    actions = {"inspect": inspect, "convert": convert}
    if argv and argv[0] in actions:
        return actions[argv[0]](argv[1:])
    make_parser().parse_args(argv)
    return 0


def inspect(argv: list[str]) -> int:
    args = _common("inspect", "Show columns, one row, and what maps to which field.", INSPECT_EXAMPLE).parse_args(argv)
    source, rows, fields = _open(args)
    print(clean(f"{source.name}: {source.description}{'' if source.rows is None else f'; {source.rows:,} rows'}"))
    print(f"layout: {fields.layout or 'none that is known by name'}\n")
    print(clean(_table(_columns(next(row for row in rows if not row.error), source, fields))), end="\n\n")
    print(clean(_table(_mapping(fields))), end="\n\n")
    try:
        fields.check_complete()
        for row in rows:
            fields.check_new(row.values, row.number)
    except InputError as error:
        print(clean(f"cannot be converted yet: {error}"))
        return 0
    print(clean(_trial(rows, fields)))
    return 0


def convert(argv: list[str]) -> int:
    parser = _common(
        "convert", "Write our example table, its images, its splits and what was rejected.", CONVERT_EXAMPLE
    )
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to write, new or empty")
    parser.add_argument(
        "--max-rejected", type=float, default=0.01, metavar="SHARE", help="of refused rows (default 0.01)"
    )
    parser.add_argument(
        "--split", metavar="NAME=SHARE,...", help="splits to write, shares that sum to 1 (default: none)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="the same seed gives the same splits (default 0)"
    )
    args = parser.parse_args(argv)
    if not 0 <= args.max_rejected <= 1:
        raise InputError(f"--max-rejected is {args.max_rejected:g}; it is a share, 0 to 1")
    shares = _shares(args.split) if args.split else None
    source, _, fields = _open(args)
    from ...distill.convert import convert as run

    done = run(source, fields, args.out, args.max_rejected, shares, args.seed)
    if done is None:
        print(f"{args.out} holds this very table already")
        return 0
    work, proofs = done
    print(clean(_summary(args.out, work, fields, source)))
    if proofs:
        print("\n" + _proof(proofs))
    return 0


def _open(args: Any) -> tuple[Source, list[RawRow], FieldMap]:
    from ...distill.layouts import find_fields, parse_map
    from ...distill.sources import open_source

    chosen = parse_map(args.map)
    source = open_source(args.source, args.part, args.subset)
    rows = list(itertools.islice(source.read(0), SAMPLE))
    readable = [row.values for row in rows if not row.error]
    if not readable:
        why = f"none of the first {len(rows)} can be read; {rows[0].where}: {rows[0].error}" if rows else "it has none"
        raise InputError(f"rows of {args.source}: {why}")
    fields = find_fields(readable, chosen, args.pitfall_yes_means)
    if "schema_version" in fields.found_columns:
        raise InputError(f"{args.source} is a table of ours already; every command reads it as it is")
    return source, rows, fields


def _shares(text: str) -> dict[str, float]:
    shares: dict[str, float] = {}
    for piece in text.split(","):
        name, _, share = piece.strip().partition("=")
        try:
            shares[name] = float(share)
        except ValueError:
            shares[name] = 0
        if not re.fullmatch(r"[\w-]+", name) or name == "examples" or not 0 < shares[name] <= 1:
            raise InputError(f"--split {text!r}: write NAME=SHARE, shares over 0, such as train=0.9,test=0.1")
    if len(shares) != text.count(",") + 1 or abs(sum(shares.values()) - 1) > 1e-6:
        raise InputError(
            f"--split {text!r}: names must differ and shares sum to 1; they sum to {sum(shares.values()):g}"
        )
    return shares


def _columns(row: RawRow, source: Source, fields: FieldMap) -> list[list[str]]:
    from ...distill.layouts import value_at

    field_of = {column: field for field, column in fields.columns.items()}
    lines = [["column", "type", "field", "first row"]]
    for column, kind in fields.found_columns.items():
        value = value_at(row.values, column)
        is_image = field_of.get(column) == "images" or kind == "image"
        text = _image(value, row, source) if is_image else _short(repr(value))
        lines.append([column, _short(kind, 40), field_of.get(column, ""), text])
    return lines


def _image(value: Any, row: RawRow, source: Source) -> str:
    from ...distill.layouts import decoded
    from ...distill.pictures import read_picture

    value = decoded(value)
    several = value if isinstance(value, list) else [value]
    texts = []
    for image in several[:3]:
        try:
            picture = read_picture(image, row.folder, source.remote)
            texts.append(f"{picture.format} {picture.image.width}x{picture.image.height}, {len(picture.data):,} bytes")
        except InputError as error:
            texts.append("none" if image is None else _short(str(error), 100))
    return "; ".join(texts) + (f"; and {len(several) - 3} more" if len(several) > 3 else "")


def _mapping(fields: FieldMap) -> list[list[str]]:
    from ...distill.layouts import ALIASES, CRITERION_ALIASES, REQUIRED

    lines = [["field", "taken from", ""]]
    for field in ALIASES:
        name = fields.columns.get(field) or fields.keys.get(field)
        others = ", ".join(fields.passed_over.get(field, ()))
        kind = "criterion: " if field in CRITERION_ALIASES else ""
        if name:
            note = f"{others} is there too; --map {field}=NAME takes another" if others else ""
        elif field in fields.closed:
            note = "left out by --map"
        else:
            note = f"{'NEEDED: ' if field in REQUIRED else ''}none of {', '.join(ALIASES[field])}"
        lines.append([kind + field, name or "-", note])
    return lines


def _trial(rows: list[RawRow], fields: FieldMap) -> str:
    """What would come of the first rows."""
    from ...distill.rows import read_row

    labels: Counter[str] = Counter()
    dimensions: Counter[str] = Counter()
    faults = []
    for row in rows:
        try:
            if row.error:
                raise InputError(row.error)
            example = read_row(row.values, fields, row.number)
        except InputError as error:
            faults.append(f"  {row.where}: {error}")
            continue
        labels.update(criterion.label or "none" for criterion in example.example.criteria)
        dimensions.update(criterion.dimension or "none" for criterion in example.example.criteria)
        dimensions.update(f"{name!r} (read as none)" for name in example.other_dimensions)
    text = f"of the first {len(rows)} rows, {len(faults)} would be refused (images aside)"
    text += "".join("\n" + fault for fault in faults[:5])
    text += f"\nlabels: {_counted(labels)}\ndimensions: {_counted(dimensions)}"
    return text + f"\nyes to a pitfall: {fields.yes_means}"


def _summary(out: Path, work: Work, fields: FieldMap, source: Source) -> str:
    counts = work.counts
    images = len({name for kept in work.kept for name in kept.images})
    filtered = Counter(row["reason"].partition(" of ")[0] for row in work.rejected if row["kind"] == "filtered")
    lines = [
        f"{source.name}: {source.description}",
        f"{out / 'examples.parquet'}: {len(work.kept):,} examples, {counts['criteria']:,} criteria, {images:,} images",
        f"rows: {work.rows:,} read, {len(work.refused):,} refused, {filtered.total():,} filtered"
        + (f" ({_counted(filtered)})" if filtered else "")
        + f"; each is named in {out / 'rejected.jsonl'}",
    ]
    lines += [f"  {row['where']}: {row['reason']}" for row in work.refused[:3]]
    for what in ("difficulty", "dimension", "other dimension"):
        found = Counter({k[len(what) + 1 :]: n for k, n in counts.items() if k.startswith(what + " ")})
        note = ", read as none" if what == "other dimension" else ""
        lines += [f"{what}: {_counted(found)}{note}"] if found else []
    if counts["pitfalls"]:
        lines.append(f"pitfalls: {counts['pitfalls']:,}; yes means {fields.yes_means} (--pitfall-yes-means)")
    if counts["pitfalls alone"]:
        lines.append(
            f"pitfalls alone: {counts['pitfalls alone']:,} examples; GRPO credits them with --pitfalls criterion"
        )
    if counts["without an image"]:
        lines.append(f"without an image: {counts['without an image']:,} examples")
    return "\n".join(lines)


def _proof(proofs: dict[str, Proof]) -> str:
    """The numbers, counted from the written tables and image files."""
    lines = [["split", "examples", "images", "questions"]]
    for name, proof in proofs.items():
        lines.append([name, *(f"{n:,}" for n in (proof.rows, len(proof.images), len(proof.questions)))])
    shared = [["in both", "images", "near duplicates", "questions"]]
    for one, other in itertools.combinations(proofs, 2):
        a, b = proofs[one], proofs[other]
        both = a.images & b.images, a.groups & b.groups, a.questions & b.questions
        shared.append([f"{one}, {other}", *(str(len(common)) for common in both)])
    return _table(lines) + "\n\n" + _table(shared)


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counter.most_common(8))


def _short(text: str, limit: int = 70) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _table(lines: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
