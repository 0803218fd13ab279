"""Statistics of a dataset, measured shard by shard: features, lengths, hours of columns, tokens, silence, clipping.

settings -> shard (a task: one shard, its record and its columns) -> collect (merge in shard order, write the files)
"""
