"""Starts the PostgreSQL server of the arguments and fills what it may have.

Its shared buffers with a table, and the memory of SESSIONS (argument 1) with aggregates that
need more than that. Sockets go to DIRECTORY (argument 2).
"""

import subprocess
import sys
import time

sessions, directory = int(sys.argv[1]), sys.argv[2]
server = subprocess.Popen(
    [
        *sys.argv[3:],
        "-c",
        "listen_addresses=",
        "-c",
        f"unix_socket_directories={directory}",
        "-c",
        "fsync=off",
    ]
)
PSQL = ["psql", "-X", "-q", "-h", directory, "-U", "postgres", "-At", "-v", "ON_ERROR_STOP=1", "-c"]
SHARED_BUFFERS = "SELECT setting::int FROM pg_settings WHERE name = 'shared_buffers'"
# One row a page: a table as large as the shared buffers, and all of it in them.
FILL_BUFFERS = """
    CREATE EXTENSION pg_prewarm;
    CREATE TABLE wide (filling char(5000));
    ALTER TABLE wide ALTER filling SET STORAGE PLAIN;
    INSERT INTO wide SELECT 'x' FROM generate_series(1, PAGES);
    SELECT pg_prewarm('wide');
"""
# A list of numbers takes work_mem, the groups twice that: the rest is spilled.
AGGREGATE = """
    SET enable_sort = off;
    SET max_parallel_workers_per_gather = 0;
    SELECT count(*) FROM (
        SELECT md5(i::text), count(*) FROM generate_series(1, 600000) AS i GROUP BY 1
    ) AS groups
"""

deadline = time.monotonic() + 100
while subprocess.run([*PSQL, "SELECT 1"], capture_output=True, check=False).returncode:
    assert server.poll() is None and time.monotonic() < deadline, "the server does not start"
    time.sleep(0.1)
pages = subprocess.check_output([*PSQL, SHARED_BUFFERS], text=True).strip()
subprocess.run([*PSQL, FILL_BUFFERS.replace("PAGES", pages)], check=True)
running = [subprocess.Popen([*PSQL, AGGREGATE]) for _ in range(sessions)]
failed = sum(process.wait() != 0 for process in running)
print("filled:", pages, "pages,", sessions, "sessions,", failed, "failed", flush=True)
server.terminate()
sys.exit(server.wait() or failed)
