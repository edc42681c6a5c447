"""Has one task of a Dask worker fill 80 % of the worker's own limit; ends scheduler and worker.

The worker is started by the test, in its leaf, and finds the scheduler by FILE (argument 1).
"""

import sys
import time

from distributed import Client, get_worker

PIECE = 1 << 20


def fill() -> tuple[int, int]:
    limit = get_worker().memory_manager.memory_limit
    held = []
    for _ in range(0, limit * 8 // 10, PIECE):
        held.append(bytes(range(256)) * (PIECE // 256))
        time.sleep(0.0005)
    return sum(map(len, held)), limit


if __name__ == "__main__":
    with Client(scheduler_file=sys.argv[1], timeout="60s") as client:
        client.wait_for_workers(1, timeout=60)
        print("filled:", *client.submit(fill, retries=0).result(), flush=True)
        client.shutdown()
