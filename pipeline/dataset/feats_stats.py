"""feats_stats.npz: sums over all frames of a corpus as ESPnet has them, and what they are of.

    count.npy, sum.npy, sum_square.npy     float64: one number, [D], [D]
    comment of the zip                     the dataset's digest, the settings of the features, and a digest of both

ESPnet's readers take the three arrays, and `aggregate_stats_dirs` adds up all arrays that there are: so what is no sum
is no array here. A file that is added up, or saved again, has lost its comment, and says no more what it is of.
"""

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .digest import digest_bytes

SUMS = ("count", "sum", "sum_square")

_FEATURES = ("features", "feature_options", "features_digest", "sample_rate")
"""Of the settings of statistics, those that decide features."""

_ZIP = b"PK"


@dataclass(frozen=True)
class MadeOf:
    """What sums are of."""

    dataset_digest: str
    features: Mapping[str, Any]
    """Those settings of the statistics that decide features (`StatsSettings`)."""


def encode_sums(count: int, total: NDArray[np.float64], squares: NDArray[np.float64], made_of: MadeOf) -> bytes:
    """Return the bytes of the file; equal ones for equal arguments."""
    sink = io.BytesIO()
    np.savez(sink, count=np.float64(count), sum=total, sum_square=squares)
    with zipfile.ZipFile(sink, "a") as archive:
        archive.comment = _encode(made_of)
    return sink.getvalue()


def decode_sums(data: bytes) -> tuple[dict[str, Any], MadeOf | None]:
    """Return the arrays of a file, and what they are of if it says that.

    Raises:
        DataError: It is none, or is damaged; a reason, to which the caller adds whose it is.
    """
    if not data.startswith(_ZIP):
        raise DataError("not an .npz file of statistics")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            comment = archive.comment
    except (
        OSError, ValueError, EOFError, AttributeError,
        zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError,
    ) as error:  # fmt: skip
        # The last two are of a zip whose damage reads as encryption, or as a method of compression.
        raise DataError(f"damaged ({error})") from error
    return arrays, _decode(comment) if comment else None


def features_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those settings of statistics that decide features.

    Example:
        >>> features_of({"features": "fbank", "sample_rate": 8000, "tokenizer": "bpe.model"})
        {'features': 'fbank', 'sample_rate': 8000}
    """
    return {name: settings[name] for name in _FEATURES if name in settings}


def _encode(made_of: MadeOf) -> bytes:
    body = {"dataset_digest": made_of.dataset_digest, "features": dict(made_of.features)}
    text = json.dumps(body, sort_keys=True)
    return f"{digest_bytes(text.encode())} {text}".encode()


def _decode(comment: bytes) -> MadeOf:
    digest, _, text = comment.partition(b" ")
    if digest.decode(errors="replace") != digest_bytes(text):
        raise DataError("damaged (what it says that it is of does not give the digest there)")
    body = json.loads(text)
    return MadeOf(body["dataset_digest"], body["features"])
