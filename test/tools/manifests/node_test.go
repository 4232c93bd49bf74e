package manifests

import (
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

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

// The chart is good for Helm's linter, and values that make no sense are refused.
func TestNodeChart(t *testing.T) {
	checkLint(t, nodeChart)
	for _, values := range []string{"taint: \"\"", "confg: x", "uninstall: {timeout: 5}", "containerd: run/x",
		"config: \"\""} {
		if text, err := nodeCharted(values); err == nil {
			t.Errorf("%s: got no error, but\n%s", values, text)
		}
	}
}
