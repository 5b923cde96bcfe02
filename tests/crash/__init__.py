"""Every command that changes the disk, killed before and after each of its system calls, then given again.

``python -m tests.crash`` does all of it and prints a line for each command; `test_crash.py` takes a sample.
"""
