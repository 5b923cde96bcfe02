"""Mutants: small mistakes put into the code one by one. A test that fails kills one; a survivor shows a gap.

    python -m tests.mutants [--count N] [--seed S] [--changed-since REF] [--minutes M] [--slow] [PATH ...]

Why not a tool that exists (mutmut 3.8 and cosmic-ray 8.7 were tried): `mutmut` forks from a process that has imported
everything, tests changed functions alone and knows comments, but changes bodies of functions without decorators only:
no constant of a module, no field of a class, no property, nothing under ``torch.no_grad``. It takes out no statement,
so no guard, its operators cannot be added to, and it selects tests by function, not by line. `cosmic-ray` changes all of
these and takes operators and git's lines, but starts a test command for every mutant, five seconds of importing torch
each time, and every test of it. Neither draws a sample. What is needed is little: `mutations` finds mistakes with
`ast`, `recording` learns which test runs which line, and `running` forks a process for each.

What a test starts in a process of its own runs the code as it is: nothing there kills a mutant.
"""
