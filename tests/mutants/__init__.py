"""Mutants: small mistakes put into the code one by one. A test that fails kills one; a survivor shows a gap.

    python -m tests.mutants [--count N] [--seed S] [--changed-since REF] [--minutes M] [PATH ...]

Why not a tool that exists? `mutmut` (3.8) forks and can be told by comments, but changes bodies of functions without
decorators alone: no constant of a module, no field, no property, nothing under ``torch.no_grad``. It takes out no
statement, so no guard, and chooses tests by function. `cosmic-ray` (8.7) changes more, but starts a test command for
every mutant, five seconds of importing torch each time, and runs all its tests. Neither draws a sample. What is needed
is little: `mutations` finds mistakes with `ast`, `lines` learns which test runs which line, and `__main__` forks a
process for each mistake from one that has imported everything but this package.

What a test forks has the mutant, and so has a Python program that it starts anew (`started`).
"""
