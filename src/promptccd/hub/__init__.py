"""A run and the Hub: every stage a repository of its own, there whole or not at all."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.hub.commits import PushedRepository
    from promptccd.hub.push import push_run, push_stage, pusher
    from promptccd.hub.space import PushedSpace, push_space
    from promptccd.hub.stage_datasets import publish_groups, publish_stages
    from promptccd.hub.verify import Check, fetch_stages, verify

__all__ = [
    "Check",
    "PushedRepository",
    "PushedSpace",
    "fetch_stages",
    "publish_groups",
    "publish_stages",
    "push_run",
    "push_space",
    "push_stage",
    "pusher",
    "verify",
]

give_names_on_demand(__name__)
