package manifests

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// kinds has a new object of each kind.
var kinds = map[string]func() any{
	"v1 Namespace":      func() any { return new(core.Namespace) },
	"v1 ConfigMap":      func() any { return new(core.ConfigMap) },
	"v1 Service":        func() any { return new(core.Service) },
	"v1 ServiceAccount": func() any { return new(core.ServiceAccount) },
	"apps/v1 DaemonSet": func() any { return new(apps.DaemonSet) },
	"batch/v1 Job":      func() any { return new(batch.Job) },
	"rbac.authorization.k8s.io/v1 ClusterRole":        func() any { return new(rbac.ClusterRole) },
	"rbac.authorization.k8s.io/v1 ClusterRoleBinding": func() any { return new(rbac.ClusterRoleBinding) },
	"rbac.authorization.k8s.io/v1 Role":               func() any { return new(rbac.Role) },
	"rbac.authorization.k8s.io/v1 RoleBinding":        func() any { return new(rbac.RoleBinding) },
	"apps/v1 Deployment":                              func() any { return new(apps.Deployment) },
	"apps/v1 StatefulSet":                             func() any { return new(apps.StatefulSet) },
	"policy/v1 PodDisruptionBudget":                   func() any { return new(policy.PodDisruptionBudget) },
	"networking.k8s.io/v1 Ingress":                    func() any { return new(networking.Ingress) },
	"networking.k8s.io/v1 NetworkPolicy":              func() any { return new(networking.NetworkPolicy) },
	"monitoring.coreos.com/v1 PodMonitor":             func() any { return new(monitoring.PodMonitor) },
	"monitoring.coreos.com/v1 ServiceMonitor":         func() any { return new(monitoring.ServiceMonitor) },
	"monitoring.coreos.com/v1 PrometheusRule":         func() any { return new(monitoring.PrometheusRule) },
}

// objects has decoded objects by kind and name.
type objects map[string]any

// decode decodes the documents of a YAML text strictly: an unknown field is an error.
func decode(t *testing.T, text string) objects {
	t.Helper()
	all := objects{}
	for _, document := range regexp.MustCompile(`(?m)^---$`).Split(text, -1) {
		var head struct {
			APIVersion string
			Kind       string
			Metadata   struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(document), &head); err != nil {
			t.Fatalf("%v:\n%s", err, document)
		}
		if head.Kind == "" {
			continue
		}
		kind := kinds[head.APIVersion+" "+head.Kind]
		if kind == nil {
			t.Fatalf("an object of an unknown kind: %s %s", head.APIVersion, head.Kind)
		}
		object := kind()
		if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
			t.Errorf("%s %s: %v:\n%s", head.Kind, head.Metadata.Name, err, document)
		}
		all[head.Kind+" "+head.Metadata.Name] = object
	}
	return all
}

// generatedName matches the names of generated ConfigMaps, which end with a digest of their contents.
var generatedName = regexp.MustCompile(`\b(lighter-[a-z]+)-[a-z0-9]{10}\b`)

// built builds a directory as kubectl does.
func built(t *testing.T, dir string) objects {
	t.Helper()
	dir, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := all.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, generatedName.ReplaceAllString(string(text), "$1"))
}

// checkLint fails the test if Helm's linter finds something in a chart.
func checkLint(t *testing.T, dir string) {
	t.Helper()
	for _, message := range lint.RunAll(dir, nil, "lighter").Messages {
		if message.Severity > 1 { // 1 is for information
			t.Errorf("lint: %s", message)
		}
	}
}

// plain returns an object as maps, without what only one of kustomize and Helm adds.
func plain(t *testing.T, object any) any {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	// The chart's version of the image is in values.yaml, and kustomize's in kustomization.yaml.
	text = regexp.MustCompile(`"lighter:[0-9.]+"`).ReplaceAll(text, []byte(`"lighter"`))
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	var clean func(v any)
	clean = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, each := range v {
				clean(each)
			}
		case map[string]any:
			for _, key := range []string{"app.kubernetes.io/instance", "app.kubernetes.io/version",
				"app.kubernetes.io/managed-by", "app.kubernetes.io/part-of", "helm.sh/chart", "checksum/config",
				"imagePullPolicy", "namespace"} {
				delete(v, key)
			}
			for key, each := range v {
				clean(each)
				if empty, ok := each.(map[string]any); ok && len(empty) == 0 {
					delete(v, key)
				}
			}
		}
	}
	clean(v)
	return v
}
