"""oslo.messaging, OpenStack's RPC: a server and a client in one process, over the RabbitMQ driver.

Its topic queues, fanout queues and reply queues are transient ones, as they are by default.
Arguments: the ports in the order in which they are tried, then the longest time of a call.
"""

import random
import sys
import threading

import oslo_messaging
import steady
from oslo_config import cfg

CALL_TIMEOUT_S = 5


class Endpoint:
    """What the server does."""

    def double(self, context: dict, number: int) -> int:
        return 2 * number

    def heard(self, context: dict, number: int) -> None:
        """Called at all servers at once (fanout)."""
        if number > Endpoint.newest:
            Endpoint.newest = number

    newest = -1


def main() -> None:
    *ports, bound_s = sys.argv[1:]
    # The driver draws the member that it connects to first; here that is the one which will go.
    random.shuffle = lambda hosts: None
    conf = cfg.CONF
    conf([], project="brokerd")
    hosts = ",".join(f"guest:guest@127.0.0.1:{port}" for port in ports)
    url = f"rabbit://{hosts}/"

    def transport() -> oslo_messaging.transport.RPCTransport:
        made = oslo_messaging.get_rpc_transport(conf, url=url)
        conf.set_override("kombu_failover_strategy", "round-robin", group="oslo_messaging_rabbit")
        return made

    target = oslo_messaging.Target(topic="oslo", server="server")
    server = oslo_messaging.get_rpc_server(transport(), target, [Endpoint()])
    server.start()
    client = oslo_messaging.get_rpc_client(
        transport(), oslo_messaging.Target(topic="oslo"), timeout=CALL_TIMEOUT_S
    )
    casting = threading.Lock()

    def call(number: int) -> None:
        answer = client.call({}, "double", number=number)
        assert answer == 2 * number, answer
        with casting:
            client.prepare(fanout=True).cast({}, "heard", number=number)

    calls = steady.Steady(call, float(bound_s))
    calls.run()
    before = Endpoint.newest
    for number in range(before + 1, before + 50):
        client.prepare(fanout=True).cast({}, "heard", number=number)
        client.call({}, "double", number=number)
        if Endpoint.newest > before:
            break
    assert Endpoint.newest > before, "no cast to all servers arrives"
    steady.done()


if __name__ == "__main__":
    main()
