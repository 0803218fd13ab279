"""A place in a store (implements Target): objects are visible when they are complete."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, cast

from uttershard.pipeline.dataset.digest import FileDigest
from uttershard.pipeline.errors import DataError, StorageError
from uttershard.pipeline.remote.faults import MissingError, redact
from uttershard.pipeline.remote.retry import Limits
from uttershard.pipeline.remote.store import Store

from ..progress import Progress
from ..store_file import StoreFile
from .attempts import Asking
from .base import JOB_FOLDER, PROBED_FOLDER, Stored, TakenError, Traffic
from .limits import WriteLimits
from .objects import ABSENT, ConditionError, GoneUploadError, PartsObjects, UnsupportedError, UploadId
from .store_lock import StoreLock, hold_store_lock
from .stores import open_objects
from .upload import open_upload

_LOCK_NAME = f"{JOB_FOLDER}/lock"
_STATE_NAME = f"{JOB_FOLDER}/job.json"
_READ_BYTES = 8 << 20


class RemoteTarget:
    """The files of a dataset in a store.

    Args:
        address: Of the dataset's folder.
        options: Keyword arguments of the fsspec file system; never shown.
        limits: How long the store may take.
    """

    def __init__(self, address: str, options: Mapping[str, Any], limits: WriteLimits) -> None:
        self.address = address.rstrip("/")
        self._store = Store(options, Limits(limits.write_timeout, limits.write_deadline))
        self._objects = open_objects(self.address, options)
        self._asking = Asking(self._objects, limits)
        self._path = str(self._objects.filesystem._strip_protocol(self.address)).rstrip("/")
        self._known: dict[str, Stored] | None = None
        self._tags: dict[str, str] = {}
        self._lock: StoreLock | None = None
        self._is_conditional = True
        self._is_removed = False

    def __str__(self) -> str:
        return redact(self.address)

    @property
    def traffic(self) -> Traffic:
        """What was sent."""
        return self._asking.traffic

    def where(self, name: str) -> str:
        """Return the address of an object."""
        return f"{self}/{name}"

    @contextlib.contextmanager
    def hold(self, has_plan: Callable[[], bool], progress: Progress) -> Iterator[None]:
        """Hold the lock object; abort the uploads that killed processes have left, before and after."""
        with hold_store_lock(self, progress) as self._lock:
            self._known = None
            self._probe_conditions(progress)
            self._abort_uploads(progress)
            try:
                yield
            finally:
                self._abort_uploads(progress)
                if not self._is_removed and not has_plan():
                    self.remove_job()

    def listing(self) -> Mapping[str, Stored]:
        """List all objects, once; what this object puts and deletes is noted."""
        return self._list()

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """Open an object that is sent in parts while it is written."""
        with open_upload(self._asking, self._objects, self._full(name), self.where(name)) as upload:
            yield cast(BinaryIO, upload)
            tag, nbytes = upload.finish(), upload.tell()
        self._note(name, nbytes, tag)

    def check_held(self) -> None:
        """Look whether the lock is still ours."""
        if self._lock is not None:
            self._lock.check()

    def put(self, name: str, data: bytes, *, only_new: bool = False) -> None:
        """Put a small object."""
        self.check_held()
        if not only_new:
            tag = self._put(name, data, None)
        else:
            try:
                tag = self._put_if(name, data, ABSENT)
            except ConditionError as error:
                # The answer to an earlier attempt may have been lost: then it is ours that is there.
                if self.read(name) != data:
                    raise TakenError(f"{self.where(name)}: is there already") from error
                tag = None
        self._note(name, len(data), tag)

    def read(self, name: str) -> bytes | None:
        """Read a small object."""
        try:
            return self._store.read(f"{self.address}/{name}")
        except DataError as error:
            if isinstance(error.__cause__, MissingError):
                return None
            raise

    def open(self, name: str, stored: Stored | None) -> BinaryIO:
        """Open an object for reading ranges of it."""
        stored = stored or self._list().get(name)
        if stored is None:
            raise DataError(f"{self.where(name)}: does not exist")
        return cast(BinaryIO, StoreFile(self._store, f"{self.address}/{name}", stored.size))

    def names(self) -> list[str]:
        """Return the names of all objects but the lock."""
        return [name for name in self._list() if name != _LOCK_NAME]

    def size(self, name: str) -> int | None:
        """Return what the listing says."""
        stored = self._list().get(name)
        return None if stored is None else stored.size

    def delete(self, name: str) -> None:
        """Remove an object."""
        path = self._full(name)
        self._asking.ask(f"{self.where(name)}: deleting", lambda seconds: self._objects.delete(path, seconds))
        if self._known is not None:
            self._known.pop(name, None)

    def tag(self, name: str) -> str | None:
        """Return the ETag of what this object has put."""
        return self._tags.get(name)

    def is_intact(self, name: str, nbytes: int, digest: str, tag: str | None, stored: Stored | None) -> bool:
        """Compare the ETag; where the store has none, read and digest the object."""
        if stored is None or stored.size != nbytes:
            return False
        if tag is not None and stored.tag is not None:
            return stored.tag == tag
        found = FileDigest()
        for start in range(0, nbytes, _READ_BYTES):
            stop = min(start + _READ_BYTES, nbytes)
            found.update(memoryview(self._store.read_range(f"{self.address}/{name}", start, stop, nbytes)))
        return found.text() == digest

    def forget_job(self) -> None:
        """Remove `job.json`, then all other records but those of probed files."""
        self._remove_records(but=(_LOCK_NAME, f"{PROBED_FOLDER}/"))

    def remove_job(self) -> None:
        """Remove all records; the lock goes when it is released."""
        self._remove_records(but=(_LOCK_NAME,))
        self._is_removed = True

    def _remove_records(self, but: tuple[str, ...]) -> None:
        self.delete(_STATE_NAME)
        for name in self._list(fresh=True):
            if name.startswith(f"{JOB_FOLDER}/") and not name.startswith(but):
                self.delete(name)

    def read_lock(self) -> bytes | None:
        """Return the lock object (implements LockPlace)."""
        return self.read(_LOCK_NAME)

    def swap_lock(self, data: bytes, before: bytes | None) -> bool:
        """Put the lock object if it is still `before` (implements LockPlace)."""
        condition: str | None = ABSENT
        if before is None:
            # Looked at first, for stores that take a condition and forget it.
            if self.read(_LOCK_NAME) is not None:
                return False
        else:
            try:
                condition = self._store.head(f"{self.address}/{_LOCK_NAME}").etag
            except DataError:
                return False  # it has just been removed
            if self.read(_LOCK_NAME) != before:
                return False
        try:
            self._put_if(_LOCK_NAME, data, condition)
        except ConditionError:
            return False
        return self.read(_LOCK_NAME) == data

    def delete_lock(self) -> None:
        """Remove the lock object (implements LockPlace)."""
        self.delete(_LOCK_NAME)

    def _probe_conditions(self, progress: Progress) -> None:
        """Some stores ignore conditions without a word: see whether the lock, which is there, would be put anew."""
        if self._is_conditional:
            held = self.read(_LOCK_NAME)
            try:
                self._put(_LOCK_NAME, held or b"", ABSENT)
            except ConditionError:
                return
            except UnsupportedError:
                pass
            self._is_conditional = False
        progress.note(
            f"{self}: this store has no conditional put: two jobs that start here at the same moment may both go on "
            "for a while, until one notices the other and stops"
        )

    def _abort_uploads(self, progress: Progress) -> None:
        objects = self._objects
        if not isinstance(objects, PartsObjects):
            return
        try:
            for upload in self._asking.ask(
                f"{self}: listing uploads", lambda seconds: objects.uploads(self._path, seconds)
            ):
                self._abort(objects, upload)
        except (StorageError, UnsupportedError) as error:
            # Not worth failing a job for: they are invisible, and a lifecycle rule of the bucket can remove them.
            progress.note(f"abandoned uploads could not be looked for: {error}")

    def _abort(self, objects: PartsObjects, upload: UploadId) -> None:
        with contextlib.suppress(GoneUploadError):
            self._asking.ask(f"{self}: aborting an upload", lambda seconds: objects.abort(upload, seconds))

    def _put_if(self, name: str, data: bytes, condition: str | None) -> str | None:
        """Put under a condition; looking first, where the store can't do both at once."""
        if self._is_conditional:
            try:
                return self._put(name, data, condition)
            except UnsupportedError:
                self._is_conditional = False
        if condition == ABSENT and self.read(name) is not None:
            raise ConditionError("it is there")
        return self._put(name, data, None)

    def _put(self, name: str, data: bytes, condition: str | None) -> str | None:
        path = self._full(name)
        return self._asking.ask(
            f"{self.where(name)}: writing",
            lambda seconds: self._objects.put(path, data, seconds, condition),
            nbytes=len(data),
        )

    def _list(self, *, fresh: bool = False) -> Mapping[str, Stored]:
        if self._known is None or fresh:
            folder = self._path
            found = self._asking.ask(f"{self}: listing", lambda seconds: self._objects.list(folder, seconds))
            self._known = {path.removeprefix(f"{folder}/"): stored for path, stored in found.items()}
        return dict(self._known)

    def _note(self, name: str, nbytes: int, tag: str | None) -> None:
        if tag is not None:
            self._tags[name] = tag
        if self._known is not None:
            self._known[name] = Stored(nbytes, tag)

    def _full(self, name: str) -> str:
        return f"{self._path}/{name}"
