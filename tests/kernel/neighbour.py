"""A neighbour that grows: touches RATE bytes a second (argument 1) up to CAP bytes (argument 2), then waits.

Run with ``python3 -S -E``. Says ``growing`` once it has begun; ends when its input is closed.
"""

import mmap
import select
import sys
import time

rate, cap = int(sys.argv[1]), int(sys.argv[2])
STEP = 256 * 1024
held: list[mmap.mmap] = []
print("growing", flush=True)
started = time.monotonic()
pause = 0.002
while not select.select([sys.stdin], [], [], pause)[0]:
    due = min(int((time.monotonic() - started) * rate), cap)
    while len(held) * STEP + STEP <= due:
        memory = mmap.mmap(-1, STEP, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.write(b"\1" * STEP)
        held.append(memory)
    pause = 0.002 if due < cap else 0.1
