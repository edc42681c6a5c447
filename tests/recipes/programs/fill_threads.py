"""Fills 80 % of the budget from 16 threads at once, each of which frees and allocates as it goes."""

import os
import threading

THREADS = 16
PIECE = 16 << 10

budget = int(os.environ["OOMPROOF_BUDGET_BYTES"])
share = budget * 8 // 10 // THREADS
start = threading.Barrier(THREADS)
held: list[list[bytes]] = []


def fill() -> None:
    mine: list[bytes] = []
    start.wait()
    for number in range(share // PIECE):
        mine.append(b"x" * (PIECE - number % 512))
        if number % 8 == 0:
            mine[number // 2] = b"y" * (PIECE - 64)
    held.append(mine)


threads = [threading.Thread(target=fill) for _ in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("filled:", sum(len(piece) for mine in held for piece in mine), "of", budget)
