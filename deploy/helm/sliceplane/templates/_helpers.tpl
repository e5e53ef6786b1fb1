{{- /* Names and labels that templates share.  A component is "controllers", "proxy" and so on. */ -}}

{{- define "sliceplane.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "sliceplane.name" -}}
{{- $release := .root.Release.Name -}}
{{- $prefix := ternary $release (printf "%s-sliceplane" $release) (contains "sliceplane" $release) -}}
{{ printf "%s-%s" $prefix .component | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "sliceplane.selector" -}}
app.kubernetes.io/name: sliceplane
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "sliceplane.labels" -}}
{{ include "sliceplane.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- /* Annotations of an object that exists while a release is uninstalled; its argument is the weight. */ -}}
{{- define "sliceplane.hook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
