package manifests

import (
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

const (
	nodeDir      = "../../../deploy/kubernetes"
	uninstallDir = "../../../deploy/kubernetes/uninstall"
	nodeChart    = "../../../deploy/helm/lighter"
)

// nodeCharted renders the chart of the nodes with values.
func nodeCharted(values string) (text string, err error) { return Helm(nodeChart, "lighter", values) }

// alike are the objects that manifests and chart have in common, apart from what differs on purpose:
// the image's registry, comments of the configuration, and annotations of Helm's hooks.
func alike(t *testing.T, o objects, keep func(key string) bool) map[string]any {
	t.Helper()
	all := map[string]any{}
	for key, object := range o {
		if !keep(key) {
			continue
		}
		text, err := yaml.Marshal(plain(t, object))
		if err != nil {
			t.Fatal(err)
		}
		text = regexp.MustCompile(`image: .*`).ReplaceAll(text, []byte("image: lighter"))
		text = regexp.MustCompile(`(?m)^.*helm\.sh/.*\n`).ReplaceAll(text, nil)
		text = regexp.MustCompile(`(?m)^ *annotations:\n( *creationTimestamp)?`).ReplaceAll(text, []byte("$1"))
		text = regexp.MustCompile(`(?m)^ *annotations: \{\}\n`).ReplaceAll(text, nil)
		all[key] = string(text)
	}
	return all
}

// The chart makes the same objects for the nodes as the manifests.
func TestNodeChartIsLikeTheManifests(t *testing.T) {
	text, err := nodeCharted("")
	if err != nil {
		t.Fatal(err)
	}
	chart, node, uninstall := decode(t, text), built(t, nodeDir), built(t, uninstallDir)
	ofNode := func(key string) bool {
		return strings.Contains(key, " lighter-node") && !strings.HasPrefix(key, "ConfigMap")
	}
	if a, b := alike(t, node, ofNode), alike(t, chart, ofNode); !reflect.DeepEqual(a, b) {
		t.Errorf("kustomize makes\n%s\nthe chart\n%s", a, b)
	}
	ofRemoval := func(key string) bool { return key == "DaemonSet lighter-uninstall" }
	a, b := alike(t, uninstall, ofRemoval), alike(t, chart, ofRemoval)
	// The chart's hook has an account of its own: that of the release is gone then.
	key := "DaemonSet lighter-uninstall"
	b[key] = strings.ReplaceAll(b[key].(string), "serviceAccountName: lighter-uninstall",
		"serviceAccountName: lighter-node")
	if a[key] != b[key] {
		t.Errorf("kustomize makes\n%s\nthe chart\n%s", a[key], b[key])
	}
	if _, ok := node["Namespace lighter"]; !ok || len(uninstall) != 11 {
		t.Errorf("got %q and %q, want the namespace, and the removal's eleven objects", slices.Sorted(maps.Keys(node)),
			slices.Sorted(maps.Keys(uninstall)))
	}
}

// The account of the job that waits for the removal may list nodes. Its pod does not run where the
// removal would wait for it.
func TestRemovalIsAwaited(t *testing.T) {
	text, err := nodeCharted("")
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]objects{"chart": decode(t, text), "kustomize": built(t, uninstallDir)} {
		pod := o["Job lighter-uninstall"].(*batch.Job).Spec.Template.Spec
		required := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		if term := required.NodeSelectorTerms[0].MatchExpressions[0]; term.Key != "lighter/installed" ||
			term.Operator != core.NodeSelectorOpDoesNotExist {
			t.Errorf("%s: the job's pod has the affinity %+v", name, required)
		}
		if pod.NodeSelector[core.LabelOSStable] != "linux" {
			t.Errorf("%s: the job's pod may run on the nodes %v, want those with Linux", name, pod.NodeSelector)
		}
		account := pod.ServiceAccountName
		binding := o["ClusterRoleBinding "+account].(*rbac.ClusterRoleBinding)
		rules := o["ClusterRole "+binding.RoleRef.Name].(*rbac.ClusterRole).Rules
		if o["ServiceAccount "+account] == nil || binding.Subjects[0].Name != account ||
			!slices.ContainsFunc(rules, func(r rbac.PolicyRule) bool {
				return slices.Contains(r.Resources, "nodes") && slices.Contains(r.Verbs, "list")
			}) {
			t.Errorf("%s: the account %s may not list nodes: %+v", name, account, rules)
		}
	}
}

// The pods never carry data: nothing is mounted from them, and nothing is run when they end.
func TestNodePods(t *testing.T) {
	for _, values := range []string{"", "cri: false\ntaint: x/y\ncontainerd: /run/c.sock\nuninstall: {purge: true}\n" +
		"imagePullSecrets: [{name: x}]\npodAnnotations: {a: b}\nnodeSelector: {a: b}\n"} {
		text, err := nodeCharted(values)
		if err != nil {
			t.Fatal(err)
		}
		for key, object := range decode(t, text) {
			d, ok := object.(*apps.DaemonSet)
			if !ok {
				continue
			}
			pod := d.Spec.Template.Spec
			c := pod.Containers[0]
			if c.Lifecycle != nil || !pod.HostPID || !pod.HostNetwork || pod.PriorityClassName != "system-node-critical" ||
				len(pod.Containers)+len(pod.InitContainers) != 1 || c.Resources.Limits.Memory().IsZero() ||
				!*c.SecurityContext.ReadOnlyRootFilesystem || pod.Tolerations[0].Operator != core.TolerationOpExists {
				t.Errorf("%s: got the pod %+v", key, pod)
			}
			for _, m := range c.VolumeMounts {
				if m.MountPropagation != nil && *m.MountPropagation == core.MountPropagationBidirectional {
					t.Errorf("%s: a mount of the pod would reach the machine", key)
				}
			}
			given := strings.Join(c.Args, " ")
			for flag, from := range map[string]string{"--cri=false": "install", "--taint=x/y": "install",
				"--containerd=/run/c.sock": "", "--purge": "uninstall"} {
				if want := values != "" && strings.HasPrefix(given, from); strings.Contains(given, flag) != want {
					t.Errorf("%s: got the arguments %s, want %s in them: %t", key, given, flag, want)
				}
			}
		}
	}
}

// Prometheus scrapes the machines of the daemon set's pods, which have their addresses. Manifests and
// chart make the same objects for that, and none without the component.
func TestNodesAreScraped(t *testing.T) {
	text, err := nodeCharted("serviceMonitor: {enabled: true}\n")
	if err != nil {
		t.Fatal(err)
	}
	chart, node := decode(t, text), withComponents(t, nodeDir, "node", "monitoring")
	keys := []string{"Service lighter-node", "ServiceMonitor lighter-node"}
	of := func(key string) bool { return slices.Contains(keys, key) }
	if a, b := alike(t, node, of), alike(t, chart, of); !reflect.DeepEqual(a, b) || len(a) != len(keys) {
		t.Fatalf("kustomize makes\n%s\nthe chart\n%s\nwant the same two objects", a, b)
	}
	pods := node["DaemonSet lighter-node"].(*apps.DaemonSet).Spec.Template
	service := node[keys[0]].(*core.Service)
	endpoints := node[keys[1]].(*monitoring.ServiceMonitor).Spec.Endpoints
	if !contains(pods.Labels, service.Spec.Selector) || !pods.Spec.HostNetwork || len(endpoints) != 1 ||
		endpoints[0].Port != service.Spec.Ports[0].Name || endpoints[0].Path != "/metrics" ||
		!contains(service.Labels, node[keys[1]].(*monitoring.ServiceMonitor).Spec.Selector.MatchLabels) {
		t.Errorf("the endpoints %+v of the service %+v are not those of the pods %v", endpoints, service.Spec, pods.Labels)
	}
	for name, o := range map[string]objects{"uninstall": built(t, uninstallDir), "node": built(t, nodeDir)} {
		d, ok := o["DaemonSet lighter-uninstall"].(*apps.DaemonSet)
		if ok && contains(d.Spec.Template.Labels, service.Spec.Selector) || o[keys[0]] != nil || o[keys[1]] != nil {
			t.Errorf("%s: its pods are scraped, too", name)
		}
	}
}

// contains reports whether labels have all labels of a selector.
func contains(labels, selector map[string]string) bool {
	return !slices.ContainsFunc(slices.Collect(maps.Keys(selector)), func(key string) bool {
		return labels[key] != selector[key]
	})
}

// The chart is good for Helm's linter, and values that make no sense are refused.
func TestNodeChart(t *testing.T) {
	checkLint(t, nodeChart)
	for _, values := range []string{"taint: \"\"", "confg: x", "uninstall: {timeout: 5}", "containerd: run/x",
		"config: \"\"", "serviceMonitor: {port: x}", "podMonitor: {enabled: true}"} {
		if text, err := nodeCharted(values); err == nil {
			t.Errorf("%s: got no error, but\n%s", values, text)
		}
	}
}
