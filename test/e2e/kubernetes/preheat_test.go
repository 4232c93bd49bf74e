//go:build kubernetes

package kubernetes

import (
	"encoding/json"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"lighter/node/preheat"
	"lighter/nodejobs"
	"lighter/test/testkit/cluster"
	"lighter/test/testkit/images"
	"lighter/test/testkit/site"
)

// rights are the permissions that docs/runtimes/kubernetes.md names for the user who preheats.
const rights = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: preheats}
rules:
- {apiGroups: [""], resources: [nodes], verbs: [list]}
- {apiGroups: [apps], resources: [daemonsets], verbs: [list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: preheats}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: preheats}
subjects: [{kind: User, name: ` + cluster.User + `}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: preheats, namespace: lighter}
rules:
- {apiGroups: [batch], resources: [jobs], verbs: [create, get, list, delete]}
- {apiGroups: [""], resources: [pods, events], verbs: [list]}
- {apiGroups: [""], resources: [pods/log], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: preheats, namespace: lighter}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: preheats}
subjects: [{kind: User, name: ` + cluster.User + `}]
`

// absent is a node without a kubelet. No daemon set has a pod on it.
var absent = object{"apiVersion": "v1", "kind": "Node",
	"metadata": object{"name": "absent", "labels": object{"pool": "tools"}}}

// preheated preheats an image as a user who has just the documented permissions. Each node gets its
// job, and the jobs are removed. What fails is reported for its node.
func (f *fleet) preheated(t *testing.T) {
	f.kubectl(t, rights, "apply", "-f", "-")
	f.kubectl(t, "", "label", "node", cluster.Node, "pool=tools")
	f.apply(t, absent)
	if _, err := f.s.Machine.Lighter(t.Context(), "cache", "evict", python); err != nil {
		t.Fatal(err)
	}
	var results []nodejobs.Result
	moved := images.Received(t, f.s, func() { results = f.preheat(t, "pool=tools", "python:latest") })
	var p preheat.Progress
	if len(results) != 2 || results[0].Node != "absent" || results[0].State != nodejobs.Failed ||
		!strings.Contains(results[0].Error, "not ready") || results[1].State != nodejobs.Done ||
		json.Unmarshal(results[1].Answer, &p) != nil || p.Cached == 0 || p.Cached != p.All {
		t.Errorf("got %+v, want a failure of the node without a kubelet, and all chunks on %s", results, cluster.Node)
	}
	t.Logf("preheated %d bytes: the machine received %d", p.Cached, moved)
	if moved < 1<<20 { // what no other image has
		t.Errorf("the machine received %d bytes, want the startup packs", moved)
	}
	f.kubectl(t, "", "delete", "node", "absent")
	results = f.preheat(t, "kubernetes.io/hostname="+cluster.Node, "unknown:latest")
	if len(results) != 1 || results[0].State != nodejobs.Failed ||
		!strings.Contains(results[0].Error, "unknown:latest") {
		t.Errorf("an unknown image: got %+v, want a failure that names it", results)
	}
	await(t, "the removal of the jobs with their pods", func() bool {
		return f.kubectl(t, "", "-n", "lighter", "get", "jobs,pods", "-l", "lighter/node-job", "-o", "name") == ""
	})
}

// preheat preheats an image on nodes, sorted by name. It fails the test unless the exit code says
// that one of them has failed.
func (f *fleet) preheat(t *testing.T, nodes, image string) (results []nodejobs.Result) {
	t.Helper()
	binary, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary, "preheat", "--json", "--root", f.s.Machine.NodeRoot(), "--nodes",
		nodes, "--timeout", limit.String(), image)
	cmd.Env = f.c.Environment()
	out, err := cmd.Output()
	exit := (*exec.ExitError)(nil)
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("preheat on %s: got %v: %s; want exit code 1", nodes, err, out)
	}
	t.Logf("preheat says: %s", exit.Stderr)
	if err := json.Unmarshal(out, &results); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	slices.SortFunc(results, func(a, b nodejobs.Result) int { return strings.Compare(a.Node, b.Node) })
	return results
}
