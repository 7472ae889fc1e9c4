"""What `claimwise bench NAME` measures: a module for each name with `figures(args) -> dict`, and what these share."""
