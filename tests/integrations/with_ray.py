"""with_ray.py MODEL CAPTIONS OUT: embed by two actors of a local Ray, on a machine of its own.

In a network without any other machine: only the loopback interface is there.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import struct
import sys

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import ray

from gradspace.integrations.ray import embed_with_ray

SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def use_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))
    assert [name for _, name in socket.if_nameindex()] == ["lo"]


if __name__ == "__main__":
    model, captions, out = sys.argv[1:]
    use_loopback()
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=80 * 2**20,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    done = embed_with_ray(model, captions, out=out, shards=3, actors=2, num_cpus=1)
    print(done.own, done.manifest["captions"])
    ray.shutdown()
