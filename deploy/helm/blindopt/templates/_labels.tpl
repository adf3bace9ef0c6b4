{{- define "blindopt.labels" -}}
app.kubernetes.io/name: blindopt-{{ .kind }}
app.kubernetes.io/instance: {{ .release }}
{{- end }}

{{- /* A probe: over http with its path, or a connection alone where clients must show a certificate. */ -}}
{{- define "blindopt.probe" -}}
{{- if hasKey .probe "httpGet" -}}
{{- dict "httpGet" (merge (dict "path" .path) .probe.httpGet) | toJson -}}
{{- else -}}
{{- .probe | toJson -}}
{{- end -}}
{{- end }}
