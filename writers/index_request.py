"""What a call of `index` is about: which tars, whose they are, where the result goes, and what is known already."""

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uttershard.pipeline.dataset.digest import digest_of_digests
from uttershard.pipeline.dataset.files import StorageOptions, join, local_path, read_bytes
from uttershard.pipeline.dataset.manifest import MANIFEST_NAME, Manifest, decode_manifest
from uttershard.pipeline.dataset.sidecar import FOREIGN, FORMAT_VERSION, decode_sidecar, metadata_columns
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.pipeline.reading.spans import TEXT_COLUMN

from .adopt import AdoptRules, is_ours
from .patterns import expand, has_pattern
from .tar_input import open_tar
from .targets.opening import refuse_empty

_REMOTE_SIDECARS = 8


@dataclass(frozen=True)
class Asked:
    """How another tool's tars are to be taken, as far as the caller says; what is None is found out."""

    naming: str | None = None
    manifests: str | None = None
    checksums: bool | None = None
    unique_ids: bool = False


@dataclass(frozen=True)
class Known:
    """What a manifest, or a sidecar that is still there, says of tars of ours."""

    columns: dict[str, str]
    fingerprint: str | None
    """None: of each tar itself."""
    identity: dict[str, Any] | None = None
    """The manifest's fingerprint, whole."""


@dataclass(frozen=True)
class IndexRequest:
    """What is to be done."""

    tars: tuple[str, ...]
    """Addresses, absolute."""
    sidecars: tuple[str, ...]
    """Name of each one's sidecar."""
    target: str
    """Address of the folder for sidecars and manifest."""
    columns: tuple[str, ...]
    """Metadata fields that become columns, where their types are not known."""
    rules: AdoptRules | None = None
    """How another tool's tars are taken; None for ours."""
    known: Known | None = None
    """Of tars of ours."""
    digests: tuple[str | None, ...] = ()
    """Of each tar, as the manifest has it; None where it says nothing."""

    def listed(self, number: int) -> str:
        """Return how the manifest lists a tar: by its name if it is in the folder of the manifest."""
        address = self.tars[number]
        if _folder_of(_resolved(address)) == _resolved(self.target):
            return posixpath.basename(address)
        return _resolved(address)


def read_request(
    tars: Sequence[str], out: str | None, columns: Sequence[str], asked: Asked, options: StorageOptions | None
) -> IndexRequest:
    """Look at what is there, without reading any tar but the head of one.

    Raises:
        ConfigError: No tars, no place for the result, or what is asked contradicts what is there.
        DataError: A tar is missing, or a manifest is damaged.
    """
    home, addresses = _find_tars(tars, options)
    if out is None and home is None:
        raise ConfigError("the tars are in several folders: say with out= where sidecars and manifest go")
    if out is not None:
        refuse_empty(out)
    target = _absolute(out if out is not None else str(home)).rstrip("/")
    manifest = None if home is None else _read_manifest(home, options)
    listed = _addresses_in(home, manifest)
    if manifest is not None and not listed.keys() & {_resolved(address) for address in addresses}:
        manifest, listed = None, {}
    _check_target(target, addresses, options)
    digests = tuple(listed.get(_resolved(address)) for address in addresses)
    rules = _rules(addresses, manifest, asked, is_folder=len(tars) == 1 and home == tars[0], options=options)
    if rules is not None:
        before = manifest.columns if manifest is not None and manifest.fingerprint.get("naming") == FOREIGN else {}
        names = tuple(columns) or tuple(name for name in before if name != TEXT_COLUMN)
        return IndexRequest(addresses, _sidecar_names(addresses), target, names, rules)
    sidecars = tuple(f"{_stem(address)}.parquet" for address in addresses)
    _refuse_equal(addresses, sidecars)
    known = _known_of(manifest) if manifest is not None else _read_sidecars(addresses, options)
    if known is not None and columns and list(columns) != list(known.columns):
        raise ConfigError(f"columns: the sidecars have {', '.join(known.columns) or 'none'}; leave them out")
    return IndexRequest(addresses, sidecars, target, tuple(columns), None, known, digests)


def identity_of_tars(digests: Sequence[str], fingerprint: str | None = None) -> dict[str, Any]:
    """Return the fingerprint of shards of ours whose manifest is lost."""
    return {
        "format_version": FORMAT_VERSION,
        "adopted": True,
        "digest": fingerprint or digest_of_digests(digests),
    }


def _find_tars(tars: Sequence[str], options: StorageOptions | None) -> tuple[str | None, tuple[str, ...]]:
    """Return the folder that was given, or the one that all tars are in, and the addresses of the tars."""
    if len(tars) == 1 and _is_folder(tars[0]):
        folder = tars[0]
        manifest = _read_manifest(folder, options)
        if manifest is not None:
            found = [join(_absolute(folder), shard.tar) for shard in manifest.shards]
        elif local_path(folder) is None:
            found = expand([f"{folder.rstrip('/')}/*.tar"])
        else:
            found = [str(path) for path in sorted(Path(_absolute(folder)).glob("*.tar"))]
        home: str | None = folder
    else:
        found = [_absolute(address) for address in expand(list(tars))] if tars else []
        folders = {_folder_of(address) for address in found}
        home = folders.pop() if len(folders) == 1 else None
    if not found:
        raise ConfigError(f"no tars in {', '.join(tars) or 'an empty list'}")
    missing = [address for address in found if (path := local_path(address)) is not None and not Path(path).is_file()]
    if missing:
        raise DataError(f"{missing[0]}: no such file ({len(missing)} of {len(found)} tars are missing)")
    return home, tuple(found)


def _rules(
    tars: Sequence[str], manifest: Manifest | None, asked: Asked, *, is_folder: bool, options: StorageOptions | None
) -> AdoptRules | None:
    """Return how another tool's tars are taken, None if they are ours."""
    identity = {} if manifest is None else manifest.fingerprint
    if manifest is not None and identity.get("naming") != FOREIGN and (is_folder or asked == Asked()):
        return None
    if asked == Asked() and identity.get("naming") != FOREIGN:
        naming = _naming_of_sidecars(tars, options)
        if naming is not None and naming != FOREIGN:
            return None
        if naming is None and _are_ours(tars, options):
            return None
    before = identity.get("rules", {})
    is_remote = any(local_path(address) is None for address in tars)
    return AdoptRules(
        naming=asked.naming or before.get("naming") or ("webdataset" if asked.manifests is None else "nemo"),
        manifests=asked.manifests or before.get("manifests"),
        checksums=asked.checksums if asked.checksums is not None else before.get("checksums", not is_remote),
        unique_ids=asked.unique_ids or before.get("unique_ids", False),
    )


def _are_ours(tars: Sequence[str], options: StorageOptions | None) -> bool:
    """Say whether uttershard wrote some tars, by the first that is not empty; what holds nothing is taken as ours."""
    for address in tars:
        with open_tar(address, options, whole=False) as tar:
            ours = is_ours(tar)
        if ours is not None:
            return ours
    return True


def _check_target(target: str, tars: Sequence[str], options: StorageOptions | None) -> None:
    """Refuse to write over the manifest of more, or other, tars."""
    listed = _addresses_in(target, _read_manifest(target, options))
    left_out = listed.keys() - {_resolved(address) for address in tars}
    if left_out:
        raise ConfigError(
            f"{target}: {MANIFEST_NAME} lists {posixpath.basename(min(left_out))} too, which the new manifest would "
            "lose: give the folder, or say with out= where another dataset of fewer tars goes"
        )


def _addresses_in(folder: str | None, manifest: Manifest | None) -> dict[str, str]:
    """Return the tars of a manifest, by address: the digest of each."""
    if folder is None or manifest is None:
        return {}
    return {_resolved(join(_absolute(folder), shard.tar)): shard.tar_digest for shard in manifest.shards}


def _read_manifest(folder: str, options: StorageOptions | None) -> Manifest | None:
    where = join(folder, MANIFEST_NAME)
    data = _read(where, options)
    return None if data is None else decode_manifest(data, where)


def _known_of(manifest: Manifest) -> Known:
    fingerprint = str(manifest.fingerprint["digest"])
    is_of_tars = fingerprint == identity_of_tars([shard.tar_digest for shard in manifest.shards])["digest"]
    return Known(manifest.columns, None if is_of_tars else fingerprint, manifest.fingerprint)


def _read_sidecars(tars: Sequence[str], options: StorageOptions | None) -> Known | None:
    """Return what the first readable sidecar beside the tars says of all of them."""
    for where in _sidecars_beside(tars):
        try:
            table, info = decode_sidecar(_read(where, options) or b"", None, where)
        except DataError:
            continue
        return Known(metadata_columns(table), None if info.fingerprint == info.tar_digest else info.fingerprint)
    return None


def _naming_of_sidecars(tars: Sequence[str], options: StorageOptions | None) -> str | None:
    """Return what the first readable sidecar beside the tars says of their naming."""
    for where in _sidecars_beside(tars):
        try:
            return decode_sidecar(_read(where, options) or b"", [], where)[1].naming
        except DataError:
            continue
    return None


def _sidecars_beside(tars: Sequence[str]) -> list[str]:
    # Of a store only some are asked for: where they are all missing, each costs a request.
    looked_at = [tar for number, tar in enumerate(tars) if number < _REMOTE_SIDECARS or local_path(tar) is not None]
    return [f"{tar.removesuffix('.tar')}.parquet" for tar in looked_at]


def _read(address: str, options: StorageOptions | None) -> bytes | None:
    try:
        return read_bytes(address, options)
    except DataError:
        return None  # it is not there


def _refuse_equal(tars: Sequence[str], sidecars: Sequence[str]) -> None:
    names: dict[str, str] = {}
    for tar, sidecar in zip(tars, sidecars, strict=True):
        other = names.setdefault(sidecar, tar)
        if other is not tar:
            raise ConfigError(f"{other} and {tar} would have the same sidecar {sidecar}: rename one")


def _sidecar_names(tars: Sequence[str]) -> tuple[str, ...]:
    stems = [_stem(tar) for tar in tars]
    if len(set(stems)) == len(stems):
        return tuple(f"{stem}.parquet" for stem in stems)
    return tuple(f"{number:06d}-{stem}.parquet" for number, stem in enumerate(stems))


def _is_folder(address: str) -> bool:
    path = local_path(address)
    if path is not None:
        return Path(path).is_dir()
    return not address.endswith(".tar") and not has_pattern(address)


def _stem(address: str) -> str:
    return posixpath.basename(address).removesuffix(".tar")


def _folder_of(address: str) -> str:
    return address.rpartition("/")[0]


def _absolute(address: str) -> str:
    path = local_path(address)
    return address if path is None else str(Path(path).absolute())


def _resolved(address: str) -> str:
    path = local_path(address)
    return address if path is None else str(Path(path).resolve())
