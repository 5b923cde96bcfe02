"""Texts of messages that tests look for: a change of language changes `texts.toml` alone."""

import tomllib
from pathlib import Path

TEXT: dict[str, str] = tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))
