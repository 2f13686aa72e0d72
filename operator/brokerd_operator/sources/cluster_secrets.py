"""Secrets of a BrokerCluster in Kubernetes: what the user brings, and random values made once.

For the Kubernetes driver (kubernetes_clusters.py); certificates are in cluster_certificates.py.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping

from brokerd_operator.manifests import naming
from brokerd_operator.manifests import secrets as secret_manifests
from brokerd_operator.manifests.naming import Context
from brokerd_operator.sources.api import Api, Json, path_of
from brokerd_operator.sources.kubernetes_store import decoded
from brokerd_operator.sources.secret_reads import SecretReads


class BeingRemoved(Exception):
    """A Secret of the BrokerCluster of this name before is still there; the text is its name."""


class ClusterSecrets:
    """Reads and makes Secrets; knows nothing itself."""

    def __init__(self, api: Api, reads: SecretReads) -> None:
        self._api = api
        self._reads = reads

    async def live(self, context: Context, name: str) -> Json | None:
        """A Secret as it is."""
        return await self._reads.get(context.namespace, name, context.name)

    async def read(self, context: Context, name: str) -> Mapping[str, bytes]:
        """Return a Secret's data; empty if it is not there.

        Raises BeingRemoved: what the garbage collector is about to remove must not be built upon.
        """
        found = await self.live(context, name)
        if found is None:
            return {}
        if secret_manifests.is_predecessors(context, found):
            raise BeingRemoved(name)
        return decoded(found)

    async def missing(self, context: Context, *, is_tls_needed: bool = True) -> str:
        """Return the first Secret that the user was to bring along and that is not there."""
        tls = (context.spec.tls.secret_name, context.spec.tls.ca_secret_name)
        for reference in context.spec.references(context.meta):
            if reference.name in tls and not is_tls_needed:
                continue
            if await self.live(context, reference.name) is None:
                return reference.name
        return ""

    async def make(self, context: Context) -> None:
        """Make random values that are not there; no pass changes them."""
        for name in secret_manifests.kept_secrets(context):
            await self._keep(context, name)
        if not await self.read(context, context.admin_secret):
            manifest = secret_manifests.admin_secret(context, secrets.token_urlsafe(24))
            await self.create(manifest)
        if not await self.read(context, context.cluster_secret):
            manifest = secret_manifests.cluster_secret(context, secrets.token_urlsafe(32))
            await self.create(manifest)
        if not await self.read(context, context.keys_secret):
            key = base64.b64encode(secrets.token_bytes(32)).decode()
            await self.create(secret_manifests.keys_secret(context, key))

    async def conflict(self, context: Context) -> str:
        """Return what to do about a Secret of a name of ours that is of no use; "": there is none.

        One that somebody made with what belongs into it is used, and never written.
        """
        wanted: dict[str, tuple[str, ...]] = {
            context.cluster_secret: ("secret",),
            context.keys_secret: ("keys",),
        }
        if context.spec.admin.secret_ref is None:
            wanted[context.admin_secret] = ("password",)
        wanted[secret_manifests.ca_secret_name(context)] = ("ca.crt", "ca.key")
        for name in secret_manifests.certificate_secrets(context):
            wanted[name] = ("tls.crt", "tls.key", "ca.crt")
        for name, keys in wanted.items():
            found = await self.live(context, name)
            if found is None or decoded(found).keys() >= set(keys):
                continue
            if naming.is_foreign(context, found):
                return naming.conflict(context, "Secret", name)
        return ""

    async def _keep(self, context: Context, name: str) -> None:
        """Let a Secret that is there stay or go with the volumes."""
        found = await self.live(context, name)
        if found is None or naming.is_foreign(context, found):
            return
        patch = secret_manifests.ownership(context, found)
        if patch is not None:
            await self._api.merge(path_of("v1", "Secret", context.namespace, name), patch)

    async def create(self, manifest: Json | None) -> None:
        """Make a Secret, unless the user brings it along."""
        if manifest is not None:
            await self._api.create(manifest)
