"""Reports as Markdown: the page’s words, tables and cases; of a plot what it shows, in words; of credit what is added.

In: reports (see `report_blocks`). Out: text. What comes from a run is escaped, so that a response shows as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .report_blocks import Block, Case, Cell, Columns, CreditView, Drawing, Heading, Report, Table, Text, signed, three
from .report_credit import Response, Term


def as_markdown(reports: Sequence[Report]) -> str:
    lines = [line for report in reports for line in _report(report)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def _report(report: Report) -> Iterator[str]:
    yield from (f"# {plain(report.name)} ({report.kind})", "", plain(report.lead), "")
    for section in report.sections:
        yield from (f"## {plain(section.title)}", "")
        for block in section.blocks:
            yield from _block(block)


def plain(text: str) -> str:
    """On one line, with nothing in it that Markdown or HTML would read."""
    return re.sub(r"([\\`*_\[\]<>|#~&])", r"\\\1", " ".join(str(text).split()))


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Text):
        yield plain(block.text)
    elif isinstance(block, Heading):
        yield f"### {plain(block.text)}"
    elif isinstance(block, Table):
        yield from (plain(block.caption), "", *_table(block))
    elif isinstance(block, Drawing):
        yield f"- {plain(block.plot.label)}"
    elif isinstance(block, Columns):
        for one in block.blocks:
            yield from _block(one)
    elif isinstance(block, Case):
        yield from _case(block)
    else:
        yield from _credit(block)
    yield ""


def _table(table: Table) -> Iterator[str]:
    yield f"| {' | '.join(plain(name) for name in table.head)} |"
    yield "|---" * len(table.head) + "|"
    for row in table.rows:
        yield f"| {' | '.join(map(_cell, row))} |"


def _cell(cell: Cell) -> str:
    return plain(f"{cell.text} {cell.small}" if cell.small else cell.text)


def _verdict(verdict: bool | None) -> str:
    return "missing" if verdict is None else "yes" if verdict else "no"


def _case(case: Case) -> Iterator[str]:
    yield f"**{plain(case.criterion)}** ({plain(case.about)}; {plain(case.question)})"
    yield ""
    yield f"> {plain(''.join(piece.text for piece in case.pieces)) or '(an empty response)'}"
    yield ""
    for who, verdict, p_yes in case.said:
        known = [
            f"P(yes) {three(p_yes)}" if p_yes is not None else "",
            f"reads {plain(verdict.reading)}" if verdict.reading else "",
            plain(verdict.error or ""),
        ]
        yield f"- {plain(who)}: {', '.join(filter(None, [_verdict(verdict.verdict), *known]))}"
    yield f"- {plain(case.source)}"


def _credit(view: CreditView) -> Iterator[str]:
    credit = view.credit
    yield f"{plain(credit.question)} Budget {plain(credit.budget)}. Tokens count from 1."
    for response in credit.responses:
        yield from ("", f"### Response {response.number} of {credit.group}", "", f"> {plain(response.text)}", "")
        rewards = ", ".join(f"{name} {three(value)}" for name, value in response.rewards.items())
        yield f"Rewards: {rewards}{'; vetoed by a confirmed pitfall' if response.vetoed else ''}."
        yield ""
        for said in response.decisions:
            sentence = f", decided by “{plain(said.sentence)}”" if said.sentence else ", no deciding sentence"
            reading = f", reads {plain(said.reading)}" if said.reading else ""
            error = f", {plain(said.error)}" if said.error else ""
            yield f"- {plain(said.criterion.text)} {_verdict(said.verdict)}{sentence}{reading}{error}"
        yield from ("", *_table(_adds(credit.arms, response)))


def _adds(arms: Sequence[str], response: Response) -> Table:
    """What each term adds to which tokens, by arm."""
    rows = []
    for kind in ("parts", "criteria"):
        of = [getattr(response.arms[arm], kind) for arm in arms]
        names = dict.fromkeys(name for terms in of for name in terms)
        rows += [[Cell(name), *(Cell(_added(terms.get(name))) for terms in of)] for name in names]
    return Table("", ["Term", *arms], rows)


def _added(term: Term | None) -> str:
    return "–" if term is None or not term.added else f"{signed(term.added)} to {term.first + 1}–{term.last + 1}"
