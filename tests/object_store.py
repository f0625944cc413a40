"""An object store: S3's protocol, spoken by moto's server in this process."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def object_store() -> Iterator[str]:
    """A URI of a folder in a bucket, with all that pyarrow needs to reach it."""
    boto3, moto = pytest.importorskip("boto3"), pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        client = boto3.client(
            "s3",
            endpoint_url=f"http://{host}:{port}",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket="bucket")
        yield f"s3://key:secret@bucket/batches?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    finally:
        server.stop()
