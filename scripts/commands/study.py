"""claimwise study NAME: experiments in the digits world, stated before they are run and repeated by one command."""

from __future__ import annotations

from ..parser import dispatch

STUDIES = {  # name: module of `scripts`, what it asks
    "arms": ("studies.arms", "what the arms of the credit differ in, and whether the spans matter"),
    "judges": ("studies.judges", "what a judge that does not see the image does to the policy"),
    "order": ("studies.order", "what the order does in which a verifier writes label, reading and verdict"),
    "gradients": ("studies.gradients", "what the arms do to the gradient: its mean and its noise"),
}
HELP = """usage: claimwise study NAME --out DIR ...

Experiments on handwritten digits; settings and contrasts are stated in a recipe before the runs.

{names}

example:
  claimwise study arms --out runs/study-arms --jobs 2

claimwise study NAME --help shows a study's flags. Stopped with Ctrl-C, the same command goes on."""


def main(argv: list[str]) -> int:
    return dispatch("study", HELP, STUDIES, argv)
