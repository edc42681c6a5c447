"""A daemon for tests: `daemon.py FOLDER LISTEN [BYTES]`; LISTEN: http:PORT, tcp:PORT, unix:PATH, notify or -.

It touches FOLDER/started, waits for FOLDER/go, becomes ready, and then answers: an HTTP request
for /work is answered after a child of its own has allocated BYTES, /health at once, /hang never.
SIGTERM ends it with exit code 0.
"""

from __future__ import annotations

import http.server
import os
import signal
import socket
import socketserver
import subprocess
import sys
import time
from pathlib import Path

HOG = [sys.executable, "-S", "-E", str(Path(__file__).parent / "hog.py")]


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/hang":
            time.sleep(600)
        if self.path == "/work":
            child = subprocess.run([*HOG, sys.argv[3]], check=False)
            if child.returncode:
                time.sleep(600)  # a client that waits for the result of a killed child
        ready = Path(sys.argv[1], "go").exists()
        self.send_response(200 if ready else 503)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


def wait_for_go() -> None:
    folder = Path(sys.argv[1])
    (folder / "started").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)


def serve_http(port: int) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Answers) as server:
        (Path(sys.argv[1]) / "started").touch()
        server.serve_forever()


def accept(family: socket.AddressFamily, address: tuple[str, int] | str) -> None:
    wait_for_go()
    with socket.socket(family) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(address)
        server.listen()
        while True:
            server.accept()[0].close()


def notify() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as teller:
        teller.connect(os.environ["NOTIFY_SOCKET"].replace("@", "\0", 1))
        teller.send(b"STATUS=loading parameters")
        wait_for_go()
        teller.send(b"STATUS=done\nREADY=1\nMAINPID=1")
        for number in range(100):  # more than a queue holds that nobody empties
            teller.send(b"STATUS=%d" % number)
        teller.send(b"STOPPING=1")
    while True:
        time.sleep(600)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(0))
    socketserver.ThreadingMixIn.daemon_threads = True
    kind, _, rest = sys.argv[2].partition(":")
    if kind == "http":
        serve_http(int(rest))
    elif kind == "tcp":
        accept(socket.AF_INET, ("127.0.0.1", int(rest)))
    elif kind == "unix":
        accept(socket.AF_UNIX, rest)
    elif kind == "notify":
        notify()
    else:
        wait_for_go()
        while True:
            time.sleep(600)


if __name__ == "__main__":
    main()
