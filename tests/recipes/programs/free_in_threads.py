"""Twelve threads, one after another alive, each allocate 24 MiB in small pieces and free nearly all of it.

What is freed stays in each thread's arena if there is one for every thread, and is used again if they share.
"""

import threading

THREADS = 12
PIECE = 8 << 10
PIECES = (24 << 20) // PIECE

kept: list[bytes] = []
turn = threading.Lock()
done = threading.Barrier(THREADS)


def work() -> None:
    with turn:
        pieces = [b"x" * PIECE for _ in range(PIECES)]
        # The last one stays: it holds the arena's end, so that nothing below it is given back.
        kept.append(pieces[-1])
        del pieces
    # An arena is used again when its thread has ended: all of them live on until the end.
    done.wait()


threads = [threading.Thread(target=work) for _ in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
