"""Answers by rule: what a response gives as its final answer, and which answers are the same.

In: a response, or two answers. Out: the final answer, or True, False, or None where no rule can decide; None is missing,
never wrong. Letters, numbers, lists of numbers, quantities with units, formulas (math-verify) and short text. Several
candidates in one answer ("7 or 8") match nothing, or a policy would learn to list them.
"""

from __future__ import annotations

import math
import re
import threading
from fractions import Fraction

from ..verifier.schema import Criterion, Example

ANSWER = "@final-answer"  # id of the criterion that stands in where no rule decides; no rubric's own
_MARKED = re.compile(r"(?i)\banswer[*_]*\s*(?:is\s*)?:[*_]*\s*([^\n]*)")
_TAGGED = re.compile(r"(?is)<answer>((?:(?!<answer>).)*?)</answer>")
_BRACE = re.compile(r"\\boxed\{|[{}]")
_WORDS = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}")  # words inside a formula
_SIGNS = {"−": "-", r"\%": "%", r"\$": "$", r"\,": " ", r"\!": "", r"\ ": " ", r"^\circ": "°", r"^{\circ}": "°"}
_LETTER = re.compile(r"\(?([a-z])\)?")
_CHOICE = re.compile(r"(?:option |choice )?\(?([a-z])(?:[.:)]+(?: .*)?)?")  # "(b)", "b. a cat", "option b"
_OPTION = re.compile(r"(?i)\(?([a-h])[.:)]+ (.+)")
_THOUSANDS = re.compile(r"(?<=\d)(?:\\,|\{,\}|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))")  # what typography puts for a comma
_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d{1,40})?|\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:e[-+]?\d{1,2})?"
# A word or sign, digits in it as exponents alone: "-6", ":30" and "/05" after a number are of a range, a time or a date.
_EXPONENT = r"(?:(?<=\^)|(?<=\^-)|(?<=\{)|(?<=\{-))\d|(?<=[mo])[23]"
_UNIT = rf"(?!or\b|and\b)(?:[^\W\d_]|[%°℃℉$€£'\"])(?:[^\W\d_]|[/^·.*'\"%°²³{{}}-]|{_EXPONENT})*(?: [a-z]+)?"
_QUANTITY = re.compile(rf"(?:(-)?([$€£]) ?)?({_NUMBER})(?:(?: (\d{{1,9}}))? ?/ ?(\d{{1,40}}))? ?({_UNIT})?")
_UNITS = {  # unit -> what it measures, its size in one unit for that, how else it is written
    "mm": ("length", "1", "millimeter millimetre"), "cm": ("length", "10", "centimeter centimetre"),
    "m": ("length", "1000", "meter metre"), "km": ("length", "1000000", "kilometer kilometre"),
    "in": ("length", "25.4", "inch inche"), "ft": ("length", "304.8", "foot feet"),
    "mg": ("mass", "1", "milligram"), "g": ("mass", "1000", "gram"), "kg": ("mass", "1000000", "kilogram kilo"),
    "ml": ("volume", "1", "milliliter millilitre"), "l": ("volume", "1000", "liter litre"),
    "s": ("time", "1", "sec second"), "min": ("time", "60", "minute"), "h": ("time", "3600", "hr hour"),
    "day": ("time", "86400", ""), "week": ("time", "604800", ""),
    "month": ("calendar", "1", ""), "year": ("calendar", "12", "yr"),
    "$": ("dollars", "1", "dollar usd"), "€": ("euros", "1", "euro eur"), "£": ("pounds", "1", "gbp"),
    "%": ("share", "1", "percent"), "°": ("angle", "1", "degree"),
}  # fmt: skip
_UNIT_NAMES = {name: unit for unit, (_, _, names) in _UNITS.items() for name in (unit, *names.split())}
_FORMULA = re.compile(r"[\\^=$]")
_TERM = re.compile(r"(?=.*(?:[+*()]|\d[a-z]))(?:[\d\s.,()+*/-]|(?<![a-z])[a-z](?![a-z]))+", re.I)  # "2x + 3", "(1, 2)"


def final_answer(response: str) -> str | None:
    """What stands in the last <answer>...</answer>, as reasoning models write it; without one in the last \\boxed{...},
    else on the line after the last "Answer:". The same order holds inside the tag. None where nothing stands there."""
    tagged = _TAGGED.findall(response)
    if tagged:
        return final_answer(tagged[-1]) or tagged[-1].strip() or None
    if boxed := _last_boxed(response):
        return boxed
    marked = _MARKED.findall(response)
    return marked[-1].strip(" \t\r*_`") or None if marked else None


def _last_boxed(response: str) -> str | None:
    """The content of the last box that is closed, nested braces included; in one pass, for a policy may write thousands
    of boxes and close none."""
    open_at: list[tuple[int, bool]] = []  # where a brace's content begins, and whether it is a box
    last = (-1, -1)
    for brace in _BRACE.finditer(response):
        if brace[0] != "}":
            open_at.append((brace.end(), brace[0] != "{"))
        elif open_at:
            start, is_box = open_at.pop()
            last = max(last, (start, brace.start())) if is_box else last
    return response[slice(*last)].strip() or None if last[0] >= 0 else None


def answer_criterion(example: Example) -> Criterion:
    """What a judge is asked where no rule decides whether a response gives the example's answer."""
    return Criterion(ANSWER, f"Gives the final answer {example.answer}.")


def answers_match(given: str, wanted: str) -> bool | None:
    """Whether they are the same choice, numbers, quantity, formula (math-verify) or short text. None where the wanted
    answer is free text, more than three words, which no rule can compare; there only equal text is True.

    Case, spaces and closing dots do not count. A quantity may lack its unit on one side, but not have another one.
    """
    given, wanted = _plain(given), _plain(wanted)
    a, b = given.casefold(), wanted.casefold()
    if a == b:
        return True
    choice = _CHOICE.fullmatch(a)
    if letter := _LETTER.fullmatch(b):
        return choice is not None and choice[1] == letter[1]
    if option := _OPTION.fullmatch(wanted):  # its letter will do, and so will its text
        return choice[1] == option[1].casefold() if choice else answers_match(given, option[2])
    if (several := _numbers(b)) is not None:
        return several == _numbers(a)
    if (quantity := _quantity(b)) is not None:
        other = _quantity(a)
        return _same_quantity(other, quantity) if other is not None else _is_formula(given) and _equal(given, wanted)
    if _is_formula(wanted):
        return _equal(given, wanted)
    return True if _bare(a) == _bare(b) else None if len(b.split()) > 3 else False


def _bare(text: str) -> str:
    """Without an article before it."""
    return re.sub(r"^(?:the|an|a) (?=\w)", "", text)


def _plain(text: str) -> str:
    """Without mark-up around it, words in formulas as words, single spaces."""
    text = _THOUSANDS.sub(",", _WORDS.sub(r"\1", text))
    for written, meant in _SIGNS.items():
        text = text.replace(written, meant)
    text = " ".join(text.split()).strip("*_` ").rstrip(". ")
    inside = re.fullmatch(r"\$+([^$]+)\$+|\\\((.+)\\\)|\\\[(.+)\\\]", text)
    return next(group for group in inside.groups() if group).strip() if inside else text


def _numbers(text: str) -> list[Fraction] | None:
    """The numbers of a list of two or more ("3 5", "3, 5", "3 and 5"), in their order; None for anything else."""
    parts = [text] if re.fullmatch(_NUMBER, text) else re.split(r"\s*[,;]\s*(?:and )?|\s+(?:and )?", text.strip("()[]"))
    known = len(parts) > 1 and all(re.fullmatch(_NUMBER, part) for part in parts)
    return [_fraction(part) for part in parts] if known else None


def _fraction(number: str) -> Fraction:
    return Fraction(number.replace(",", "").rstrip("."))


def _quantity(text: str) -> tuple[Fraction, str] | None:
    """The value and the unit ("" where it has none) of a single number: 5, 1/2, 2 1/2, $5, 5 cm."""
    found = _QUANTITY.fullmatch(text.strip("()") if re.fullmatch(r"\([^()]*\)", text) else text)
    if found is None:
        return None
    minus, currency, number, numerator, denominator, unit = found.groups()
    value, divisor = _fraction(number), int(denominator or 1)
    if not divisor or (numerator and (int(numerator) >= divisor or not number.lstrip("+-").isdigit())):
        return None
    if numerator:
        part = Fraction(int(numerator), divisor)
        value = value - part if number.startswith("-") else value + part
    else:
        value /= divisor
    return -value if minus else value, _unit((unit or currency or "").replace(" ", ""))


def _unit(written: str) -> str:
    """The short name of a unit that is known here, singular or plural, else the unit as written."""
    singular = written.removesuffix("s") if len(written) > 2 else written  # ms are not m
    return _UNIT_NAMES.get(written) or _UNIT_NAMES.get(singular) or written


def _same_quantity(given: tuple[Fraction, str], wanted: tuple[Fraction, str]) -> bool | None:
    """Known units of one kind are converted; whether two others mean the same (cars, vehicles) no rule knows. Of two
    words that are no units here, other numbers are other answers; 18 km/h may be 5 m/s, and 1 tonne 1000 kg."""
    (a, unit_a), (b, unit_b) = given, wanted
    if unit_a == unit_b or not (unit_a and unit_b):
        a_or_share = (a, a / 100) if unit_a == "%" != unit_b else (a,)  # 50% is 50 and 0.5
        b_or_share = (b, b / 100) if unit_b == "%" != unit_a else (b,)
        return any(_close(x, y) for x in a_or_share for y in b_or_share)
    if unit_a in _UNITS and unit_b in _UNITS:
        (kind_a, size_a, _), (kind_b, size_b, _) = _UNITS[unit_a], _UNITS[unit_b]
        return kind_a == kind_b and _close(a * Fraction(size_a), b * Fraction(size_b))
    words = all(unit.isalpha() and unit not in _UNITS for unit in (unit_a, unit_b))
    return False if words and not _close(a, b) else None


def _close(a: Fraction, b: Fraction) -> bool:
    """Whole numbers exactly, others to six digits."""
    whole = a.denominator == b.denominator == 1
    return a == b if whole else math.isclose(a, b, rel_tol=2e-6)


def _is_formula(text: str) -> bool:
    return bool(_FORMULA.search(text) or _TERM.fullmatch(text))


def _equal(given: str, wanted: str) -> bool:
    """By math-verify, each side as one formula."""
    from math_verify import parse, verify

    sides = [_one_formula(text) for text in (wanted, given)]
    if None in sides:
        return False
    seconds = 5 if threading.current_thread() is threading.main_thread() else 0  # it uses signals; 0: no limit
    gold, answer = (parse(f"${side}$", parsing_timeout=seconds) for side in sides)
    return bool(gold and answer and verify(gold, answer, timeout_seconds=seconds))


def _one_formula(text: str) -> str | None:
    """The formula in dollars, or the whole text; None for several of them."""
    inside = re.findall(r"\$+([^$]+)\$+", text)
    return None if len(inside) > 1 else inside[0] if inside else text.replace("$", "")
