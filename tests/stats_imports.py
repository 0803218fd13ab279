"""A module that ends the program while it is imported."""

raise SystemExit("no licence")
