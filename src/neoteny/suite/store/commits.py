"""commit: the results of a stack, written where several machines meet.

The description comes first, then the table, whose presence makes the part count. Both are created, never replaced,
so a process that comes too late finds its place taken.
"""

from __future__ import annotations

import time

from neoteny.suite.store.errors import StoreError, TakenOver
from neoteny.suite.store.leases import Lease
from neoteny.suite.store.storage import Storage


def commit(storage: Storage, lease: Lease, stack_id: str, description: bytes, table: bytes) -> None:
    """Write the results of a stack, once.

    Raises:
        TakenOver: another process holds the stack now, or has finished it.
        StoreError: it cannot be written.
    """
    json_key, table_key = f"parts/{stack_id}.json", f"parts/{stack_id}.parquet"
    lease.check()
    described, tabled = storage.exists(json_key), storage.exists(table_key)
    if described and tabled:
        raise TakenOver(f"stack {stack_id} was finished by another process")
    if described:  # of a process that ended between the two; alone it does not count
        storage.remove(json_key)
    if tabled:  # damage: it has lost its description
        _put_away(storage, table_key)
    lease.check()
    if not storage.create(json_key, description):
        raise TakenOver(f"stack {stack_id} is being finished by another process")
    if storage.create(table_key, table):
        return
    # A predecessor came back between our two files. The description is ours, so the table must be.
    if storage.read(table_key) != table:
        lease.check()
        storage.write(table_key, table)


def _put_away(storage: Storage, key: str) -> None:
    """Move a table that does not count to `damaged/`."""
    name = key.rpartition("/")[2]
    if not storage.create(f"damaged/{time.time_ns()}-{name}", storage.read(key)):
        raise StoreError(f"{storage.address}: {key} cannot be moved to damaged/.")
    storage.remove(key)
