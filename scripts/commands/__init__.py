"""One module per subcommand, each with `make_parser()` and `main(argv)`."""
