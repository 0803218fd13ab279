"""Objects of a store (S3, HTTP, whatever fsspec knows): whole or by byte range, with limits on every wait.

store.py     what others use: read an object, a range of it, its size
retry.py     deadlines, back-off, and errors that say what to do
client.py    chooses how a store is talked to: s3.py, http.py, generic.py
transfer.py  a byte range on its way: what has arrived, where to go on
faults.py    what can go wrong with one attempt
"""
