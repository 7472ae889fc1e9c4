"""The command line and the recipes."""
