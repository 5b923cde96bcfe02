"""The parts of the documentation that are made from the package, and the drawings."""
