"""Every error that uttershard raises on purpose, by who has to act on it.

    UttershardError
    ├── ConfigError       (ValueError)    the settings are wrong: change the call
    │   └── ShardingError (RuntimeError)  ranks and shards do not fit together
    ├── DataError                         the data is corrupt, stale or missing: look at the file named
    └── StorageError      (OSError)       a disk or a store did not do what it was asked
        └── AccessError                   a store refuses: change credentials or rights

Each is built from one message, so that it survives pickling and torch's re-raising in the training process.
"""


class UttershardError(Exception):
    """Base of all errors raised on purpose by uttershard."""


class ConfigError(UttershardError, ValueError):
    """A setting is unknown, out of range or in conflict with another; the message names it and what to do."""


class ShardingError(ConfigError, RuntimeError):
    """Ranks, world size and logical shards do not fit together; the message names the values and what works."""


class DataError(UttershardError):
    """Data is corrupt, stale or missing; the message names shard, utterance and offset where they are known."""


class StorageError(UttershardError, OSError):
    """A file system or an object store failed; the message names the address and the operation."""


class AccessError(StorageError):
    """An object store refuses access; the message names the credentials tried and what to set. No retry changes it."""
