"""claimwise study NAME: experiments in the digits world, stated before they are run and repeated by one command.

A study is a module of `scripts` with `main(argv) -> int`, imported when it is called. To add one, name it in STUDIES.
"""

from __future__ import annotations

import importlib

from ...verifier.errors import InputError

STUDIES = {  # NAME -> (module of `scripts`, what it asks)
    "arms": ("study_arms", "what the arms of the credit differ in, and whether the spans matter"),
    "judges": ("study_judges", "what a judge that does not see the image does to the policy"),
    "gradients": ("study_gradients", "what the arms do to the gradient: its mean and its noise"),
}
HELP = """usage: claimwise study NAME --out DIR ...

Experiments on handwritten digits; settings and contrasts are stated in a recipe before the runs.

{studies}

example:
  claimwise study arms --out runs/study-arms --jobs 2

claimwise study NAME --help shows a study's flags. Stopped with Ctrl-C, the same command goes on."""


def main(argv: list[str]) -> int:
    if {"-h", "--help"} & set(argv[:1]):
        print(HELP.format(studies="\n".join(f"  {name:<10} {what}" for name, (_, what) in STUDIES.items())))
        return 0
    if not argv or argv[0] not in STUDIES:
        named = f"there is no study {argv[0]!r}" if argv else "no study is named"
        raise InputError(f"{named}; give one of {', '.join(STUDIES)} (claimwise study --help)")
    return importlib.import_module(f"...{STUDIES[argv[0]][0]}", __name__).main(argv[1:])
