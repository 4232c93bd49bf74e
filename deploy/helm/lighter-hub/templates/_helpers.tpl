{{/* The labels of all objects. */}}
{{- define "lighter-hub.labels" -}}
{{ include "lighter-hub.selector" . }}
app.kubernetes.io/part-of: lighter
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* The labels by which the pods are found. */}}
{{- define "lighter-hub.selector" -}}
app.kubernetes.io/name: lighter-hub
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The name of all objects: that of the release, which contains the chart's. */}}
{{- define "lighter-hub.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{/* Whether the hub may have several processes: "true", or empty. */}}
{{- define "lighter-hub.several" -}}
{{- if and .Values.database .Values.bucket -}}
true
{{- else if or .Values.database .Values.bucket -}}
{{- fail "set both database and bucket, or none of them" -}}
{{- else if gt (int .Values.replicas) 1 -}}
{{- fail "more than one process (replicas) needs database and bucket" -}}
{{- end -}}
{{- end }}

{{- define "lighter-hub.config" -}}
root             = "/var/lib/lighter-hub"
listen           = "0.0.0.0:7070"
{{- if .Values.tls.secretName }}
tls_cert         = "/etc/lighter-tls/tls.crt"
tls_key          = "/etc/lighter-tls/tls.key"
{{- else }}
plain_http       = true
{{- end }}
admin_token_file = "/etc/lighter-secret/token"
drain_seconds    = {{ .Values.drainSeconds }}
log_format       = "json"
{{- if include "lighter-hub.several" . }}
catalog          = {{ .Values.database | quote }}
bucket           = {{ .Values.bucket | quote }}
{{- end }}
{{ with .Values.config }}{{ . | trim }}
{{ end }}
{{- end }}

{{/* A probe of a path. */}}
{{- define "lighter-hub.get" -}}
httpGet:
  path: {{ .path }}
  port: hub
  {{- if .values.tls.secretName }}
  scheme: HTTPS
  {{- end }}
{{- end }}

{{/* The template of the pods. */}}
{{- define "lighter-hub.pod" -}}
{{- $several := include "lighter-hub.several" . -}}
metadata:
  labels:
    {{- include "lighter-hub.labels" . | nindent 4 }}
  annotations:
    checksum/config: {{ include "lighter-hub.config" . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "lighter-hub.name" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  # preStop, drain_seconds, and some seconds to give jobs back.
  terminationGracePeriodSeconds: {{ add .Values.drainSeconds 25 }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if $several }}
  affinity:
    podAntiAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "lighter-hub.selector" . | nindent 14 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  containers:
  - name: hub
    image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args: [hub, --config, /etc/lighter/hub.toml]
    {{- if and $several .Values.awsCredentials }}
    env:
    # A file, which no process sees in its environment.
    - name: AWS_SHARED_CREDENTIALS_FILE
      value: /etc/lighter-secret/aws-credentials
    {{- end }}
    {{- if not $several }}
    env:
    # SQLite's temporary files: the root file system is read-only, and has no /tmp.
    - name: TMPDIR
      value: /var/lib/lighter-hub
    {{- end }}
    ports:
    - name: hub
      containerPort: 7070
    # A migration of the database may take long, and the hub does not listen before it has ended.
    startupProbe:
      {{- include "lighter-hub.get" (dict "path" "/healthz" "values" .Values) | nindent 6 }}
      periodSeconds: 2
      timeoutSeconds: 5
      failureThreshold: 1800
    # Asks only whether the process answers: no restart brings a database or a bucket back.
    livenessProbe:
      {{- include "lighter-hub.get" (dict "path" "/healthz" "values" .Values) | nindent 6 }}
      periodSeconds: 10
      timeoutSeconds: 10
      failureThreshold: 6
    readinessProbe:
      {{- include "lighter-hub.get" (dict "path" "/readyz" "values" .Values) | nindent 6 }}
      periodSeconds: 5
      timeoutSeconds: 5
      failureThreshold: 2
    lifecycle:
      # Requests arrive until all machines know that this pod ends.
      preStop:
        sleep:
          seconds: 10
    resources:
      {{- toYaml .Values.resources | nindent 6 }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities:
        drop: [ALL]
    volumeMounts:
    - name: config
      mountPath: /etc/lighter
      readOnly: true
    - name: secret
      mountPath: /etc/lighter-secret
      readOnly: true
    - name: data
      mountPath: /var/lib/lighter-hub
    {{- if $several }}
    # All processes have the same signing keys.
    - name: secret
      mountPath: /var/lib/lighter-hub/hub.key
      subPath: hub.key
      readOnly: true
    {{- end }}
    {{- if .Values.tls.secretName }}
    - name: tls
      mountPath: /etc/lighter-tls
      readOnly: true
    {{- end }}
  volumes:
  - name: config
    configMap:
      name: {{ include "lighter-hub.name" . }}
  - name: secret
    secret:
      secretName: {{ .Values.secretName }}
      defaultMode: 288 # 0440
      items:
      - key: token
        path: token
      {{- if $several }}
      - key: pgpass
        path: pgpass
      {{- if .Values.awsCredentials }}
      - key: aws-credentials
        path: aws-credentials
      {{- end }}
      - key: hub.key
        path: hub.key
      {{- end }}
  {{- if $several }}
  # Unfinished objects. Nothing is lost with it.
  - name: data
    emptyDir: {}
  {{- end }}
  {{- with .Values.tls.secretName }}
  - name: tls
    secret:
      secretName: {{ . }}
      defaultMode: 288 # 0440
  {{- end }}
{{- end }}
