"""The demo's program: DuckDB sorts and aggregates a Parquet set that does not fit into its memory.

``workload.py generate DIR`` makes the set, ``workload.py work DIR --memory-limit BYTES`` works
on it and prints the answer as one JSON line. The answer is checked against a closed form:
sorted by id, row k holds id k, so that the sum of id x row is the sum of all squares.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import duckdb

ROWS = 7_000_000
CUSTOMERS = 1_000_003
_STRIDE = 1_000_000_007
"""A prime above all row counts: i x _STRIDE mod rows visits every id once, far from sorted."""

GENERATION_MEMORY = "512MiB"


def generate(directory: Path, rows: int) -> Path:
    """Write the set, 173 bytes a row that do not compress; returns the file."""
    target = directory / "orders.parquet"
    words = " || ".join(f"md5((i * 5 + {word})::varchar)" for word in range(5))
    with duckdb.connect() as connection:
        connection.execute(f"SET memory_limit = '{GENERATION_MEMORY}'")
        connection.execute(
            f"COPY (SELECT (i * {_STRIDE}) % {rows} AS id, {words} AS note FROM range({rows}) AS t(i))"
            f" TO '{target}' (FORMAT parquet, COMPRESSION uncompressed, ROW_GROUP_SIZE 20480)"
        )
    return target


def work(directory: Path, memory_limit_bytes: int) -> dict[str, int]:
    """Sort the set into a new file and aggregate that, within DuckDB's own memory limit."""
    source, target = directory / "orders.parquet", directory / "sorted.parquet"
    with (
        tempfile.TemporaryDirectory(dir=directory, prefix="spill-") as spill,
        duckdb.connect() as connection,
    ):
        connection.execute(f"SET memory_limit = '{memory_limit_bytes}B'")
        connection.execute(f"SET temp_directory = '{spill}'")
        connection.execute("SET threads = 2")
        connection.execute(
            f"COPY (SELECT * FROM read_parquet('{source}') ORDER BY id)"
            f" TO '{target}' (FORMAT parquet, COMPRESSION uncompressed, ROW_GROUP_SIZE 20480)"
        )
        count, checksum = _one_row(
            connection,
            "SELECT count(*), sum(id * file_row_number)"
            f" FROM read_parquet('{target}', file_row_number = true)",
        )
        groups, notes = _one_row(
            connection,
            "SELECT count(*), count(DISTINCT first) FROM (SELECT min(note) AS first"
            f" FROM read_parquet('{target}') GROUP BY id % {CUSTOMERS})",
        )
    return {"rows": count, "checksum": checksum, "groups": groups, "distinct_first_notes": notes}


def expected(rows: int) -> dict[str, int]:
    """The right answer, by arithmetic alone."""
    squares = (rows - 1) * rows * (2 * rows - 1) // 6
    groups = min(rows, CUSTOMERS)
    return {"rows": rows, "checksum": squares, "groups": groups, "distinct_first_notes": groups}


def _one_row(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[int, int]:
    row = connection.execute(query).fetchone()
    if row is None:
        raise RuntimeError(f"no row came back from: {query}")
    return int(row[0]), int(row[1])


def main() -> int:
    """Exit code 1 when the answer is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=("generate", "work"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--memory-limit", type=int, metavar="BYTES", default=512 << 20)
    args = parser.parse_args()
    if args.step == "generate":
        generate(args.directory, args.rows)
        return 0
    answer = work(args.directory, args.memory_limit)
    print(json.dumps(answer), flush=True)
    return 0 if answer == expected(args.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
