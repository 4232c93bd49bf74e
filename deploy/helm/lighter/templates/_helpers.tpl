{{- define "lighter.labels" -}}
app.kubernetes.io/name: lighter
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "lighter.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{/* What a pod on each node has: root is the dictionary, component its name, port that of its probes. */}}
{{- define "lighter.daemonset" -}}
{{- $root := .root -}}
selector:
  matchLabels:
    app.kubernetes.io/name: lighter
    app.kubernetes.io/component: {{ .component }}
updateStrategy:
  type: RollingUpdate
  rollingUpdate:
    maxUnavailable: {{ .maxUnavailable }}
template:
  metadata:
    labels:
      {{- include "lighter.labels" $root | nindent 6 }}
      app.kubernetes.io/component: {{ .component }}
    annotations:
      checksum/config: {{ $root.Values.config | sha256sum }}
      {{- with $root.Values.podAnnotations }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
  spec:
    serviceAccountName: {{ .account }}
    {{- with $root.Values.imagePullSecrets }}
    imagePullSecrets:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    priorityClassName: {{ $root.Values.priorityClassName }}
    nodeSelector:
      {{- toYaml .nodeSelector | nindent 6 }}
    tolerations:
      {{- toYaml $root.Values.tolerations | nindent 6 }}
    # The pod finds containerd's process, and needs no network plugin.
    hostPID: true
    hostNetwork: true
    # An installation that has begun is not interrupted.
    terminationGracePeriodSeconds: 120
    containers:
      - name: {{ .verb }}
        {{- include "lighter.image" $root | nindent 8 }}
        args:
          - {{ .verb }}
          - kubernetes
          - --listen=127.0.0.1:{{ .port }}
          {{- range .args }}
          - {{ . }}
          {{- end }}
          {{- with $root.Values.containerd }}
          - --containerd={{ . }}
          {{- end }}
        env:
          - name: NODE_NAME
            valueFrom:
              fieldRef:
                fieldPath: spec.nodeName
          - name: POD_UID
            valueFrom:
              fieldRef:
                fieldPath: metadata.uid
          - name: GOMEMLIMIT
            valueFrom:
              resourceFieldRef:
                resource: limits.memory
        resources:
          {{- toYaml $root.Values.resources | nindent 10 }}
        startupProbe:
          httpGet:
            host: 127.0.0.1
            port: {{ .port }}
            path: /healthz
          periodSeconds: 2
          failureThreshold: 60
        readinessProbe:
          httpGet:
            host: 127.0.0.1
            port: {{ .port }}
            path: /readyz
          periodSeconds: 5
        securityContext:
          privileged: true # it replaces programs and services of the machine
          readOnlyRootFilesystem: true
        volumeMounts:
          - name: host
            mountPath: /host
            mountPropagation: HostToContainer
          {{- if .config }}
          - name: config
            mountPath: /etc/lighter
            readOnly: true
          {{- end }}
    volumes:
      - name: host
        hostPath:
          path: /
      {{- with .config }}
      - name: config
        configMap:
          name: {{ . }}
      {{- end }}
{{- end }}

{{/* The account and the rights of pods on nodes: root, name, verbs on nodes, annotations. */}}
{{- define "lighter.access" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
---
# Label, taint and condition of the node. RBAC cannot say "only the own node".
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ .name }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
rules:
  - apiGroups: [""]
    resources: [nodes]
    verbs: {{ toJson .verbs }}
  - apiGroups: [""]
    resources: [nodes/status]
    verbs: [patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ .name }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .name }}
    namespace: {{ .root.Release.Namespace }}
---
# Events about nodes are in the namespace default.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ .name }}-events
  namespace: default
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
rules:
  - apiGroups: [""]
    resources: [events]
    verbs: [create]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .name }}-events
  namespace: default
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .name }}-events
subjects:
  - kind: ServiceAccount
    name: {{ .name }}
    namespace: {{ .root.Release.Namespace }}
{{- end }}
