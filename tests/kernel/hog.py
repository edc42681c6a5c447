"""Touches BYTES of memory (argument 1), then sleeps SECONDS (argument 2, default 0) and exits 0.

Run with ``python3 -S -E``: nothing but the interpreter is loaded. SIGINT ends it at once, as it ends
a program in C: a KeyboardInterrupt in a callback of the import machinery is printed and forgotten.
"""

# The built-in half of `signal`: the other half imports a dozen modules first.
import _signal  # type: ignore[import-not-found]

_signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import mmap  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402

size = int(sys.argv[1])
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for page in range(0, size, mmap.PAGESIZE):
    memory[page] = 1
if len(sys.argv) > 2:
    time.sleep(float(sys.argv[2]))
