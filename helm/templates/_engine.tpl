{{/* vLLM, on loopback: its probes run inside its container, its preStop waits for the sidecar's drain. */}}
{{- define "derender-proxy.engineProbe" -}}
{{- $url := printf "http://127.0.0.1:%d/health" (int .root.Values.engine.port) -}}
exec:
  command:
    {{- range .root.Values.engine.probeCommand }}
    - {{ . | replace "URL" $url | quote }}
    {{- end }}
{{- with .timing }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "derender-proxy.engine" -}}
{{- $e := .Values.engine -}}
name: engine
image: {{ include "derender-proxy.image" (dict "image" $e.image "defaultTag" "latest") | quote }}
imagePullPolicy: {{ $e.image.pullPolicy }}
command:
  {{- toYaml $e.command | nindent 2 }}
args:
  - {{ .Values.model | quote }}
  - --host=127.0.0.1
  - --port={{ int $e.port }}
  {{- if $e.tokensOnly }}
  - --tokens-only
  {{- end }}
  - --shutdown-timeout={{ int .Values.shutdown.engineTimeout }}
  {{- with index .Values.settings "served-model-name" }}
  - --served-model-name
  {{- range (kindIs "slice" . | ternary . (list .)) }}
  - {{ . | quote }}
  {{- end }}
  {{- end }}
  {{- with index .Values.settings "max-model-len" }}
  - --max-model-len={{ int . }}
  {{- end }}
  {{- range $e.extraArgs }}
  - {{ . | quote }}
  {{- end }}
env:
  {{- include "derender-proxy.downwardEnv" . | nindent 2 }}
  {{- include "derender-proxy.hubEnv" . | nindent 2 }}
  {{- with include "derender-proxy.secretName" . }}
  - name: VLLM_API_KEY
    valueFrom: {secretKeyRef: {name: {{ . }}, key: engine-api-key, optional: true}}
  {{- end }}
  # The user has no entry in /etc/passwd, and compilers of kernels ask for its name and write below its home.
  - name: USER
    value: engine
  - name: HOME
    value: /home/engine
  {{- with $e.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $e.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
startupProbe:
  {{- include "derender-proxy.engineProbe" (dict "root" . "timing" $e.probes.startup) | nindent 2 }}
readinessProbe:
  {{- include "derender-proxy.engineProbe" (dict "root" . "timing" $e.probes.readiness) | nindent 2 }}
livenessProbe:
  {{- include "derender-proxy.engineProbe" (dict "root" . "timing" $e.probes.liveness) | nindent 2 }}
lifecycle:
  {{- include "derender-proxy.engineLifecycle" . | nindent 2 }}
{{- $gpu := dict -}}
{{- if $e.gpu.count }}
{{- $gpu = dict "limits" (dict $e.gpu.resource (int $e.gpu.count | toString)) }}
{{- end }}
resources:
  {{- mergeOverwrite (deepCopy $e.resources) $gpu | toYaml | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: {{ $e.readOnlyRootFilesystem }}
  runAsNonRoot: true
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
  {{- include "derender-proxy.engineVolumeMounts" . | nindent 2 }}
  {{- include "derender-proxy.modelMounts" . | nindent 2 }}
  - name: engine-shm
    mountPath: /dev/shm
  - name: engine-home
    mountPath: /home/engine
  - name: engine-tmp
    mountPath: /tmp
  {{- with $e.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "derender-proxy.engineVolumes" -}}
- name: engine-shm
  emptyDir: {medium: Memory, sizeLimit: {{ .Values.engine.shmSize }}}
- name: engine-home
  emptyDir: {}
- name: engine-tmp
  emptyDir: {}
{{- end }}
