"""Where a pack job writes: a local folder, or a place in a store.

base.py       what a job asks of a target
local.py      a folder: temporary names, renames, flock
remote.py     a place in a store: objects that are visible when complete, a lock object
store_lock.py the lock object
upload.py     a file on its way into a store, in parts
attempts.py   asking a store again, with limits
stores.py     the choice of how a store is asked
objects.py    what it is asked
s3.py         the requests to S3
generic.py    the same with what all of fsspec's file systems have
opening.py    the choice by address
"""
