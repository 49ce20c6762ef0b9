"""A process that does nothing but beat: credentials, address and period come by its standard input."""

from __future__ import annotations

import json
import sys
import time

from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.wire.address import Address
from holdfast.cluster.wire.heartbeat import Heartbeat
from holdfast.cluster.wire.keys import Credentials
from holdfast.cluster.wire.sockets import Sockets


def main() -> None:
    told = json.loads(sys.stdin.readline())
    address = Address.from_json(told["address"])
    sockets = Sockets(Credentials.from_json(told["credentials"]), "tcp://127.0.0.1:*")
    heartbeat = Heartbeat(Member(Role.SERVER, 0, 1), sockets, address, period_s=told["period_s"])
    while not heartbeat.is_dismissed:
        time.sleep(told["period_s"])
    heartbeat.close()
    sockets.close()


if __name__ == "__main__":
    main()
