"""Objects in S3-compatible storage: list, get, put, and swap one under a condition.

The client is botocore's, which finds endpoint, region and credentials where all AWS programs do
(AWS_ENDPOINT_URL_S3, AWS_REGION, AWS_ACCESS_KEY_ID, a web identity, …).  Spark never sees a bucket:
segments come to the run's disk and tables go from it (ADR 38).  Used by `bucket_segments` and
`store`; what is in the objects is their business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 60
#: Errors of the server and of the network are tried so often, with growing pauses.
ATTEMPTS = 8
#: Names of one answer to a listing; S3 gives no more.
PAGE = 1_000
#: Objects that are on their way at once.
AT_ONCE = 8
_URL = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[^?#]*))?")


class ObjectError(Exception):
    """The storage cannot be used; the text says for what, and what it answered."""


class Conflict(Exception):
    """An object is not what it was any more."""


@dataclass(slots=True, frozen=True)
class Entry:
    """An object in a listing; its name is relative to the place's prefix."""

    name: str
    size: int


class Place:
    """A prefix of a bucket; names are relative to it."""

    def __init__(self, url: str) -> None:
        match = _URL.fullmatch(url)
        if match is None:
            raise ObjectError(f"'{url}' is no address of objects; write s3://BUCKET/PREFIX")
        self.bucket = match["bucket"]
        prefix = (match["prefix"] or "").strip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self.url = f"s3://{self.bucket}/{prefix}".rstrip("/")

    @cached_property
    def _session(self) -> Any:
        # Imported where it is used: it takes half a second, and most runs need none of it.
        from botocore.session import get_session

        return get_session()

    @cached_property
    def _client(self) -> Any:
        from botocore.config import Config

        # Path style: the bucket's name in a host name needs DNS of its own where it is not AWS.
        config = Config(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            max_pool_connections=AT_ONCE,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        with self._reported("prepare"):
            region = self._session.get_config_variable("region") or "us-east-1"
            return self._session.create_client("s3", region_name=region, config=config)

    def storage_options(self) -> dict[str, str]:
        """Return the options with which Rust's object_store reaches the same place (delta.py)."""
        with self._reported("find credentials"):
            found = self._session.get_credentials()
            keys = None if found is None else found.get_frozen_credentials()
        options = {
            "AWS_REGION": self._client.meta.region_name,
            "AWS_ENDPOINT_URL": self._client.meta.endpoint_url,
            "AWS_ALLOW_HTTP": "true",
        }
        if keys is None:
            return options | {"AWS_SKIP_SIGNATURE": "true"}
        options |= {"AWS_ACCESS_KEY_ID": keys.access_key, "AWS_SECRET_ACCESS_KEY": keys.secret_key}
        return options | ({"AWS_SESSION_TOKEN": keys.token} if keys.token else {})

    @contextmanager
    def _reported(self, doing: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise ObjectError(f"cannot {doing} in {self.url}: {error}") from error

    def entries(self, prefix: str, after: str = "") -> Iterator[Entry]:
        """List the objects below a prefix in order, those after a name; one request per 1,000."""
        for page in self._pages(Prefix=self._prefix + prefix, StartAfter=self._prefix + after):
            for item in page.get("Contents", ()):
                yield Entry(item["Key"][len(self._prefix) :], item["Size"])

    def folders(self, prefix: str) -> list[str]:
        """List the names below a prefix up to the next slash."""
        found: list[str] = []
        for page in self._pages(Prefix=self._prefix + prefix, Delimiter="/"):
            for item in page.get("CommonPrefixes", ()):
                found.append(item["Prefix"][len(self._prefix) + len(prefix) :].rstrip("/"))
        return found

    def _pages(self, **what: str) -> Iterator[dict[str, Any]]:
        asked: dict[str, Any] = {"Bucket": self.bucket, "MaxKeys": PAGE}
        asked |= {name: value for name, value in what.items() if value}
        while True:
            with self._reported("list objects"):
                page: dict[str, Any] = self._client.list_objects_v2(**asked)
            yield page
            if not page.get("IsTruncated"):
                return
            asked["ContinuationToken"] = page["NextContinuationToken"]

    def get(self, name: str, size_max: int | None = None) -> tuple[bytes, str] | None:
        """Return an object and its version (ETag); None if there is none."""
        from botocore.exceptions import ClientError

        with self._reported(f"get '{name}'"):
            try:
                answer = self._client.get_object(Bucket=self.bucket, Key=self._prefix + name)
            except ClientError as error:
                if _code(error) in ("NoSuchKey", "404"):
                    return None
                raise
            if size_max is not None and answer["ContentLength"] > size_max:
                raise ObjectError(f"'{name}' in {self.url} has more than {size_max} octets")
            return answer["Body"].read(), answer["ETag"]

    def put(self, name: str, data: bytes) -> None:
        """Write an object whose content is always the same under this name."""
        with self._reported(f"put '{name}'"):
            self._client.put_object(Bucket=self.bucket, Key=self._prefix + name, Body=data)

    def swap(self, name: str, data: bytes, before: str | None) -> None:
        """Write an object if its version is still this one (None: if there is none); Conflict."""
        from botocore.exceptions import ClientError

        condition = {"IfNoneMatch": "*"} if before is None else {"IfMatch": before}
        with self._reported(f"put '{name}'"):
            try:
                self._client.put_object(
                    Bucket=self.bucket, Key=self._prefix + name, Body=data, **condition
                )
            except ClientError as error:
                if _code(error) in ("PreconditionFailed", "ConditionalRequestConflict", "412"):
                    raise Conflict(name) from error
                raise

    def delete(self, names: Collection[str]) -> None:
        """Delete objects; one that is not there is fine."""
        with self._reported("delete objects"):
            for name in names:
                self._client.delete_object(Bucket=self.bucket, Key=self._prefix + name)


def together(work: Callable[[T], None], items: Collection[T]) -> None:
    """Do the same with several objects at once; the first error ends it."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(work, item) for item in items]:
            done.result()


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
