"""claimwise push: upload a verifier with its model card to the Hub, or write what would be uploaded."""

from __future__ import annotations

from pathlib import Path

from ..parser import CommandParser

EXAMPLE = """examples:
  claimwise push runs/verifier ORG/my-verifier --private
  claimwise push runs/verifier ORG/my-verifier --dry-run runs/to-upload
  claimwise push runs/verifier ORG/my-verifier-merged --merge --licence apache-2.0

The model card has the measured agreement (metrics.json), base, data version (run.json), prompt hash and licence. The
token is HF_TOKEN, or the one of hf auth login. A merged model is first written beneath TMPDIR."""


def make_parser() -> CommandParser:
    parser = CommandParser("push", "Upload a verifier to the Hugging Face Hub, with a model card.", EXAMPLE)
    parser.add_argument("folder", metavar="DIR", type=Path, help="a verifier's folder, as claimwise distill wrote it")
    parser.add_argument("repo", metavar="REPO", help="ORG/NAME on the Hub; made if it is not there")
    parser.add_argument("--merge", action="store_true", help="upload a whole model: the adapter merged into its base")
    parser.add_argument(
        "--base", metavar="DIR|NAME", help="the base, where not what the adapter names; never quantised"
    )
    parser.add_argument("--base-name", metavar="NAME", help="the base's name on the Hub, for a base in a local folder")
    parser.add_argument("--licence", metavar="ID", help="licence, as the Hub names them (default: the base's own)")
    parser.add_argument("--private", action="store_true", help="only for you or your organisation")
    parser.add_argument("--dry-run", metavar="OUT", type=Path, help="write the files to this folder and upload nothing")
    return parser


def main(argv: list[str]) -> int:
    args = make_parser().parse_args(argv)
    from ...distill.handover import gather, upload, write_folder

    facts = gather(args.folder, args.repo, args.merge, args.base, args.base_name, args.licence)
    if args.dry_run is not None:
        write_folder(facts, args.folder, args.dry_run, args.base)
        size = sum(path.stat().st_size for path in args.dry_run.iterdir())
        print(f"{args.dry_run}: {size / 1e6:.1f} MB in {len(list(args.dry_run.iterdir()))} files, as for {args.repo}")
        return 0
    url = upload(facts, args.folder, args.private, args.base)
    print(f"{url}: uploaded; agreement {facts.metrics['agreement']:.3f}, licence {facts.licence['license']}")
    return 0
