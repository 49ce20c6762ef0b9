"""What an object store's responses mean."""

from __future__ import annotations

import re

from holdfast.errors import (
    AccessDenied,
    ConfigurationError,
    DamagedData,
    HoldfastError,
    ObjectExists,
    ObjectNotFound,
    StorageError,
    StorageFull,
    StorageUnavailable,
)

_RANGE_BEYOND_END = 416
_TOO_MANY_REQUESTS = 429
_STATUS = re.compile(r"status code: (\d{3})")
# obstore keeps the kind of error for single objects only; for listings and bulk deletes the text is all there is.
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|The specified bucket does not exist")
_DENIED = re.compile(r"AccessDenied|ExpiredToken|InvalidAccessKeyId|SignatureDoesNotMatch")
_METADATA = re.compile(r"169\.254\.169\.254|metadata\.google\.internal")  # asked for credentials as the last resort
_FULL = re.compile(r"QuotaExceeded|InsufficientStorage|InsufficientCapacity")
_CONFLICT = "ConditionalRequestConflict"  # S3: two writers met and neither may have won yet


def translated(error: Exception, url: str, name: str) -> HoldfastError:
    """The error to raise instead of ``error``, which obstore raised while it worked on ``name``."""
    text = str(error).partition("\n\nDebug source")[0]  # without its dump of the request
    kind = type(error).__name__
    found = _STATUS.search(text)
    status = int(found.group(1)) if found else 0  # 0: no answer
    what = f"{url}: {name}"
    if _NO_BUCKET.search(text):
        return ConfigurationError(f"{what}: the bucket does not exist; create it or correct the URL")
    if isinstance(error, FileNotFoundError):
        return ObjectNotFound(f"{what}: no such object")
    if status == _RANGE_BEYOND_END:
        return DamagedData(name, f"ends before the requested bytes: it is truncated ({url})")
    if kind == "AlreadyExistsError" and _CONFLICT not in text:
        return ObjectExists(f"{what}: already exists")
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or status in (401, 403) or _DENIED.search(text):
        return AccessDenied(f"{what}: access denied; check the credentials and the bucket's policy ({text})")
    if _FULL.search(text):
        return StorageFull(f"{what}: the store has no room left ({text})")
    if "builder error" in text:
        return ConfigurationError(f"{what}: the endpoint is not usable; for plain http:// set the option allow_http")
    if _METADATA.search(text) and status < 500:
        return AccessDenied(f"{what}: no credentials found; pass them as options or in the environment ({text})")
    if status in (0, _TOO_MANY_REQUESTS) or status >= 500 or _CONFLICT in text:
        return StorageUnavailable(f"{what}: the store did not respond as expected; retrying may help ({text})")
    return StorageError(f"{what}: the store refused ({text})")
