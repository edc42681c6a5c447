"""Sorts more than the budget with Polars' streaming engine; spill files go to DIRECTORY (argument 1)."""

import os
import sys
from pathlib import Path

directory, rows = Path(sys.argv[1]), int(sys.argv[2])
os.environ["POLARS_OOC_SPILL_DIR"] = str(directory / "spill")

import polars  # noqa: E402 - it reads its variables when it is loaded

numbers = polars.LazyFrame({"seed": [0]}).select(number=polars.int_range(rows, dtype=polars.Int64))
columns = [((polars.col("number") * (2 * n + 1)) ^ 0x5DEECE66D).alias(f"c{n}") for n in range(8)]
frame = numbers.with_columns(columns).sort("c3", "number")
frame.sink_parquet(directory / "sorted.parquet", engine="streaming", compression="uncompressed")
print("filled:", polars.scan_parquet(directory / "sorted.parquet").select(polars.len()).collect().item())
