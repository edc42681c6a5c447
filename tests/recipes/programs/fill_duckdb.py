"""Sorts more than twice the budget with DuckDB, which has to spill to DIRECTORY (argument 2)."""

import os
import sys

import duckdb

memory_limit, directory, rows, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
database = duckdb.connect(config={"temp_directory": directory, "preserve_insertion_order": "false"})
database.execute(f"SET memory_limit = '{memory_limit}B'; SET threads = {threads}")
limit = database.execute("SELECT current_setting('memory_limit')").fetchone()
query = """
    SELECT count(*), sum(place % 7) FROM (
        SELECT row_number() OVER (ORDER BY md5(i::VARCHAR), i) AS place FROM range(?) AS numbers(i)
    )
"""
print("filled:", limit, database.execute(query, [rows]).fetchone(), os.environ["OOMPROOF_BUDGET_BYTES"])
