"""claimwise study judges: what a judge's blindness does to the policy, under an annotator who errs systematically.

In: two verifiers, one that sees the image and one that does not, and a recipe. Out: as `arms`.
"""

from __future__ import annotations

from pathlib import Path

from ...verifier.errors import InputError
from .arms import make_parser, study

EXAMPLE = """example:
  claimwise study judges --out runs/study-judges --verifier-image runs/quickstart/verifier-image \\
      --verifier-text runs/quickstart/verifier-text --jobs 2
  claimwise study judges --config scripts/recipes/study-judges-swapping.yaml --out runs/study-judges-swapping \\
      --verifier-image runs/quickstart/verifier-image --verifier-text runs/quickstart/verifier-text --jobs 2

The criteria say 9 for every 4 and 4 for every 9. The verifiers must not have been distilled on such criteria: a
quickstart's have not. The recipe (scripts/recipes/study-judges.yaml) states settings and contrasts before the runs.
The second one starts from a policy that errs as this annotator does."""


def main(argv: list[str]) -> int:
    what = "Train the digits policy on a systematic annotator's criteria under three judges, and compare the judges."
    parser = make_parser("judges", what, EXAMPLE)
    for mode in ("image", "text"):
        parser.add_argument(
            f"--verifier-{mode}", type=Path, required=True, metavar="DIR", help=f"judges in {mode} mode"
        )
    args = parser.parse_args(argv)
    judges = {"image": args.verifier_image, "text": args.verifier_text}
    for mode, folder in judges.items():
        if not (folder / "adapter_config.json").is_file():
            raise InputError(f"--verifier-{mode}: {folder} holds no verifier; give the folder of a distillation")
    return study("judges", args, {mode: str(folder) for mode, folder in judges.items()})
