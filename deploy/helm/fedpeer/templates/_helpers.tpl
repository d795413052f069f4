{{- define "fedpeer.labels" -}}
app.kubernetes.io/name: fedpeer
app.kubernetes.io/part-of: fedpeer
app.kubernetes.io/component: {{ . }}
{{- end }}

{{- define "fedpeer.pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "fedpeer.container" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "fedpeer.workerMounts" -}}
- {name: work, mountPath: /var/lib/fedpeer}
- {name: tmp, mountPath: /tmp}
{{- range list "worker.toml" "workers.pem" "worker.pem" "worker.key" }}
- {name: folder, mountPath: /var/lib/fedpeer/{{ . }}, subPath: {{ . }}, readOnly: true}
{{- end }}
{{- end }}

{{- define "fedpeer.workerVolumes" -}}
- {name: work, emptyDir: {}}
- {name: tmp, emptyDir: {}}
- name: folder
  secret: {secretName: {{ .Values.workerSecret }}, defaultMode: 0440}
{{- end }}
