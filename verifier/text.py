"""Text from elsewhere, made fit for files and for one-line messages."""

import re

_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # what starts a new line, or tells a terminal what to do


def clean(text: str) -> str:
    """Without halves of surrogate pairs, which no file can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def one_line(text: str) -> str:
    """The same number of characters, none of which breaks the line of a table or commands a terminal."""
    return _BREAKS.sub(" ", text)


def excerpt(value: object, length: int = 80) -> str:
    """The beginning of what a judge or a server wrote, on one line and in quotation marks."""
    text = clean(" ".join(str(value).split()))
    return repr(text if len(text) <= length else text[: length - 1] + "…")
