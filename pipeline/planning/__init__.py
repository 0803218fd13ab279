"""Planning: which utterances, in which batches, in which order, on which rank; pure functions over columns.

columns -> filters -> logical shard of each rank -> batches of each rank -> K steps -> this rank's plan
corpus.py              rotation.py, partition.py    bucket.py, cut.py        steps.py   order.py, plan.py

windows.py             an epoch in parts that each read a few tars only; each is batched and ordered as an epoch is
"""
