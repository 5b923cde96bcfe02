"""The version of this package, wherever it is: installed, next to a page, or on a path."""

__version__ = "0.1.0"
