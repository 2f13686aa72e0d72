"""Links and shovels as RabbitMQ's clients read them."""

from __future__ import annotations

import pytest

from brokerd.federation.link_state import State
from brokerd.server.management import links

ROW = {
    "node": "n1",
    "type": "shovel",
    "vhost": "/",
    "upstream": "up",
    "id": "1",
    "local_connection": "",
    "uri": "amqp://there",
    "since_ms": 0,
    "error": "why",
}


@pytest.mark.parametrize("state", list(State))
def test_a_shovel_is_in_one_of_the_states_that_clients_know(state: State) -> None:
    """rabbitmqadmin 2 refuses a whole list for one unknown state."""
    row = links.shovel_row(ROW | {"status": state.value})
    assert row["state"] in {"starting", "running", "terminated"}
    assert row["reason"] == "why"


def test_a_link_names_its_consumer() -> None:
    row = links.link_row(ROW | {"type": "queue", "status": "running"})
    assert row["consumer_tag"] == "federation-link-up"
    row = links.link_row(ROW | {"type": "queue", "status": "running", "consumer_tag": "mine"})
    assert row["consumer_tag"] == "mine"
