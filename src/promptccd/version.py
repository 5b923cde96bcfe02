"""The version of this package, wherever it lies: installed, beside a page, or on a path."""

__version__ = "0.1.0"
