"""Addresses of assets that represent a topic: ``duewheel://CONNECTION/TOPIC``.

Airflow calls these functions by the names that the provider info gives, when it meets such an address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from airflow.providers.common.compat.openlineage.facet import Dataset
    from airflow.sdk import Asset

SCHEME = "duewheel"


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Check the address of an asset.

    Args:
        uri: the address in its parts.

    Raises:
        ValueError: the address names no connection, or not exactly one topic. Airflow expects this class.

    Example:
        >>> sanitize_uri(urlsplit("duewheel://duewheel_default/order-timeout")).path
        '/order-timeout'
    """
    topic = uri.path.strip("/")
    if not uri.netloc or not topic or "/" in topic:
        raise ValueError(
            f"{uri.geturl()!r} is not the address of a topic: write duewheel://CONNECTION/TOPIC, such as "
            "duewheel://duewheel_default/order-timeout"
        )
    return uri._replace(path=f"/{topic}")


def convert_asset_to_openlineage(asset: Asset, lineage_context: object) -> Dataset:  # noqa: ARG001 - Airflow's
    """The OpenLineage dataset of an asset: the connection and its topic."""
    from airflow.providers.common.compat.openlineage.facet import Dataset

    parts = urlsplit(asset.uri)
    return Dataset(namespace=f"{SCHEME}://{parts.netloc}", name=parts.path.strip("/"))
