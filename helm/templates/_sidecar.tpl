{{/*
For charts that deploy the engine themselves; see config/kubernetes/parent-chart. `derender-proxy.sidecar` is an item
of initContainers, `derender-proxy.container` one of containers, `derender-proxy.volumes` items of volumes,
`derender-proxy.engineLifecycle` the lifecycle of the engine's container, `derender-proxy.engineVolumeMounts` items of
its volumeMounts, `derender-proxy.gracePeriod` the pod's terminationGracePeriodSeconds, `derender-proxy.checksums` its
annotations.
*/}}

{{- define "derender-proxy.sidecar" -}}
{{ include "derender-proxy.container" . }}
restartPolicy: Always
{{- end }}

{{- define "derender-proxy.args" -}}
{{- $v := .Values -}}
- serve
{{- with $v.model }}
- {{ . | quote }}
{{- end }}
- --config=/etc/derender-proxy/config.yaml
- --host=0.0.0.0
- --port={{ int $v.ports.http }}
{{- with $v.ports.admin }}
- --admin-port={{ int . }}
{{- end }}
{{- if eq $v.shape "standalone" }}
- --engine-url={{ default "none" $v.engineUrl }}
{{- else }}
- --engine-url=http://127.0.0.1:{{ int $v.engine.port }}
{{- end }}
- --shutdown-window={{ int $v.shutdown.window }}
- --shutdown-timeout={{ int $v.shutdown.timeout }}
{{- if $v.tls.secretName }}
- --ssl-certfile=/etc/derender-proxy-tls/tls.crt
- --ssl-keyfile=/etc/derender-proxy-tls/tls.key
{{- end }}
{{- range $v.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "derender-proxy.downwardEnv" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- end }}

{{- define "derender-proxy.hubEnv" -}}
- name: HF_HOME
  value: {{ .Values.hubCache.mountPath | quote }}
{{- if .Values.hubCache.offline }}
- name: HF_HUB_OFFLINE
  value: "1"
{{- end }}
{{- with include "derender-proxy.secretName" . }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ . }}, key: hf-token, optional: true}}
{{- end }}
{{- end }}

{{- define "derender-proxy.env" -}}
{{ include "derender-proxy.downwardEnv" . }}
{{ include "derender-proxy.hubEnv" . }}
{{- with include "derender-proxy.secretName" . }}
- name: DERENDER_API_KEY
  valueFrom: {secretKeyRef: {name: {{ . }}, key: api-key, optional: true}}
- name: DERENDER_ENGINE_API_KEY
  valueFrom: {secretKeyRef: {name: {{ . }}, key: engine-api-key, optional: true}}
- name: DERENDER_STATE_KEY
  valueFrom: {secretKeyRef: {name: {{ . }}, key: state-key, optional: true}}
{{- end }}
{{- with .Values.tracing }}
{{- if .endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ .endpoint | quote }}
- name: OTEL_SERVICE_NAME
  value: {{ .serviceName | quote }}
- name: OTEL_TRACES_SAMPLER
  value: {{ .sampler | quote }}
{{- if contains "ratio" .sampler }}
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ .samplerArg | quote }}
{{- end }}
- name: OTEL_RESOURCE_ATTRIBUTES
  value: k8s.pod.name=$(POD_NAME),k8s.namespace.name=$(POD_NAMESPACE),k8s.node.name=$(NODE_NAME)
{{- end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "derender-proxy.probe" -}}
httpGet:
  path: {{ .path }}
  port: {{ include "derender-proxy.opsPortName" .root }}
  scheme: {{ include "derender-proxy.opsScheme" .root }}
{{- with .timing }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "derender-proxy.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: {{ .Values.podSecurityContext.runAsUser | default 65532 | int }}
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "derender-proxy.container" -}}
name: derender-proxy
image: {{ include "derender-proxy.image" (dict "image" .Values.image "defaultTag" .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  {{- include "derender-proxy.args" . | nindent 2 }}
env:
  {{- include "derender-proxy.env" . | nindent 2 }}
{{- with .Values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  - name: http
    containerPort: {{ int .Values.ports.http }}
    protocol: TCP
  {{- with .Values.ports.admin }}
  - name: admin
    containerPort: {{ int . }}
    protocol: TCP
  {{- end }}
startupProbe:
  {{- include "derender-proxy.probe" (dict "root" . "path" "/live" "timing" .Values.probes.startup) | nindent 2 }}
readinessProbe:
  {{- include "derender-proxy.probe" (dict "root" . "path" "/ready" "timing" .Values.probes.readiness) | nindent 2 }}
livenessProbe:
  {{- include "derender-proxy.probe" (dict "root" . "path" "/live" "timing" .Values.probes.liveness) | nindent 2 }}
lifecycle:
  preStop:
    exec:
      command: [derender-proxy, drain]
resources:
  {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  {{- include "derender-proxy.containerSecurityContext" . | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
  - name: derender-config
    mountPath: /etc/derender-proxy
    readOnly: true
  - name: derender-tmp
    mountPath: /tmp
  {{- include "derender-proxy.modelMounts" . | nindent 2 }}
  {{- if .Values.tls.secretName }}
  - name: derender-tls
    mountPath: /etc/derender-proxy-tls
    readOnly: true
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "derender-proxy.modelMounts" -}}
- name: derender-hub-cache
  mountPath: {{ .Values.hubCache.mountPath }}
{{- if .Values.modelFiles.volume }}
- name: derender-model
  mountPath: {{ .Values.modelFiles.mountPath }}
  readOnly: {{ .Values.modelFiles.readOnly }}
{{- end }}
{{- end }}

{{- define "derender-proxy.volumes" -}}
- name: derender-config
  configMap:
    name: {{ include "derender-proxy.fullname" . }}
- name: derender-tmp
  emptyDir:
    sizeLimit: {{ .Values.tmpSizeLimit }}
- name: derender-hub-cache
  {{- with .Values.hubCache }}
  {{- if .persistence.enabled }}
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-hub-cache" (include "derender-proxy.fullname" $)) .persistence.existingClaim }}
  {{- else if .volume }}
  {{- toYaml .volume | nindent 2 }}
  {{- else }}
  emptyDir: {}
  {{- end }}
  {{- end }}
{{- with .Values.modelFiles.volume }}
- name: derender-model
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tls.secretName }}
- name: derender-tls
  secret:
    secretName: {{ . }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The engine must not be told to stop while the sidecar still has streams of it. */}}
{{- define "derender-proxy.engineLifecycle" -}}
preStop:
  exec:
    command:
      - python3
      - /etc/derender-proxy/wait_for_drain.py
      - --metrics={{ include "derender-proxy.opsScheme" . | lower }}://127.0.0.1:{{ include "derender-proxy.opsPort" . }}/metrics
      - --window={{ int .Values.shutdown.window }}
      - --timeout={{ int .Values.shutdown.timeout }}
{{- end }}

{{- define "derender-proxy.engineVolumeMounts" -}}
- name: derender-config
  mountPath: /etc/derender-proxy
  readOnly: true
{{- end }}

{{- define "derender-proxy.settingsYaml" -}}
{{- with .Values.settings -}}
{{- toYaml . -}}
{{- else -}}
{}
{{- end -}}
{{- end }}

{{/* A changed configuration or secret is a changed pod; what a running sidecar takes over from the file is not. */}}
{{- define "derender-proxy.checksums" -}}
{{- $settings := .Values.settings -}}
{{- if .Values.liveReload -}}
{{- $settings = omit $settings "mode" "canary-percent" "rollout" -}}
{{- end -}}
checksum/derender-config: {{ $settings | toJson | sha256sum }}
{{- with include "derender-proxy.secretData" . }}
checksum/derender-secret: {{ . | sha256sum }}
{{- end }}
{{- end }}
