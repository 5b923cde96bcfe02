"""The recipes that come along."""

from pathlib import Path

HUB_CONFIGS = Path(__file__).parents[1] / "hub_configs"
