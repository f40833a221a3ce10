"""Somebody corrects one delay on 24 January, and three flights of 2 January become known only now."""

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq

FLIGHTS = "data/flights.parquet"

flights = pq.read_table(FLIGHTS)
delays = flights["dep_delay"].to_pylist()
delays[20_000] = 777.0
at = flights.column_names.index("dep_delay")
corrected = flights.set_column(at, "dep_delay", pa.array(delays, flights["dep_delay"].type))
rows = flights.slice(1000, 3).to_pylist()
late = [row | {"flight_id": 900_001 + n, "arr_known": datetime.now(UTC)} for n, row in enumerate(rows)]
pq.write_table(pa.concat_tables([corrected, pa.Table.from_pylist(late, schema=flights.schema)]), FLIGHTS)
