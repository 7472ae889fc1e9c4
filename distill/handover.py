"""`claimwise push`: a finished verifier as a repository of the Hub, or as the folder that would be uploaded.

In: the folder of a distillation. Out: the adapter (or the base with the adapter merged into it), verifier.json,
metrics.json and the model card. An adapter is merged into unquantised weights only: rounding the sum to 4 bits would
undo much of what was trained (trl#3466).
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from ..verifier.adapter import MERGED, VerifierCard, check_base, read_card
from ..verifier.errors import InputError
from ..verifier.lora import CONFIG, WEIGHTS, lora_settings
from .card import Handover, model_card

METRICS, RUN = "metrics.json", "run.json"


def gather(
    folder: Path,
    repo: str,
    merged: bool,
    base: str | None = None,
    base_name: str | None = None,
    licence: str | None = None,
) -> Handover:
    """What `folder` holds, checked, without loading the model. `base` is where the base lies, if not where
    verifier.json says; `base_name` its name on the Hub; `licence` an identifier of the Hub's, by default the base's
    own."""
    from ..verifier.judge import resolve_base

    card = read_card(folder)
    if card.base == MERGED:
        raise InputError(f"{folder} is merged into its base already; push the adapter that it was made from")
    if not (folder / METRICS).is_file():
        raise InputError(f"{folder} has no {METRICS}; give a folder that claimwise distill has finished")
    lora_settings(folder)
    metrics = _read(folder / METRICS)
    if absent := [name for name in ("n", "agreement") if metrics.get(name) is None]:
        raise InputError(
            f"{folder / METRICS} has no {absent[0]}; distil the verifier again, on a larger held-out table"
        )
    check_name(repo, "the repository")
    if base_name:
        check_name(base_name, "--base-name")
    path = str(base or resolve_base(card, folder))
    known = base_name or (None if Path(path).is_dir() else path)
    if known is None and not merged:
        raise InputError(
            f"{folder} is on a base in a folder of this machine ({path}), which nobody else has; say its name on the "
            "Hub (--base-name ORG/NAME), or --merge"
        )
    run = _read(folder / RUN) if (folder / RUN).is_file() else {}
    found = {"license": licence} if licence else licence_of(path, known)
    return Handover(card, metrics, run, found, known, repo, merged)


def check_name(name: str, what: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise InputError(f"{what} is {name!r}, no name of the Hub ({error}); write ORG/NAME") from error


def licence_of(base: str, base_name: str | None) -> dict[str, str]:
    """The licence in the model card of the base: in its folder, else on the Hub."""
    from huggingface_hub import ModelCard
    from huggingface_hub.errors import HfHubHTTPError

    readme = Path(base) / "README.md"
    try:
        if readme.is_file():
            data = ModelCard.load(readme, ignore_metadata_errors=True).data
        elif base_name:
            data = ModelCard.load(base_name, ignore_metadata_errors=True).data
        else:
            data = None
    except (OSError, ValueError, HfHubHTTPError):  # not on the Hub, no connection, no card
        data = None
    found = {key: data.get(key) for key in ("license", "license_name", "license_link")} if data else {}
    if not isinstance(found.get("license"), str):
        raise InputError(
            f"the licence of the base {base_name or base!r} is not known here; say it, as --licence apache-2.0"
        )
    return {key: str(value) for key, value in found.items() if value}


def write_folder(facts: Handover, source: Path, out: Path, base: str | None = None) -> None:
    """The files of the repository under `out`, all or none. Raises InputError where something is there already."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is there already and not an empty folder; give another name, or remove it")
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)  # what a stopped command left
    try:
        part.mkdir(parents=True)
        _fill(facts, source, part, base)
        part.replace(out)
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _fill(facts: Handover, source: Path, out: Path, base: str | None) -> None:
    if facts.merged:
        card = merge(facts.card, source, out, base)
    else:
        card = dataclasses.replace(facts.card, base=facts.base_name)
        shutil.copyfile(source / WEIGHTS, out / WEIGHTS)
        config = {**lora_settings(source), "base_model_name_or_path": facts.base_name}
        (out / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    shutil.copyfile(source / METRICS, out / METRICS)
    (out / "README.md").write_text(model_card(facts), encoding="utf-8")
    card.write(out)


def merge(card: VerifierCard, adapter: Path, out: Path, base: str | None = None) -> VerifierCard:
    """Writes base and adapter as one model, in the base's own precision, with its processor; returns its card."""
    from peft import PeftModel

    from ..verifier.judge import resolve_base
    from ..verifier.model import base_hash, load_model
    from ..verifier.progress import only_our_bars
    from .quantized import stored_quantized

    only_our_bars()
    path = str(base or resolve_base(card, adapter))
    if stored_quantized(path):
        raise InputError(
            f"the base {path} is stored quantised; merged into it, the adapter would be rounded away with the weights: "
            "give the unquantised base (--base)"
        )
    check_base(card, adapter, base_hash(path), path)
    vlm = load_model(path)
    merged = PeftModel.from_pretrained(vlm.model, adapter).merge_and_unload(safe_merge=True)
    merged.save_pretrained(out)
    vlm.processor.save_pretrained(out)
    return dataclasses.replace(card, base=MERGED, base_hash=base_hash(out))


def upload(facts: Handover, source: Path, private: bool, base: str | None = None) -> str:
    """Creates the repository where it is not there, and puts the files into it as one commit; returns its address."""
    import httpx
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    if not get_token():
        raise InputError("there is no token for the Hub; set HF_TOKEN to one that may write, or run hf auth login")
    api = HfApi()
    with tempfile.TemporaryDirectory(prefix="claimwise-push-") as temporary:
        folder = Path(temporary) / "repository"
        write_folder(facts, source, folder, base)
        try:
            url = api.create_repo(facts.repo, private=private or None, exist_ok=True)
            if private and not api.model_info(url.repo_id).private:
                raise InputError(f"{url} is there already and public; make it private there, or give another name")
            api.upload_folder(repo_id=url.repo_id, folder_path=folder, commit_message=_message(facts))
        except OfflineModeIsEnabled as error:
            raise InputError(
                "HF_HUB_OFFLINE is set; unset it to upload, or write the files with --dry-run OUT"
            ) from error
        except (HfHubHTTPError, ValueError, RuntimeError) as error:  # as it checks the card, and stores large files
            raise InputError(f"the Hub refused {facts.repo}: {_reason(error)}") from error
        except (httpx.HTTPError, OSError) as error:
            raise InputError(f"the Hub cannot be reached ({_reason(error)}); try again, nothing is lost") from error
    return str(url)


def _message(facts: Handover) -> str:
    kind = "merged into its base" if facts.merged else "adapter"
    return f"Verifier ({kind}), agreement {facts.metrics['agreement']:.3f} with its teacher"


def _reason(error: Exception) -> str:
    """The first line that says something, without the address of the request."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    told = getattr(error, "server_message", None) or next(iter(str(error).strip().splitlines()), type(error).__name__)
    return f"{status}, {told}" if status and str(status) not in told else told


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); distil the verifier again") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} holds no object; distil the verifier again")
    return found
