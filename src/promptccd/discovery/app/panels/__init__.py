"""The steps of a visit, one file each."""
