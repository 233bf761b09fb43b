{{/*
Rules over the series of one sidecar each; aggregated by namespace and job, by pod where one pod alone can be in
trouble. Requests of probes and scrapes do not count.
*/}}
{{- define "derender-proxy.ruleText" -}}
{{- $t := .Values.monitoring.rules.thresholds -}}
{{- $routes := `route=~"/v1/.+|/inference/.+"` -}}
{{- $limit := hasKey .Values.settings "max-concurrent-streams" | ternary (index .Values.settings "max-concurrent-streams") 4096 | int -}}
{{- $workers := default 1 (index .Values.settings "workers") | int -}}
groups:
  - name: derender-proxy.recording
    rules:
      - record: derender:requests:rate5m
        expr: sum by (namespace, job) (rate(derender_requests_total{ {{- $routes -}} }[5m]))
      - record: derender:requests_5xx:ratio_rate5m
        expr: |-
          sum by (namespace, job) (rate(derender_requests_total{ {{- $routes -}} ,code=~"5.."}[5m]))
            / (derender:requests:rate5m > 0)
      - record: derender:requests_429:ratio_rate5m
        expr: |-
          sum by (namespace, job) (rate(derender_requests_total{ {{- $routes -}} ,code="429"}[5m]))
            / (derender:requests:rate5m > 0)
      - record: derender:client_disconnects:ratio_rate5m
        expr: |-
          sum by (namespace, job) (rate(derender_client_disconnects_total[5m]))
            / (derender:requests:rate5m > 0)
      - record: derender:added_latency_seconds:p99_rate5m
        expr: |-
          histogram_quantile(0.99, sum by (namespace, job, le) (rate(derender_added_latency_seconds_bucket[5m])))
      - record: derender:time_to_first_token_seconds:p95_rate5m
        expr: |-
          histogram_quantile(0.95, sum by (namespace, job, le) (rate(derender_time_to_first_token_seconds_bucket[5m])))
      - record: derender:inter_token_seconds:p95_rate5m
        expr: |-
          histogram_quantile(0.95, sum by (namespace, job, le) (rate(derender_inter_token_seconds_bucket[5m])))
      - record: derender:replay_seconds:p99_rate5m
        expr: |-
          histogram_quantile(0.99, sum by (namespace, job, le) (rate(derender_replay_seconds_bucket[5m])))
      - record: derender:cache_replays:ratio_rate5m
        expr: |-
          sum by (namespace, job) (rate(derender_cache_lookups_total{result=~"replay_.+"}[5m]))
            / (sum by (namespace, job) (rate(derender_cache_lookups_total[5m])) > 0)
      - record: derender:shadow_mismatches:ratio_rate15m
        expr: |-
          sum by (namespace, job) (rate(derender_shadow_mismatch_total[15m]))
            / (sum by (namespace, job) (rate(derender_shadow_compared_total[15m])) > 0)
  - name: derender-proxy.alerts
    rules:
      - alert: DerenderAddedLatencyHigh
        expr: derender:added_latency_seconds:p99_rate5m > {{ $t.addedLatency }}
        for: 10m
        labels: {severity: warning}
        annotations:
          summary: The sidecar adds more than {{ $t.addedLatency }} s to its slowest events
          description: >-
            In {{ "{{ $labels.namespace }}/{{ $labels.job }}" }} one event in a hundred takes {{ "{{ $value | humanizeDuration }}" }} from
            the engine to the socket. Usually its core is full: see DerenderCpuSaturated; else long replays.
      - alert: DerenderTimeToFirstTokenHigh
        expr: derender:time_to_first_token_seconds:p95_rate5m > {{ $t.timeToFirstToken }}
        for: 10m
        labels: {severity: warning}
        annotations:
          summary: First tokens come late
          description: >-
            In {{ "{{ $labels.namespace }}/{{ $labels.job }}" }} one request in twenty waits {{ "{{ $value | humanizeDuration }}" }} for the
            engine's first token. It is the engine's queue unless DerenderAddedLatencyHigh fires too.
      - alert: DerenderErrorsHigh
        expr: derender:requests_5xx:ratio_rate5m > {{ $t.errorShare }}
        for: 5m
        labels: {severity: critical}
        annotations:
          summary: Requests fail
          description: >-
            {{ "{{ $value | humanizePercentage }}" }} of the requests to {{ "{{ $labels.namespace }}/{{ $labels.job }}" }} end with 5xx;
            derender_engine_errors_total says by kind whether it is the engine.
      - alert: DerenderEngineErrors
        expr: |-
          sum by (namespace, job, kind) (rate(derender_engine_errors_total{kind!~"connect|timeout_connect"}[5m])) > {{ $t.engineErrorRate }}
        for: 5m
        labels: {severity: warning}
        annotations:
          summary: The engine fails on requests
          description: >-
            {{ "{{ $value | humanize }}" }} failures a second of kind {{ "{{ $labels.kind }}" }} in {{ "{{ $labels.namespace }}/{{ $labels.job }}" }}.
      - alert: DerenderEngineUnreachable
        expr: |-
          sum by (namespace, job, pod) (rate(derender_engine_errors_total{kind=~"connect|timeout_connect"}[2m])) > 0
            and sum by (namespace, job, pod) (rate(derender_requests_total{ {{- $routes -}} ,code=~"5.."}[2m])) > 0
        for: 2m
        labels: {severity: critical}
        annotations:
          summary: A sidecar cannot reach its engine
          description: >-
            The sidecar of {{ "{{ $labels.namespace }}/{{ $labels.pod }}" }} gets no connection to its engine, and requests fail; the
            engine is down or not listening on the port of --engine-url. (While it starts, no requests come.)
      - alert: DerenderCacheReplaysHigh
        expr: |-
          derender:cache_replays:ratio_rate5m > {{ $t.replayShare }}
            and sum by (namespace, job) (rate(derender_cache_lookups_total[5m])) > 1
        for: 15m
        labels: {severity: warning}
        annotations:
          summary: Stateless calls miss their live parser
          description: >-
            {{ "{{ $value | humanizePercentage }}" }} of the calls in {{ "{{ $labels.namespace }}/{{ $labels.job }}" }} replay. Calls of one request id
            do not reach one replica (result replay_absent: see requestAffinity, or a cache too small by
            derender_cache_evictions_total), or clients change their state (replay_mismatch).
      - alert: DerenderReplaySlow
        expr: derender:replay_seconds:p99_rate5m > {{ $t.replaySeconds }}
        for: 15m
        labels: {severity: warning}
        annotations:
          summary: Replays are long
          description: >-
            One replay in a hundred in {{ "{{ $labels.namespace }}/{{ $labels.job }}" }} takes {{ "{{ $value | humanizeDuration }}" }}; compact state
            or better affinity avoids them.
      - alert: DerenderShadowMismatch
        expr: derender:shadow_mismatches:ratio_rate15m > {{ $t.shadowMismatchShare }}
        for: 15m
        labels: {severity: warning}
        annotations:
          summary: Shadow answers differ from the engine's
          description: >-
            {{ "{{ $value | humanizePercentage }}" }} of the comparisons in {{ "{{ $labels.namespace }}/{{ $labels.job }}" }} differ;
            derender_shadow_mismatch_total says in which field. Do not go on to canary.
      - alert: DerenderFallbackBreakerOpen
        expr: max by (namespace, job, pod) (derender_fallback_breaker_open) > 0
        for: 5m
        labels: {severity: warning}
        annotations:
          summary: The derender path is left alone
          description: >-
            {{ "{{ $labels.namespace }}/{{ $labels.pod }}" }} passes all requests through, since the engine refuses its own; see
            derender_fallbacks_total by reason.
      - alert: DerenderConfigRefused
        expr: |-
          sum by (namespace, job, pod) (increase(derender_config_reloads_total{result="refused"}[15m])) > 0
        labels: {severity: warning}
        annotations:
          summary: A changed configuration file was refused
          description: >-
            {{ "{{ $labels.namespace }}/{{ $labels.pod }}" }} goes on with the old one; its log says what is wrong with the new.
      - alert: DerenderStreamsSaturated
        expr: derender_streams_active > {{ if $limit }}{{ mulf $t.streamsShare $limit }}{{ else }}Inf{{ end }}
        for: 5m
        labels: {severity: warning}
        annotations:
          summary: A sidecar is near its limit of streams
          description: >-
            {{ "{{ $labels.namespace }}/{{ $labels.pod }}" }} has {{ "{{ $value }}" }} open streams of the {{ $limit }} that
            --max-concurrent-streams allows; more are refused with 429.
      - alert: DerenderRequestsRefused
        expr: derender:requests_429:ratio_rate5m > {{ $t.refusedShare }}
        for: 5m
        labels: {severity: warning}
        annotations:
          summary: Requests are refused for lack of room
          description: >-
            {{ "{{ $value | humanizePercentage }}" }} of the requests to {{ "{{ $labels.namespace }}/{{ $labels.job }}" }} get a 429.
      - alert: DerenderCpuSaturated
        expr: |-
          sum by (namespace, pod) (rate(container_cpu_usage_seconds_total{container="derender-proxy"}[5m])) > {{ mulf $t.cpuShare $workers }}
        for: 10m
        labels: {severity: warning}
        annotations:
          summary: A sidecar uses all the CPU it can
          description: >-
            The sidecar of {{ "{{ $labels.namespace }}/{{ $labels.pod }}" }} uses {{ "{{ $value | humanize }}" }} cores with {{ $workers }} worker(s);
            add workers or replicas.
      - alert: DerenderClientDisconnectsHigh
        expr: derender:client_disconnects:ratio_rate5m > {{ $t.disconnectShare }}
        for: 15m
        labels: {severity: warning}
        annotations:
          summary: Clients leave before their answer is complete
          description: >-
            {{ "{{ $value | humanizePercentage }}" }} of the requests to {{ "{{ $labels.namespace }}/{{ $labels.job }}" }} are given up; look for a
            proxy in front that buffers or times out, and at the time to first token.
      - alert: DerenderVersionsDiffer
        expr: count by (namespace, job) (count by (namespace, job, version) (derender_build_info)) > 1
        for: 1h
        labels: {severity: info}
        annotations:
          summary: Replicas run different versions
          description: >-
            {{ "{{ $labels.namespace }}/{{ $labels.job }}" }} has run {{ "{{ $value }}" }} versions for an hour; compact states of one may be
            refused by another.
{{- end }}

{{- define "derender-proxy.rules" -}}
{{- $settings := .Values.monitoring.rules -}}
{{- $groups := list -}}
{{- range (include "derender-proxy.ruleText" . | fromYaml).groups -}}
{{- $rules := list -}}
{{- range .rules -}}
{{- if not (and .alert (has .alert $settings.disabled)) -}}
{{- if and .alert $settings.alertLabels -}}
{{- $rules = append $rules (set . "labels" (merge (deepCopy $settings.alertLabels) .labels)) -}}
{{- else -}}
{{- $rules = append $rules . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $groups = append $groups (dict "name" .name "rules" $rules) -}}
{{- end -}}
{{- dict "groups" $groups | toYaml -}}
{{- end }}
