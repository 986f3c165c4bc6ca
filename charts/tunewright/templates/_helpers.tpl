{{- define "tunewright.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "tunewright.selector" -}}
app.kubernetes.io/name: tunewright-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tunewright.labels" -}}
{{ include "tunewright.selector" . }}
app.kubernetes.io/part-of: tunewright
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
