"""Program: Airflow's API server with the auth manager of the FAB provider, called as each of its users.

python tests/plugin/fab_calls.py QUESTION_FILE ANSWER_FILE

It makes the roles and users it is told of by FAB's own means, logs each user in by password, and makes every
call as each user and as nobody. It lives in a process of its own because a process has one auth manager, and
because FAB's libraries warn of things that are errors in tests here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from airflow import settings
from airflow.api_fastapi.app import create_app, get_auth_manager
from airflow.providers.fab.auth_manager.models.db import FABDBManager
from starlette.testclient import TestClient

PASSWORD = "a real one"


def main(asked: dict[str, Any]) -> dict[str, Any]:
    """Make the users, log them in and make the calls."""
    with settings.Session() as session:
        FABDBManager(session).initdb()
    app = create_app(apps="core")
    make_users(asked["roles"])
    answers: dict[str, Any] = {}
    with TestClient(app) as client:
        for role in asked["roles"]:
            said = client.post("/auth/token", json={"username": role, "password": PASSWORD})
            token = said.json()["access_token"]
            answers[role] = call_all(client, asked["calls"][role], {"Authorization": f"Bearer {token}"})
        client.cookies.clear()
        answers["nobody"] = call_all(client, asked["calls"]["nobody"], {})
        refused = client.post("/auth/token", json={"username": "Admin", "password": "a wrong one"})
        answers["wrong password"] = refused.status_code
    return answers


def make_users(roles: dict[str, list[tuple[str, str]] | None]) -> None:
    """A user for each role, of the same name; a role without permissions of its own is one of FAB's."""
    manager = get_auth_manager()
    with manager.flask_app.app_context():
        security = manager.security_manager
        for name, permissions in roles.items():
            role = security.find_role(name) if permissions is None else security.add_role(name)
            for action, resource in permissions or []:
                security.add_permission_to_role(role, security.create_permission(action, resource))
            security.add_user(name, name, name, f"{name}@example.org", role, PASSWORD)


def call_all(
    client: TestClient, calls: list[tuple[str, str, Any]], headers: dict[str, str]
) -> list[tuple[int, str]]:
    """The status and the text of each answer."""
    answers = []
    for method, path, body in calls:
        said = client.request(method, path, json=body, headers=headers)
        answers.append((said.status_code, said.text))
    return answers


if __name__ == "__main__":
    question_file, answer_file = map(Path, sys.argv[1:])
    answer_file.write_text(json.dumps(main(json.loads(question_file.read_text()))))
