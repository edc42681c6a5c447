"""Starts the Redis server of the arguments, fills it, and overwrites all keys during a snapshot.

Speaks Redis' protocol by itself: no client library is needed.
"""

import socket
import subprocess
import sys
import time
from pathlib import Path

VALUE = 4000
BATCH = 200

directory = Path(sys.argv[1])
path = directory / "redis.sock"
server = subprocess.Popen(
    [*sys.argv[2:], "--unixsocket", str(path), "--port", "0", "--dir", str(directory), "--save", ""]
)
deadline = time.monotonic() + 60
while not path.exists():
    assert server.poll() is None and time.monotonic() < deadline, "the server does not start"
    time.sleep(0.02)
connection = socket.socket(socket.AF_UNIX)
connection.connect(str(path))
answers = connection.makefile("rb")


def send(*words: str) -> bytes:
    return b"".join([b"*%d\r\n" % len(words), *(b"$%d\r\n%s\r\n" % (len(w), w.encode()) for w in words)])


def ask(*words: str) -> str:
    connection.sendall(send(*words))
    answer = answers.readline().decode()
    if answer.startswith("$"):
        answer = answers.read(int(answer[1:]) + 2).decode()
    return answer


def write(first: int, letter: str) -> bool:
    """Whether the server took all of a batch."""
    connection.sendall(b"".join(send("SET", f"key{n}", letter * VALUE) for n in range(first, first + BATCH)))
    taken = [answers.readline().startswith(b"+") for _ in range(BATCH)]
    return all(taken)


keys = 0
while write(keys, "a"):
    keys += BATCH
print(ask("INFO", "memory"), flush=True)
assert keys, "it took something"
# A full server takes nothing: make a little room. A snapshot of so little would be over at once: hold it up.
for number in range(keys // 20):
    ask("DEL", f"key{number}")
ask("CONFIG", "SET", "rdb-key-save-delay", "3000")
assert ask("BGSAVE").startswith("+")
taken = sum(write(first, "b") for first in range(keys // 20 // BATCH * BATCH + BATCH, keys, BATCH))
assert taken > keys // BATCH * 8 // 10, "it took nearly all of them"
assert "rdb_bgsave_in_progress:1" in ask("INFO", "persistence"), "all of them during the snapshot"
print("filled:", keys, "keys,", taken * BATCH, "of them twice", flush=True)
connection.sendall(send("SHUTDOWN", "NOSAVE"))  # ends the snapshot, too
sys.exit(server.wait())
