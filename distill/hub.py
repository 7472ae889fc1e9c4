"""Rows of a data set of the Hub, streamed with `datasets`, its images left as their bytes.

In: the data set's name. Out: a `Source` fixed to the revision that the Hub has now, so that a stopped run goes on with
the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..verifier.errors import InputError
from .sources import RawRow, Source

DOWNLOAD = "download it (hf download NAME --repo-type dataset --local-dir FOLDER) and give the folder"


def open_hub(name: str, part: str | None, subset: str | None) -> Source:
    revision = _revision(name)
    parts = _load(name, subset, revision)
    if part is None and len(parts) > 1:
        raise InputError(f"{name} has the parts {', '.join(parts)}; choose one with --part NAME")
    if part is not None and part not in parts:
        raise InputError(f"--part {part}: {name} has no such part; it has {', '.join(parts)}")
    part = part or next(iter(parts))
    return stream(name, parts[part], f"part {part}, revision {revision or 'as cached'}", [subset, part, revision])


def stream(name: str, rows: Any, description: str, identity: list[Any]) -> Source:
    """`rows` is an IterableDataset."""
    rows = rows.decode(False)
    known = rows.info.splits[rows.split].num_examples if rows.info.splits and rows.split in rows.info.splits else None

    def read(start: int) -> Iterator[RawRow]:
        number = start
        try:
            for values in rows.skip(start) if start else rows:
                number += 1
                yield RawRow(number, f"row {number}", dict(values))
        except Exception as error:  # the network's, the file system's, Arrow's
            raise InputError(
                f"{name}: the rows end after number {number} ({_brief(error)}); the same command goes on from there, "
                f"or {DOWNLOAD}"
            ) from None

    return Source(name, f"data set of the Hub, {description}", identity, known, read, remote=True)


def _revision(name: str) -> str | None:
    """The commit that the Hub has now; None where the Hub is not to be asked (HF_HUB_OFFLINE)."""
    import httpx
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if constants.HF_HUB_OFFLINE:
        return None
    try:
        return HfApi().dataset_info(name, timeout=20).sha
    except HFValidationError:
        raise InputError(f"{name}: there is no such file or folder, nor can it be the name of a data set") from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403, 404):
            raise InputError(
                f"{name}: there is no such file or folder, nor a data set of this name on the Hub that you may read; "
                "mend the name, or log in with: hf auth login"
            ) from None
        raise InputError(f"{name}: the Hub answers with status {status}; try again later, or {DOWNLOAD}") from None
    except (OSError, httpx.HTTPError) as error:
        raise InputError(
            f"{name}: there is no such file or folder, and the Hub cannot be reached ({_brief(error)}); where there "
            f"is a network, {DOWNLOAD}"
        ) from None


def _load(name: str, subset: str | None, revision: str | None) -> dict[str, Any]:
    """Part -> rows."""
    import datasets
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()
    datasets.disable_progress_bars()
    try:
        parts = datasets.load_dataset(name, subset, revision=revision, streaming=True)
        return {str(part): rows for part, rows in parts.items()}
    except ConnectionError:
        raise InputError(
            f"{name}: there is no such file or folder, and the Hub is not to be asked (HF_HUB_OFFLINE is set); unset "
            f"it, or where there is a network, {DOWNLOAD}"
        ) from None
    except Exception as error:  # whatever its files and its card lead to
        hint = "; choose one with --subset NAME" if "onfig name is missing" in str(error) else f"; or {DOWNLOAD}"
        raise InputError(f"{name}: it cannot be opened ({_brief(error)}){hint}") from None


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
