"""Ratios of speed and memory, each measured in one run: ``make bench``."""
