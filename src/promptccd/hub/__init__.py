"""A run and the Hub: every stage a repository of its own, there whole or not at all."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.hub.push import PushedRepository as PushedRepository
    from promptccd.hub.push import StagePusher as StagePusher
    from promptccd.hub.push import push_run as push_run
    from promptccd.hub.push import push_stage as push_stage
    from promptccd.hub.space import push_space as push_space
    from promptccd.hub.stages import publish_stages as publish_stages
    from promptccd.hub.verify import fetch_stages as fetch_stages
    from promptccd.hub.verify import verify as verify

give_names_on_demand(__name__)
