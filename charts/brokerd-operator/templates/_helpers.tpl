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

{{- /*
What the operator does in a watched namespace. create and deletecollection of pods, configmaps and
services are rights that it hands on to the telemetry job's Role: Kubernetes lets nobody grant what
he does not hold. There is no pods/exec, no wildcard, and no way to delete a Secret or a volume claim.
*/}}
{{- define "brokerd-operator.rules" -}}
- apiGroups: [brokerd.io]
  resources: [bindings, brokerclusters, brokerconnections, exchanges, federationupstreams, federationupstreamsets, operatorpolicies, permissions, policies, queues, users, vhosts]
  verbs: [get, list, watch, patch]
- apiGroups: [brokerd.io]
  resources: [bindings/status, brokerclusters/status, brokerconnections/status, exchanges/status, federationupstreams/status, federationupstreamsets/status, operatorpolicies/status, permissions/status, policies/status, queues/status, users/status, vhosts/status]
  verbs: [patch]
- apiGroups: [brokerd.io]
  resources: [brokerclusters/finalizers, users/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, configmaps]
  verbs: [get, list, watch, create, patch, delete, deletecollection]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete, deletecollection]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [cronjobs, jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
