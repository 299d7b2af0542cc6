{{- define "farwater.selector" -}}
app.kubernetes.io/name: farwater
app.kubernetes.io/component: hub
{{- end }}
{{- define "farwater.labels" -}}
{{ include "farwater.selector" . }}
app.kubernetes.io/part-of: farwater
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}
