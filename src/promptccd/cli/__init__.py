"""Reads the command line, calls one function, prints its result."""
