"""transformers' own tests of every model, at the version that is installed, over every method: `make peers`."""
