"""Bytes of a file to a picture: decoding, depth, colours, camera RAW, cleaning, and limits."""
