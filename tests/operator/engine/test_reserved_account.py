"""The operator's own account is nobody's resource: refused, let go, never deleted; and passwords
count when it is said what is identical (ADR 21).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from brokerd_operator import conditions
from brokerd_operator.engine.keys import Key
from brokerd_operator.reconcile import plan, reserved
from brokerd_operator.reconcile.actions import Conflict, Plan, SetOwner, Upsert
from brokerd_operator.specs.model import Identity

from brokerd.rpc.v1 import admin_pb2
from tests.operator.engine import test_engine
from tests.operator.engine.test_engine import Bench
from tests.operator.fake_broker import USER
from tests.operator.reconcile import test_plan
from tests.operator.reconcile.test_plan import CONTEXT, holding, made, token

pytestmark = pytest.mark.timeout(240)

bench = test_engine.bench
ADMIN = Identity("user", "", USER)
RIGHTS = Identity("permission", "/", USER)
ALL = {"configure": ".*", "write": ".*", "read": ".*"}
OURS = replace(CONTEXT, account="thing")


# ---- the planner --------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["IfIdentical", "Always", "Never"])
@pytest.mark.parametrize("is_there", [True, False])
def test_user_of_the_operators_name_is_refused_whatever_it_asks_for(
    policy: str, is_there: bool
) -> None:
    item = made("User", adoptionPolicy=policy)
    observed = holding(item, token(item)) if is_there else holding(made("Queue"), None)
    for context in (OURS, replace(OURS, may_take_over=True), replace(OURS, is_paused=True)):
        found = plan.plan(item, observed, context)
        assert isinstance(found, Conflict)
        assert found.reason == "Reserved"
        assert "user thing" in found.message
        assert conditions.REASONS[found.reason].is_stalled
    assert isinstance(plan.plan(item, observed, replace(OURS, account="other")), Plan | Conflict)


def test_user_that_gives_up_the_name_lets_go_of_the_account() -> None:
    before = made("User")
    after = made("User", name="other")
    observed = holding(before, token(before))
    found = plan.plan(after, observed, OURS)
    assert isinstance(found, Plan)
    assert [type(action) for action in found.actions] == [Upsert, SetOwner]
    assert found.actions[1].identity == before.objects[0].identity


@pytest.mark.parametrize(
    ("vhost", "is_there", "is_ours", "is_refused"),
    [
        # Those that the first start gives.
        ("/", False, False, True),
        ("/", True, False, True),
        ("/", True, True, True),
        # More may be given by a resource, which may take away what it gave, and nothing else.
        ("team", False, False, False),
        ("team", True, True, False),
        ("team", True, False, True),
    ],
)
def test_rights_of_the_account_are_not_taken_away(
    vhost: str, is_there: bool, is_ours: bool, is_refused: bool
) -> None:
    item = made("Permission", user="thing", vhost=vhost, adoptionPolicy="Always")
    observed = holding(item, token(item) if is_ours else None, **ALL)
    if not is_there:
        observed = holding(made("Queue"), None)
    found = plan.plan(item, observed, OURS)
    assert isinstance(found, Conflict) == is_refused
    if isinstance(found, Conflict):
        assert found.reason == "Reserved"


def test_without_an_account_nothing_is_reserved() -> None:
    assert not reserved.is_reserved(Identity("user", "", ""), "")
    assert not reserved.is_right_of(Identity("permission", "/", ""), "")


@pytest.mark.parametrize("policy", ["IfIdentical", "Always"])
def test_user_of_nobodys_with_another_password_is_not_identical(policy: str) -> None:
    item = made("User", adoptionPolicy=policy)
    observed = holding(item, None)
    found = plan.plan(item, observed, CONTEXT)
    if policy == "Always":
        (action,) = test_plan.actions(found)
        assert isinstance(action, Upsert)
        return
    assert isinstance(found, Conflict)
    assert found.reason == "ExistsDifferently"
    assert "password" in found.message
    (wanted,) = item.objects
    present = observed.get(wanted.identity)
    assert present is not None
    known = plan.Written(plan.full_digest(wanted), present.hash)
    same = replace(CONTEXT, written={wanted.identity: known})
    (action,) = test_plan.actions(plan.plan(item, observed, same))
    assert isinstance(action, SetOwner), "adopted, and nothing written"


# ---- the engine ---------------------------------------------------------------------------------


def owned(name: str, kind: str = "User") -> Any:
    return admin_pb2.Owner(
        managed_by="brokerd",
        resource=f"{kind}/default/{name}",
        uid="earlier",
        deletion_policy="Delete",
    )


def put_account(bench: Bench, owner: Any = None) -> dict[str, Any]:
    spec = {"tags": ["administrator"], "limits": {}, "password": "kept"}
    bench.broker.put(ADMIN, spec, owner)
    return spec


async def test_user_named_as_the_operators_account_is_stalled_and_nothing_is_written(
    bench: Bench,
) -> None:
    spec = put_account(bench)
    bench.add("User", "admin", adoptionPolicy="Always")
    await bench.until_reason("User", "admin", "Reserved")
    bench.add("User", "boss", name=USER)
    await bench.until_reason("User", "boss", "NameConflict")
    bench.add("Permission", "less", user=USER, adoptionPolicy="Always", read="^$")
    await bench.until_reason("Permission", "less", "Reserved")
    assert bench.broker.objects[ADMIN] == spec
    assert not bench.broker.owners
    key = Key("Secret", "default", "admin-credentials")
    assert bench.store.get(key) is None
    assert await bench.store.secret("default", "admin-credentials") is None


async def test_what_an_earlier_release_took_over_is_given_back_and_outlives_its_resource(
    bench: Bench,
) -> None:
    spec = put_account(bench, owned("admin"))
    bench.broker.put(RIGHTS, dict(ALL), owned("web", "Permission"))
    bench.add("User", "admin")
    bench.add("Permission", "web", user=USER)
    await bench.until_reason("User", "admin", "Reserved")
    await bench.until_reason("Permission", "web", "Reserved")
    await bench.until("given back", lambda: not bench.broker.owners)
    for kind, name in (("User", "admin"), ("Permission", "web")):
        bench.store.delete(Key(kind, "default", name))
        await bench.until_gone(kind, name)
    assert bench.broker.objects[ADMIN] == spec
    assert bench.broker.objects[RIGHTS] == ALL


async def test_deletion_of_a_user_that_still_owns_the_account_leaves_it(bench: Bench) -> None:
    """The operator starts when the resource is on its way out already."""
    bench.add("User", "admin")
    await bench.until_reason("User", "admin", "Reserved")
    spec = put_account(bench, owned("admin"))
    bench.store.delete(Key("User", "default", "admin"))
    await bench.until_gone("User", "admin")
    assert bench.broker.objects[ADMIN] == spec


async def test_sweep_lets_go_of_the_account(bench: Bench) -> None:
    spec = put_account(bench, owned("gone"))
    other = Identity("user", "", "web")
    bench.broker.put(other, {"tags": [], "limits": {}}, owned("gone-too"))
    bench.engine.is_synced.set()
    await bench.until("swept", lambda: other not in bench.broker.objects)
    await bench.until("let go", lambda: ADMIN not in bench.broker.owners)
    assert bench.broker.objects[ADMIN] == spec


async def test_user_of_nobodys_is_adopted_with_its_own_password_only(bench: Bench) -> None:
    web = Identity("user", "", "web")
    spec = {"tags": [], "limits": {}, "password": "theirs"}
    bench.broker.put(web, dict(spec))
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "web"},
        "stringData": {"username": "web", "password": "ours"},
    }
    bench.apply(secret)
    bench.add("User", "web", credentialsSecretRef={"name": "web"})
    await bench.until_reason("User", "web", "ExistsDifferently")
    assert bench.broker.objects[web] == spec
    writes = bench.broker.writes
    bench.apply({**secret, "stringData": {"username": "web", "password": "theirs"}})
    await bench.until_reason("User", "web", "Applied")
    assert bench.broker.objects[web] == spec
    assert bench.broker.writes == writes + 1, "the owner only"
    assert bench.broker.owners[web].resource == "User/default/web"
