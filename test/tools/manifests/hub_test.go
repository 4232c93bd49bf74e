package manifests

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const (
	hubDir   = "../../../deploy/kubernetes/hub"
	hubChart = "../../../deploy/helm/lighter-hub"
)

// kustomized builds a variant of a hub with components.
func kustomized(t *testing.T, variant string, components ...string) objects {
	t.Helper()
	return withComponents(t, hubDir, variant, components...)
}

// withComponents builds the manifests of a directory below base with components of base.
func withComponents(t *testing.T, base, manifests string, components ...string) objects {
	t.Helper()
	// Kustomize accepts only relative paths, and none through links.
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string {
		absolute, err := filepath.Abs(filepath.Join(base, name))
		if err != nil {
			t.Fatal(err)
		}
		relative, err := filepath.Rel(dir, absolute)
		if err != nil {
			t.Fatal(err)
		}
		return relative
	}
	text := "resources: [" + at(manifests) + "]\n"
	for _, c := range components {
		if !strings.Contains(text, "components:") {
			text += "components:\n"
		}
		text += "- " + at(c) + "\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return built(t, dir)
}

// hubCharted renders the chart of a hub with values.
func hubCharted(values string) (text string, err error) { return Helm(hubChart, "lighter-hub", values) }

// rendered returns the objects of the chart of a hub with values.
func rendered(t *testing.T, values string) objects {
	t.Helper()
	text, err := hubCharted(values)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, text)
}

const several = `
replicas: 2
database: postgres://lighter@postgres.example.org/lighter?passfile=/etc/lighter-secret/pgpass
bucket: s3://lighter?region=eu-central-1
`

const everything = several + `
tls: {secretName: lighter-hub-tls}
ingress: {enabled: true}
networkPolicy: {enabled: true}
podMonitor: {enabled: true}
prometheusRule: {enabled: true}
`

// The manifests and the chart make the same objects.
func TestChartIsLikeTheManifests(t *testing.T) {
	for name, pair := range map[string][2]objects{
		"single":     {kustomized(t, "single"), rendered(t, "")},
		"several":    {kustomized(t, "several"), rendered(t, several)},
		"everything": {kustomized(t, "several", "ingress", "networkpolicy", "monitoring", "tls"), rendered(t, everything)},
	} {
		if a, b := slices.Sorted(maps.Keys(pair[0])), slices.Sorted(maps.Keys(pair[1])); !slices.Equal(a, b) {
			t.Errorf("%s: kustomize makes %q, the chart %q", name, a, b)
			continue
		}
		for key, object := range pair[0] {
			if name == "everything" && key == "ConfigMap lighter-hub" {
				continue // with TLS, the administrator edits it for kustomize
			}
			a, b := plain(t, object), plain(t, pair[1][key])
			if !reflect.DeepEqual(a, b) {
				inYAML := func(v any) string { text, _ := yaml.Marshal(v); return string(text) } // it has come from JSON
				t.Errorf("%s: %s of kustomize:\n%s\nof the chart:\n%s", name, key, inYAML(a), inYAML(b))
			}
		}
	}
}

// The chart is good for Helm's linter, and for many values. Values that make no sense are refused.
func TestChart(t *testing.T) {
	checkLint(t, hubChart)
	for _, values := range []string{"", several, everything, "volume: {size: 1Ti, storageClass: fast}",
		"config: |\n  [[registry]]\n  host = \"registry.example.org\"\n  private = true\n  [[quota]]\n  prefix = \"a\"\n  bytes = \"1GB\"\n",
		"ingress: {enabled: true, tlsSecretName: \"\", annotations: null}", several + "awsCredentials: false",
		"tls: {secretName: x}\nservice: {type: LoadBalancer, annotations: {a: b}}",
		"image: {repository: r, tag: \"1\"}\nimagePullSecrets: [{name: x}]\npodAnnotations: {a: b}\n" +
			"priorityClassName: x\nnodeSelector: {a: b}\ntolerations: [{operator: Exists}]\n" +
			"serviceAccount: {annotations: {a: b}}",
	} {
		checkPod(t, rendered(t, values))
	}
	for values, want := range map[string]string{
		"replicas: 2":                           "needs database and bucket",
		"database: postgres://db.example.org/x": "set both database and bucket",
		"bucket: s3://x":                        "set both database and bucket",
		"bucket: file:///srv":                   "bucket",
		"replica: 1":                            "replica",
		"replicas: 0":                           "replicas",
	} {
		if _, err := hubCharted(values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("values %q: error %v, want one with %q", values, err, want)
		}
	}
}

func TestManifests(t *testing.T) {
	components := []string{"tls", "ingress", "networkpolicy", "monitoring"}
	for _, variant := range []string{"single", "several"} {
		checkPod(t, kustomized(t, variant))
		for _, c := range components {
			checkPod(t, kustomized(t, variant, c))
		}
		checkPod(t, kustomized(t, variant, components...))
	}
}

// checkPod fails the test unless the hub's pods have few rights, no secret in their environment,
// and enough time to end.
func checkPod(t *testing.T, all objects) {
	t.Helper()
	var pod core.PodSpec
	for _, object := range all {
		switch o := object.(type) {
		case *apps.Deployment:
			pod = o.Spec.Template.Spec
		case *apps.StatefulSet:
			pod = o.Spec.Template.Spec
		}
	}
	if len(pod.Containers) != 1 || pod.SecurityContext == nil || pod.Containers[0].SecurityContext == nil {
		t.Fatalf("want a pod with a container and security contexts: %+v", pod)
	}
	hub := pod.Containers[0]
	for what, ok := range map[string]bool{
		"runs as root":          *pod.SecurityContext.RunAsNonRoot && *pod.SecurityContext.RunAsUser != 0,
		"has a token":           !*pod.AutomountServiceAccountToken,
		"may write its root":    *hub.SecurityContext.ReadOnlyRootFilesystem,
		"may get rights":        !*hub.SecurityContext.AllowPrivilegeEscalation,
		"has capabilities":      slices.Equal(hub.SecurityContext.Capabilities.Drop, []core.Capability{"ALL"}),
		"has no memory limit":   !hub.Resources.Limits.Memory().IsZero(),
		"has no start-up probe": hub.StartupProbe.HTTPGet.Path == "/healthz" && hub.StartupProbe.FailureThreshold >= 300,
		"has no readiness":      hub.ReadinessProbe.HTTPGet.Path == "/readyz",
		"has no liveness":       hub.LivenessProbe.HTTPGet.Path == "/healthz",
	} {
		if !ok {
			t.Errorf("the pod %s", what)
		}
	}
	for _, e := range hub.Env {
		isPath := strings.HasPrefix(e.Value, "/etc/lighter-secret/") || e.Value == "/var/lib/lighter-hub"
		if e.ValueFrom != nil || !isPath {
			t.Errorf("the environment has %s: want paths only", e.Name)
		}
	}
	volumes := map[string]bool{"data": true} // a StatefulSet's template of a claim has this name
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
		if v.Secret != nil && *v.Secret.DefaultMode != 0o440 {
			t.Errorf("volume %s has mode %#o, want 0440: every process could read it", v.Name, *v.Secret.DefaultMode)
		}
	}
	for _, m := range hub.VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("there is no volume %s", m.Name)
		}
	}
	const drain = 75 // values.yaml and hub.toml
	if *pod.TerminationGracePeriodSeconds < hub.Lifecycle.PreStop.Sleep.Seconds+drain+10 {
		t.Errorf("the pod has %d s to end, and needs more than preStop and drain_seconds",
			*pod.TerminationGracePeriodSeconds)
	}
	if config, ok := all["ConfigMap lighter-hub"].(*core.ConfigMap); !ok ||
		!strings.Contains(config.Data["hub.toml"], fmt.Sprintf("drain_seconds    = %d", drain)) {
		t.Errorf("hub.toml: %+v, want drain_seconds = %d", config, drain)
	}
}

// The dashboard in the chart is that of deploy/grafana.
func TestChartHasTheDashboard(t *testing.T) {
	want, err := os.ReadFile("../../../deploy/grafana/lighter-hubs.json")
	if err != nil {
		t.Fatal(err)
	}
	config, ok := rendered(t, "dashboard: {enabled: true}")["ConfigMap lighter-hub-dashboard"].(*core.ConfigMap)
	if !ok || !bytes.Equal(bytes.TrimSpace([]byte(config.Data["lighter-hubs.json"])), bytes.TrimSpace(want)) {
		t.Errorf("the chart's dashboard: %+v", config)
	}
}
