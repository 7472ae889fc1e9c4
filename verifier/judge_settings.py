"""What a judge may be given: values that there are, and those that a judge in its place follows.

In: the settings of `load_judge`. Out: nothing, or one InputError that names the setting.
"""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Iterable
from typing import Any

import torch

from .errors import InputError
from .schema import MODES

MAX_PACKED_TOKENS = 16384


def check_settings(
    adapter, mode, base, max_packed_tokens, dtype, device, backend: str, server, model, more: Iterable[str]
) -> None:
    """Refuses values that there are not, and those that a judge in its place would not follow; of the settings beyond,
    `more` has the names."""
    behind_server, in_vllm = server is not None, backend == "vllm"
    if backend not in ("transformers", "vllm"):
        raise InputError(f"there is no backend {backend!r}; take transformers or vllm, or give the address of a server")
    if behind_server and in_vllm:
        raise InputError("a judge runs either behind a server or in vLLM here; give one of the two")
    if mode not in (None, *MODES):
        raise InputError(f"there is no mode {mode!r}; take {' or '.join(MODES)}")
    in_transformers = not (behind_server or in_vllm)
    _only("device", device, None, in_transformers, "a verifier in transformers")
    _only("max_packed_tokens", max_packed_tokens, MAX_PACKED_TOKENS, in_transformers, "a verifier in transformers")
    _only("dtype", dtype, "auto", not behind_server, "a verifier that runs here, not behind a server,")
    _only("base", base, None, adapter is not None, "the verifier of an adapter")
    _only("model", model, None, behind_server or adapter is None, "a judge behind a server")
    if behind_server:
        _check_client(more, quoting=adapter is None)
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype != "auto" and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise InputError(f"there is no dtype {dtype!r}; take auto, float32, bfloat16 or float16")
    if not (isinstance(max_packed_tokens, numbers.Real) and float(max_packed_tokens) >= 1):
        raise InputError(f"max_packed_tokens is {max_packed_tokens!r}; it must be a number of tokens, 1 or more")
    _check_device(device)


def _only(name: str, value: Any, default: Any, followed: bool, by: str) -> None:
    if value != default and not followed:
        raise InputError(f"{name} = {value!r}: only {by} takes that; leave it out")


def _check_client(names: Iterable[str], quoting: bool) -> None:
    from .chat import ChatClient

    known = [name for name in inspect.signature(ChatClient).parameters if name not in ("url", "model")]
    known += ["max_tokens"] if quoting else []
    for name in names:
        if name not in known:
            raise InputError(f"{name}: a judge behind a server has no such setting; it has {', '.join(known)}")


def _check_device(device: Any) -> None:
    """A number is put there and read back, since torch knows devices that are not here, or keep no numbers."""
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, TypeError, ImportError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"device = {device!r} is not to be had here ({reason}); leave it out, or take cpu") from None
