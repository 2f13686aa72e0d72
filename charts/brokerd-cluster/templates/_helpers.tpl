{{- define "brokerd-cluster.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "brokerd-cluster.labels" -}}
app.kubernetes.io/name: brokerd-cluster
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "brokerd-cluster.metadata" -}}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "brokerd-cluster.labels" . | nindent 2 }}
{{- with .Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
