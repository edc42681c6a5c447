"""Starts Ray, fills its object store, and has one task fill most of what it may ask for."""

import os
import sys

# No token in the user's home, and nothing sent anywhere.
os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}

import ray

PIECE = 1 << 20

ray.init(num_cpus=1, include_dashboard=False, _temp_dir=sys.argv[1], log_to_driver=False)
resources = ray.cluster_resources()
memory, object_store = int(resources["memory"]), int(resources["object_store_memory"])


@ray.remote(max_retries=0)  # type: ignore[untyped-decorator,unused-ignore]
def fill(size: int) -> int:
    held = [bytes(range(256)) * (PIECE // 256) for _ in range(0, size, PIECE)]
    return sum(map(len, held))


held = [ray.put(os.urandom(8 * PIECE)) for _ in range(0, object_store * 9 // 10, 8 * PIECE)]
print("filled:", len(held) * 8 * PIECE, "of", object_store, "and", flush=True)
print(ray.get(fill.remote(memory * 8 // 10)), "of", memory, flush=True)
ray.shutdown()
