"""Text from elsewhere, made fit for files and for one-line messages."""


def clean(text: str) -> str:
    """Without halves of surrogate pairs, which no file can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def excerpt(value: object, length: int = 80) -> str:
    """The beginning of what a judge or a server wrote, on one line and in quotation marks."""
    text = clean(" ".join(str(value).split()))
    return repr(text if len(text) <= length else text[: length - 1] + "…")
