"""Mutants: small mistakes put into the code one by one. A test that fails kills one; a survivor shows a gap.

    python -m tests.mutants [--count N] [--seed S] [--changed-since REF] [--minutes M] [PATH ...]

Why not a tool that exists: `cosmic-ray` starts a test command for every mutant, five seconds of importing torch each
time. `mutmut` 3 forks, but changes function bodies alone (no constants of modules, no defaults of fields), through a
copy of the tree whose functions are wrapped, and a mutant that changes nothing is silenced by a comment in the code,
not by a reason in a list. What is needed is little: `mutations` finds them with `ast`, `recording` learns which test
runs which line, and `running` forks a process for each from one that has imported everything but this package.

What a test starts in a process of its own runs the code as it is: nothing there kills a mutant.
"""
