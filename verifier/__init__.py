"""The contract and the judge: `from claimwise.verifier import Criterion, Example, Verdict, Judge, load_judge`."""

from .errors import InputError
from .schema import Criterion, Example, Judge, Rollout, Verdict

__all__ = ["Criterion", "Example", "InputError", "Judge", "Rollout", "Verdict", "load_judge"]


def __getattr__(name: str):
    if name == "load_judge":  # brings torch and transformers: only when asked for
        from .judge import load_judge

        return load_judge
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
