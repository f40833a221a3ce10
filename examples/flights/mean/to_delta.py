"""Write the flights as they are now as the next version of a Delta table."""

import pyarrow.parquet as pq
from deltalake import write_deltalake

write_deltalake("flights.delta", pq.read_table("data/flights.parquet"), mode="overwrite")
