{{/* Every template takes the root context of this chart; a parent chart passes (index .Subcharts "derender-proxy"). */}}

{{- define "derender-proxy.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "derender-proxy.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "derender-proxy.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "derender-proxy.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "derender-proxy.selectorLabels" -}}
{{- if eq .Values.shape "existing" -}}
{{- toYaml .Values.existing.podLabels -}}
{{- else -}}
app.kubernetes.io/name: {{ include "derender-proxy.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
{{- end }}

{{/* Whether there are pods to select. */}}
{{- define "derender-proxy.hasPods" -}}
{{- if or (ne .Values.shape "existing") .Values.existing.podLabels -}}true{{- end -}}
{{- end }}

{{- define "derender-proxy.labels" -}}
app.kubernetes.io/name: {{ include "derender-proxy.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: {{ eq .Values.shape "standalone" | ternary "derender-tier" "inference-server" }}
app.kubernetes.io/part-of: derender-proxy
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What llm-d and a picker look for. A label has no slash; a hub id has one. */}}
{{- define "derender-proxy.llmdLabels" -}}
{{- if .Values.llmd.enabled -}}
llm-d.ai/inference-serving: "true"
llm-d.ai/model: {{ default .Values.model .Values.llmd.model | replace "/" "--" | trunc 63 | trimAll "-._/" | quote }}
{{- with .Values.llmd.role }}
llm-d.ai/role: {{ . | quote }}
{{- end }}
llm-d.ai/engine-type: {{ .Values.llmd.engineType | quote }}
{{- end -}}
{{- end }}

{{- define "derender-proxy.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "derender-proxy.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "derender-proxy.image" -}}
{{- $tag := default .defaultTag .image.tag -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository $tag -}}
{{- end -}}
{{- end }}

{{/* Name of the Secret that holds the keys; empty when there is none. */}}
{{- define "derender-proxy.secretName" -}}
{{- if .Values.secret.existing -}}
{{- .Values.secret.existing -}}
{{- else if include "derender-proxy.secretData" . -}}
{{- include "derender-proxy.fullname" . -}}
{{- end -}}
{{- end }}

{{- define "derender-proxy.secretData" -}}
{{- with .Values.secret -}}
{{- if .apiKeys }}
api-key: {{ toJson .apiKeys | quote }}
{{- end }}
{{- with .engineApiKey }}
engine-api-key: {{ . | quote }}
{{- end }}
{{- with .stateKey }}
state-key: {{ . | quote }}
{{- end }}
{{- with .hfToken }}
hf-token: {{ . | quote }}
{{- end }}
{{- end -}}
{{- end }}

{{- define "derender-proxy.requestIdHeader" -}}
{{- default "x-request-id" (index .Values.settings "request-id-header") -}}
{{- end }}

{{/* Port and scheme of probes and metrics. */}}
{{- define "derender-proxy.opsPortName" -}}
{{- if .Values.ports.admin }}admin{{ else }}http{{ end -}}
{{- end }}
{{- define "derender-proxy.opsPort" -}}
{{- default .Values.ports.http .Values.ports.admin -}}
{{- end }}
{{- define "derender-proxy.opsScheme" -}}
{{- if and .Values.tls.secretName (not .Values.ports.admin) }}HTTPS{{ else }}HTTP{{ end -}}
{{- end }}

{{/* All preStop hooks start together: the engine's waits for the sidecar's drain, then the engine ends, then the sidecar. */}}
{{- define "derender-proxy.gracePeriod" -}}
{{- with .Values.shutdown -}}
{{- $engine := eq $.Values.shape "standalone" | ternary 0 (int .engineTimeout) -}}
{{- default (add (int .window) (int .timeout) $engine (int .margin)) .gracePeriod -}}
{{- end -}}
{{- end }}

{{/* Labels by which a monitor finds the Service, which has its own whatever the pods have. */}}
{{- define "derender-proxy.serviceSelector" -}}
app.kubernetes.io/name: {{ include "derender-proxy.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The pod of `helm test` must not be taken for one that serves. */}}
{{- define "derender-proxy.testLabels" -}}
app.kubernetes.io/name: {{ include "derender-proxy.name" . }}-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
