"""Reads the command line, calls one function, prints what it returned."""
