{{- /*
Refuses to handle all namespaces beside another release that handles some: two operators would each
restart members, and with two versions undo each other's changes for ever. By what Helm itself wrote
at the bindings of that release. `helm template`, which asks no cluster, finds none.
*/}}
{{- define "brokerd-operator.refuseOverlap" -}}
{{- if include "brokerd-operator.isClusterWide" . }}
{{- $root := . }}
{{- range $kind := list "ClusterRoleBinding" "RoleBinding" }}
{{- range $found := (lookup "rbac.authorization.k8s.io/v1" $kind "" "").items }}
{{- $labels := default dict $found.metadata.labels }}
{{- $annotations := default dict $found.metadata.annotations }}
{{- $release := get $annotations "meta.helm.sh/release-name" }}
{{- $namespace := get $annotations "meta.helm.sh/release-namespace" }}
{{- $isOurs := and (eq $release $root.Release.Name) (eq $namespace $root.Release.Namespace) }}
{{- if and (eq (get $labels "app.kubernetes.io/name") "brokerd-operator") $release (not $isOurs) }}
{{- fail (printf "watchNamespaces is *, and the release %s in namespace %s handles namespaces of this cluster already (%s %s): two operators of one BrokerCluster work against each other. Uninstall that release, or name namespaces here that it does not watch" $release $namespace $kind $found.metadata.name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
