{{/* What no single value can say. */}}
{{- define "derender-proxy.validate" -}}
{{- $v := .Values -}}
{{- $faults := list -}}
{{- if and (ne $v.shape "existing") (not $v.model) -}}
{{- $faults = append $faults "model: required, a hub id or a directory below modelFiles.mountPath" -}}
{{- end -}}
{{- if and (hasPrefix "/" $v.model) (not $v.modelFiles.volume) (not $v.extraVolumes) -}}
{{- $faults = append $faults (printf "model: %s is a directory, but no volume has it; set modelFiles.volume" $v.model) -}}
{{- end -}}
{{- if and (eq $v.shape "standalone") (not $v.engineUrl) (not (index $v.settings "max-model-len")) -}}
{{- $faults = append $faults "settings.max-model-len: required in shape standalone, since there is no engine to ask" -}}
{{- end -}}
{{- if and (ne $v.shape "standalone") $v.engineUrl -}}
{{- $faults = append $faults (printf "engineUrl: only in shape standalone; in shape %s the engine is in the same pod" $v.shape) -}}
{{- end -}}
{{- if and (eq $v.shape "sidecar") (or (eq (int $v.engine.port) (int $v.ports.http)) (eq (int $v.engine.port) (int $v.ports.admin))) -}}
{{- $faults = append $faults (printf "engine.port: %d is the sidecar's" (int $v.engine.port)) -}}
{{- end -}}
{{- if eq (int $v.ports.http) (int $v.ports.admin) -}}
{{- $faults = append $faults (printf "ports.admin: %d is the public port" (int $v.ports.admin)) -}}
{{- end -}}
{{- $mode := default "derender" (index $v.settings "mode") -}}
{{- if and (eq $v.shape "sidecar") $v.engine.tokensOnly (or (ne $mode "derender") (hasKey $v.settings "canary-percent")) -}}
{{- $faults = append $faults "engine.tokensOnly: must be false for passthrough, shadow and canary, which need the engine's own OpenAI endpoints" -}}
{{- end -}}
{{- if and (eq (index $v.settings "derender-state" | default "full") "compact") (not (include "derender-proxy.secretName" .)) -}}
{{- $faults = append $faults "secret.stateKey: required (or secret.existing with state-key) with settings.derender-state compact" -}}
{{- end -}}
{{- if and $v.secret.existing (include "derender-proxy.secretData" .) -}}
{{- $faults = append $faults "secret.existing: either a Secret that exists or keys given here" -}}
{{- end -}}
{{- if and $v.shutdown.gracePeriod (lt (int $v.shutdown.gracePeriod) (int (add (int $v.shutdown.window) (int $v.shutdown.timeout)))) -}}
{{- $faults = append $faults (printf "shutdown.gracePeriod: %d cuts a drain of %d + %d seconds short" (int $v.shutdown.gracePeriod) (int $v.shutdown.window) (int $v.shutdown.timeout)) -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (eq $v.shape "existing") -}}
{{- $faults = append $faults "autoscaling.enabled: shape existing deploys no pods" -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) -}}
{{- $faults = append $faults (printf "autoscaling.minReplicas: %d is more than maxReplicas %d" (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (not $v.autoscaling.targetCPUUtilizationPercentage) (not $v.autoscaling.metrics) -}}
{{- $faults = append $faults "autoscaling.metrics: nothing to scale by" -}}
{{- end -}}
{{- if and (ne $v.requestAffinity.provider "none") (ne $v.shape "standalone") -}}
{{- $faults = append $faults "requestAffinity.provider: only in shape standalone; a sidecar's streams stay in their pod" -}}
{{- end -}}
{{- if and (ne $v.requestAffinity.provider "none") (not $v.service.enabled) -}}
{{- $faults = append $faults "service.enabled: requestAffinity.provider needs the Service" -}}
{{- end -}}
{{- if and (eq $v.requestAffinity.provider "gateway") (not $v.requestAffinity.gateway.parentRefs) -}}
{{- $faults = append $faults "requestAffinity.gateway.parentRefs: required with provider gateway" -}}
{{- end -}}
{{- if and $v.inferencePool.enabled (not $v.inferencePool.endpointPicker) -}}
{{- $faults = append $faults "inferencePool.endpointPicker: required, the picker's Service" -}}
{{- end -}}
{{- if and (or $v.inferencePool.enabled $v.monitoring.podMonitor.enabled) (not (include "derender-proxy.hasPods" .)) -}}
{{- $faults = append $faults "existing.podLabels: required with inferencePool or podMonitor, to select the engine's pods" -}}
{{- end -}}
{{- if and $v.monitoring.serviceMonitor.enabled (or (not $v.service.enabled) (not (include "derender-proxy.hasPods" .))) -}}
{{- $faults = append $faults "monitoring.serviceMonitor: needs the Service (service.enabled, and existing.podLabels in shape existing)" -}}
{{- end -}}
{{- if $faults -}}
{{- fail (printf "\n  %s" (join "\n  " $faults)) -}}
{{- end -}}
{{- end }}
