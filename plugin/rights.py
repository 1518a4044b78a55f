"""The rights of users on the page, by Airflow's auth manager.

The page has three rights. Each is mapped to a right that every auth manager distinguishes:

- *seeing*: reading assets. Airflow's viewers hold it.
- *reading bodies*: reading the Airflow connection that names the broker. Operators hold it.
- *acting*: editing that connection. Operators hold it, too. If roles can be composed, as with the FAB
  provider, it can be granted alone.

A connection that belongs to a team is shown to that team's users only. Airflow mounts a plugin's application
without any protection, so only the dependencies below protect it. ``tests/plugin/test_rights.py`` calls every
route.
"""

from __future__ import annotations

from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import BaseAuthManager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import (
    AssetDetails,
    ConnectionDetails,
    TeamDetails,
)
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models import Connection
from fastapi import Depends, HTTPException, Request

_SAME_SITE = frozenset({"same-origin", "none"})


def may_see(user: BaseUser, connection_id: str | None) -> bool:
    """Whether a user may see the broker of a connection; None asks for the whole page."""
    manager: BaseAuthManager[BaseUser] = get_auth_manager()
    if not manager.is_authorized_asset(method="GET", details=AssetDetails(), user=user):
        return False
    team = _team_of(connection_id)
    return team is None or manager.is_authorized_team(method="GET", details=TeamDetails(team), user=user)


def may_read_bodies(user: BaseUser, connection_id: str) -> bool:
    """Whether a user may read the bodies of messages."""
    details = ConnectionDetails(conn_id=connection_id, team_name=_team_of(connection_id))
    return get_auth_manager().is_authorized_connection(method="GET", details=details, user=user)


def may_act(user: BaseUser, connection_id: str) -> bool:
    """Whether a user may recall, reschedule, redrive and so on."""
    details = ConnectionDetails(conn_id=connection_id, team_name=_team_of(connection_id))
    return get_auth_manager().is_authorized_connection(method="PUT", details=details, user=user)


def requires_seeing(request: Request, user: GetUserDep) -> BaseUser:
    """Admit users who may see; a dependency of every route that shows data.

    Raises:
        HTTPException: 401 without a login, 403 without the right.
    """
    if not may_see(user, request.path_params.get("connection_id")):
        raise HTTPException(
            403, "You may not see this: it takes the right to read assets, and the right to see its team."
        )
    return user


def requires_bodies(connection_id: str, user: Annotated[BaseUser, Depends(requires_seeing)]) -> BaseUser:
    """Admit users who may read bodies.

    Raises:
        HTTPException: 401 without a login, 403 without the right.
    """
    if not may_read_bodies(user, connection_id):
        raise HTTPException(403, "You may not read bodies: it takes the right to read this connection.")
    return user


def requires_acting(
    request: Request, connection_id: str, user: Annotated[BaseUser, Depends(requires_seeing)]
) -> BaseUser:
    """Admit users who may act, from Airflow's own pages.

    Browsers do not send the session's cookie with requests from other sites (it is SameSite=Lax, and GET
    changes nothing). As a second safeguard, a request that names another site as its origin is refused.

    Raises:
        HTTPException: 401 without a login, 403 without the right or from another site.
    """
    if request.headers.get("sec-fetch-site", "none") not in _SAME_SITE:
        raise HTTPException(403, "Another site sent this: nothing was changed.")
    if not may_act(user, connection_id):
        raise HTTPException(403, "You may not change anything: it takes the right to edit this connection.")
    return user


def _team_of(connection_id: str | None) -> str | None:
    return None if connection_id is None else Connection.get_team_name(connection_id)


Seeing = Annotated[BaseUser, Depends(requires_seeing)]
ReadingBodies = Annotated[BaseUser, Depends(requires_bodies)]
Acting = Annotated[BaseUser, Depends(requires_acting)]
