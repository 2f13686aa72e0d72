{{- define "brokerd-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 53 | trimSuffix "-" }}
{{- end }}

{{- define "brokerd-operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- $name := include "brokerd-operator.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "brokerd-operator.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{- define "brokerd-operator.selectorLabels" -}}
app.kubernetes.io/name: brokerd-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "brokerd-operator.labels" -}}
{{ include "brokerd-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: brokerd
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "brokerd-operator.metadata" -}}
namespace: {{ include "brokerd-operator.namespace" . }}
labels:
  {{- include "brokerd-operator.labels" . | nindent 2 }}
{{- with .Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Arguments: the root, labels by which Prometheus or Grafana finds the object. */}}
{{- define "brokerd-operator.monitoringMetadata" -}}
{{- $root := index . 0 }}
namespace: {{ include "brokerd-operator.namespace" $root }}
labels:
  {{- with index . 1 }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- include "brokerd-operator.labels" $root | nindent 2 }}
{{- with $root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "brokerd-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "brokerd-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* Arguments: the root, one of .Values.images. */}}
{{- define "brokerd-operator.image" -}}
{{- $root := index . 0 }}
{{- $image := index . 1 }}
{{- $repository := $image.repository }}
{{- with ($root.Values.global).imageRegistry }}
{{- $repository = printf "%s/%s" . $repository }}
{{- end }}
{{- if $image.digest }}
{{- printf "%s@%s" $repository $image.digest }}
{{- else }}
{{- printf "%s:%s" $repository (default $root.Chart.AppVersion $image.tag) }}
{{- end }}
{{- end }}

{{- /* What all pods of the chart have: where they may run, as whom, with whose images. */}}
{{- define "brokerd-operator.podCommon" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "brokerd-operator.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "brokerd-operator.isClusterWide" -}}
{{- if has "*" .Values.watchNamespaces }}true{{ end }}
{{- end }}

{{- /* Comma-separated: the watched namespaces, or * for all. */}}
{{- define "brokerd-operator.watched" -}}
{{- if .Values.watchNamespaces }}
{{- join "," .Values.watchNamespaces }}
{{- else }}
{{- include "brokerd-operator.namespace" . }}
{{- end }}
{{- end }}

{{- /* Comma-separated: the watched namespaces but the release's own; empty where all are watched. */}}
{{- define "brokerd-operator.foreign" -}}
{{- if not (include "brokerd-operator.isClusterWide" .) }}
{{- without (splitList "," (include "brokerd-operator.watched" .)) (include "brokerd-operator.namespace" .) | join "," }}
{{- end }}
{{- end }}

{{- /* Of what a hook runs: not those of the operator's own pods, which its Service leads to. */}}
{{- define "brokerd-operator.hookLabels" -}}
app.kubernetes.io/name: brokerd-operator-uninstall
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: brokerd
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Arguments: the root, the account, the binding, further arguments of the command. */}}
{{- define "brokerd-operator.uninstallPod" -}}
{{- $root := index . 0 }}
serviceAccountName: {{ index . 1 }}
automountServiceAccountToken: true
enableServiceLinks: false
{{- include "brokerd-operator.podCommon" $root | nindent 0 }}
containers:
- name: uninstall
  image: {{ include "brokerd-operator.image" (list $root $root.Values.images.operator) }}
  imagePullPolicy: {{ $root.Values.imagePullPolicy }}
  args:
  - uninstall-hook
  - --binding={{ index . 2 }}
  - --namespaces={{ include "brokerd-operator.foreign" $root }}
  {{- range index . 3 }}
  - {{ . }}
  {{- end }}
  resources:
    requests: {cpu: 50m, memory: 128Mi}
    limits: {memory: 256Mi}
  securityContext:
    {{- include "brokerd-operator.containerSecurity" $root | nindent 4 }}
  volumeMounts:
  - {name: tmp, mountPath: /tmp}
volumes:
- {name: tmp, emptyDir: {sizeLimit: 16Mi}}
{{- end }}

{{- /*
What the operator does in a watched namespace, and no more: tests/operator/api/test_rights_api.py compares
it with what the API server was asked for. Some verbs of pods, configmaps and services are handed on
to the telemetry job's Role: Kubernetes lets nobody grant what he does not hold. There is no pods/exec,
no wildcard, no listing of Secrets, and no way to delete a Secret or a volume claim.
*/}}
{{- define "brokerd-operator.rules" -}}
- apiGroups: [brokerd.io]
  resources: [bindings, brokerclusters, exchanges, federationupstreams, federationupstreamsets, operatorpolicies, permissions, policies, queues, shovels, topicpermissions, users, vhosts]
  verbs: [get, list, watch, patch]
# These have no finalizer.
- apiGroups: [brokerd.io]
  resources: [brokerconnections]
  verbs: [get, list, watch]
- apiGroups: [brokerd.io]
  resources: [bindings/status, brokerclusters/status, brokerconnections/status, exchanges/status, federationupstreams/status, federationupstreamsets/status, operatorpolicies/status, permissions/status, policies/status, queues/status, shovels/status, topicpermissions/status, users/status, vhosts/status]
  verbs: [patch]
# To be named as owner of what is made for them (OwnerReferencesPermissionEnforcement).
- apiGroups: [brokerd.io]
  resources: [brokerclusters/finalizers, users/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
# Templates of running pods, to see whether a change needs a restart; resizing them without one.
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [get]
- apiGroups: [""]
  resources: [pods/resize]
  verbs: [patch]
# By name only: no list and no watch (SEC-23, SEC-26).
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, create, patch, delete, deletecollection]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, create, patch, delete, deletecollection]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete, deletecollection]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, create, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create, patch, delete]
# Routes of BrokerClusters with spec.gateway; without the Gateway API's CRDs these rights are empty.
- apiGroups: [gateway.networking.k8s.io]
  resources: [tlsroutes, tcproutes]
  verbs: [get, create, patch, delete]
- apiGroups: [batch]
  resources: [cronjobs]
  verbs: [get, create, patch, delete]
- apiGroups: [cert-manager.io]
  resources: [certificates]
  verbs: [get, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, create, patch, delete]
{{- end }}

{{- /* What it does where a RoleBinding gives it these rights: in that namespace only. */}}
{{- define "brokerd-operator.namespacedRules" -}}
{{ include "brokerd-operator.rules" . }}
# Through a RoleBinding only the namespace that it lies in: whether that is going away.
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
{{- end }}
