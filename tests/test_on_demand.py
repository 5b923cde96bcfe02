"""A package whose names are imported when they are first used."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.messages import TEXT

PACKAGE = """
from typing import TYPE_CHECKING
from promptccd.on_demand import give_names_on_demand
if TYPE_CHECKING:
    from shop_on_demand.tools import nut as nut
    from shop_on_demand.bolt import bolt as bolt
if not TYPE_CHECKING:
    import os
give_names_on_demand(__name__)
"""


def test_names_and_modules_come_when_they_are_first_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        "__init__": PACKAGE,
        "tools": "nut = [1]",
        "bolt": "bolt = 'of the same name'",
        "_own": "",
        "more": "",
    }
    (tmp_path / "shop_on_demand").mkdir()
    for name, text in texts.items():
        (tmp_path / "shop_on_demand" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    shop = import_module("shop_on_demand")
    assert shop.__all__ == ["bolt", "nut"]
    assert not {f"shop_on_demand.{name}" for name in texts} & sys.modules.keys()
    assert shop.nut is sys.modules["shop_on_demand.tools"].nut is vars(shop)["nut"]
    assert shop.bolt == import_module("shop_on_demand").bolt == TEXT["of-the-same-name"]
    assert shop.more is sys.modules["shop_on_demand.more"]
    for name in ("_own", "screw"):
        with pytest.raises(AttributeError, match=TEXT["module-shop-on-demand-has-no"].format(name)):
            getattr(shop, name)
    shop.nut, shop.system = 2, sys
    assert (shop.nut, shop.system) == (2, sys)
