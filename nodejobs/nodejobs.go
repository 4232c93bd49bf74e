// Package nodejobs runs a subcommand of lighter on nodes of a Kubernetes cluster, beside the nodes'
// daemons: a job for each node, whose pod sees the daemon's root. It speaks to the cluster through
// the user's kubectl, so it has the user's credentials and permissions, and no others. The user
// needs these:
//
//   - of the cluster: list nodes; list daemonsets.apps, unless namespace and image are given
//   - in the namespace of the jobs: create, get, list and delete jobs.batch; list pods; get
//     pods/log; list events, for the reasons why pods do not start
//
// The jobs see the daemons' root, so a user with these permissions is root on the nodes.
//
// The jobs are removed at the end, also after an interrupt. Those of a program that was killed end
// by themselves after Options.Timeout, and the cluster removes them an hour later.
package nodejobs

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lighter/sleep"
)

const (
	// jobLabel has the same value for all jobs of one Run.
	jobLabel = "lighter/node-job"
	// installed has the labels of the daemon set of deploy/kubernetes, and of the chart.
	installed = "app.kubernetes.io/name=lighter,app.kubernetes.io/component=node"

	pollInterval  = 2 * time.Second
	maxPolls      = 30 // that fail in a row
	removeTimeout = 30 * time.Second
	keepSeconds   = 3600 // after a job's end
	maxLog        = 64 << 10
)

// Options say what to run, and where.
type Options struct {
	Context   string        // of kubectl's configuration; empty: the current one
	Selector  string        // of nodes, as `kubectl get nodes --selector` takes it; empty: all nodes
	Namespace string        // of the jobs; empty: that of the installed daemon set
	Image     string        // the installer image; empty: that of the installed daemon set
	Root      string        // the daemons' root on each node
	Args      []string      // the subcommand and its arguments
	Timeout   time.Duration // of each job
}

// Result is what has happened on a node.
type Result struct {
	Node   string          `json:"node"`
	State  string          `json:"state"`            // Running, Done or Failed
	Error  string          `json:"error,omitempty"`  // why it has failed, or has not begun to run
	Answer json.RawMessage `json:"answer,omitempty"` // the JSON object that the subcommand printed
}

// States of a node's job.
const (
	Running = "running"
	Done    = "done"
	Failed  = "failed"
)

// Run runs the subcommand on each selected node. It calls report when the state of a node has
// changed, or the reason why it does not run there yet. The error does not include failures on
// single nodes.
func Run(ctx context.Context, o Options, report func(Result)) ([]Result, error) {
	r := run{Options: o}
	nodes, err := r.nodes(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.complete(ctx); err != nil {
		return nil, err
	}
	id := make([]byte, 5)
	if _, err := rand.Read(id); err != nil {
		return nil, err
	}
	r.id = hex.EncodeToString(id)
	var jobs []any
	for i, n := range nodes {
		if n.State == Running {
			jobs = append(jobs, r.job(i, n.Node))
		} else {
			report(n)
		}
	}
	if len(jobs) > 0 {
		defer r.remove()
		list := map[string]any{"apiVersion": "v1", "kind": "List", "items": jobs}
		if _, err := r.kubectl(ctx, list, "create", "-f", "-"); err != nil {
			return nil, err
		}
	}
	return nodes, r.follow(ctx, nodes, report)
}

// run is a Run.
type run struct {
	Options
	id      string
	secrets []secret // with which the cluster pulls the image
}

// kubectl runs kubectl, and returns its output. input is its standard input, as JSON, unless it is
// nil.
func (r *run) kubectl(ctx context.Context, input any, args ...string) ([]byte, error) {
	if r.Context != "" {
		args = append(args, "--context", r.Context)
	}
	if r.Namespace != "" {
		args = append(args, "--namespace", r.Namespace)
	}
	cmd := exec.CommandContext(ctx, "kubectl", args...)
	if input != nil {
		text, err := json.Marshal(input)
		if err != nil {
			return nil, err
		}
		cmd.Stdin = bytes.NewReader(text)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, errors.New("the cluster is reached through kubectl, and there is no kubectl in PATH")
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		// Before its last line, kubectl logs each of its attempts.
		return nil, fmt.Errorf("kubectl %s: %w: %s", args[0], err, lastLine(bytes.TrimSpace(stderr.Bytes())))
	}
	return out, nil
}

// list returns objects of the cluster.
func list[T any](ctx context.Context, r *run, args ...string) ([]T, error) {
	out, err := r.kubectl(ctx, nil, append(append([]string{"get"}, args...), "--output", "json")...)
	if err != nil {
		return nil, err
	}
	var found struct{ Items []T }
	if err := json.Unmarshal(out, &found); err != nil {
		return nil, fmt.Errorf("read what kubectl says about %s: %w", args[0], err)
	}
	return found.Items, nil
}

// condition is one condition of an object.
type condition struct{ Type, Status, Message string }

// holds returns the condition of a type, if it holds.
func holds(all []condition, kind string) (condition, bool) {
	for _, c := range all {
		if c.Type == kind {
			return c, c.Status == "True"
		}
	}
	return condition{}, false
}

// nodes returns the selected nodes. Those that are not ready have failed already.
func (r *run) nodes(ctx context.Context) (nodes []Result, err error) {
	type node struct {
		Metadata struct{ Name string }
		Status   struct{ Conditions []condition }
	}
	found, err := list[node](ctx, r, "nodes", "--selector", r.Selector)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("the cluster has no node with the labels %q", r.Selector)
	}
	for _, n := range found {
		result := Result{Node: n.Metadata.Name, State: Running}
		if why, ready := holds(n.Status.Conditions, "Ready"); !ready {
			result.State, result.Error = Failed, "the node is not ready: "+why.Message
		}
		nodes = append(nodes, result)
	}
	return nodes, nil
}

// set is an installed daemon set.
type set struct {
	Metadata struct{ Name, Namespace string }
	Spec     struct {
		Template struct {
			Spec struct {
				Containers       []struct{ Image string }
				ImagePullSecrets []secret
			}
		}
	}
}

// complete takes the namespace and the image from the installed daemon set, unless they are given,
// and the secrets with which the cluster pulls the set's image. If there are several sets, that in
// the given namespace is meant.
func (r *run) complete(ctx context.Context) error {
	found, err := list[set](ctx, r, "daemonsets", "--all-namespaces", "--selector", installed)
	isGiven := r.Namespace != "" && r.Image != ""
	if err != nil && !isGiven {
		return err
	}
	found = slices.DeleteFunc(found, func(s set) bool { return len(s.Spec.Template.Spec.Containers) == 0 })
	elsewhere := func(s set) bool { return s.Metadata.Namespace != r.Namespace }
	if near := slices.DeleteFunc(slices.Clone(found), elsewhere); len(near) > 0 {
		found = near
	}
	switch {
	case len(found) != 1 && isGiven:
		return nil
	case len(found) == 0:
		return fmt.Errorf("the cluster has no daemon set with the labels %s: name the installer image with --image "+
			"and a namespace with --namespace", installed)
	case len(found) > 1:
		return fmt.Errorf("the cluster has several daemon sets with the labels %s (%s): choose one with --namespace, "+
			"or give --namespace and --image", installed, strings.Join(setNames(found), ", "))
	}
	r.Namespace = cmp.Or(r.Namespace, found[0].Metadata.Namespace)
	r.Image = cmp.Or(r.Image, found[0].Spec.Template.Spec.Containers[0].Image)
	if !elsewhere(found[0]) {
		r.secrets = found[0].Spec.Template.Spec.ImagePullSecrets
	}
	return nil
}

func setNames(sets []set) (names []string) {
	for _, s := range sets {
		names = append(names, s.Metadata.Namespace+"/"+s.Metadata.Name)
	}
	return names
}

// secret is a reference to a Secret of the cluster.
type secret struct {
	Name string `json:"name"`
}

// name returns the name of the job of the node with that number.
func (r *run) name(number int) string {
	return fmt.Sprintf("lighter-%s-%s-%d", r.Args[0], r.id, number)
}

// job returns the job for a node. Its pod bypasses the scheduler, so it also runs on nodes that
// take no pods. It may use nothing of the node but the daemon's root, in which the control socket
// is.
func (r *run) job(number int, node string) any {
	type object = map[string]any
	labels := object{jobLabel: r.id}
	container := object{"name": "lighter", "image": r.Image, "imagePullPolicy": "IfNotPresent",
		"args": append(slices.Clone(r.Args), "--root", r.Root),
		"securityContext": object{"runAsUser": 0, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
			"capabilities":   object{"drop": []string{"ALL"}},
			"seLinuxOptions": object{"type": "spc_t"}}, // else SELinux denies the socket; no effect without SELinux
		"resources":    object{"requests": object{"cpu": "10m", "memory": "32Mi"}, "limits": object{"memory": "256Mi"}},
		"volumeMounts": []object{{"name": "root", "mountPath": r.Root, "readOnly": true}}}
	return object{"apiVersion": "batch/v1", "kind": "Job",
		"metadata": object{"name": r.name(number), "labels": labels},
		"spec": object{"backoffLimit": 1, "ttlSecondsAfterFinished": keepSeconds,
			"activeDeadlineSeconds": int(r.Timeout.Seconds()),
			"template": object{"metadata": object{"labels": labels}, "spec": object{
				"nodeName": node, "restartPolicy": "Never", "automountServiceAccountToken": false,
				"hostNetwork": true, "terminationGracePeriodSeconds": 1,
				"tolerations": []object{{"operator": "Exists"}}, "imagePullSecrets": r.secrets,
				"containers": []object{container},
				"volumes": []object{{"name": "root",
					"hostPath": object{"path": filepath.Clean(r.Root), "type": "Directory"}}}}}}}
}

// follow waits until the jobs have ended, and completes the results.
func (r *run) follow(ctx context.Context, nodes []Result, report func(Result)) error {
	type job struct {
		Metadata struct{ Name string }
		Status   struct{ Conditions []condition }
	}
	made, failures := time.Now(), 0
	for slices.ContainsFunc(nodes, func(n Result) bool { return n.State == Running }) {
		if !sleep.For(ctx, pollInterval) {
			return context.Cause(ctx)
		}
		selector := jobLabel + "=" + r.id
		pods, err := list[pod](ctx, r, "pods", "--selector", selector)
		var jobs []job
		if err == nil {
			jobs, err = list[job](ctx, r, "jobs", "--selector", selector)
		}
		if failures++; err != nil && failures < maxPolls && ctx.Err() == nil {
			continue // the jobs go on without an API server
		}
		if err != nil {
			return err
		}
		failures = 0
		for i := range nodes {
			if nodes[i].State != Running {
				continue
			}
			changed := false
			at := slices.IndexFunc(jobs, func(j job) bool { return j.Metadata.Name == r.name(i) })
			if at < 0 {
				nodes[i].State, nodes[i].Error = Failed, "somebody has removed the job"
			} else if _, ok := holds(jobs[at].Status.Conditions, "Complete"); ok {
				nodes[i].State, nodes[i].Error = Done, ""
				log, err := r.log(ctx, i)
				if nodes[i].Answer = answerIn(log); err != nil {
					nodes[i].Error = "what it has printed cannot be read: " + err.Error()
				}
			} else if why, ok := holds(jobs[at].Status.Conditions, "Failed"); ok {
				nodes[i].State = Failed
				log, _ := r.log(ctx, i) // a pod that did not start has printed nothing
				nodes[i].Error = cmp.Or(lastLine(log), why.Message)
			} else if w := waits(pods, r.name(i)); w != nil {
				changed = r.noteWaiting(ctx, &nodes[i], w, time.Since(made))
			} else if nodes[i].Error != "" {
				nodes[i].Error, changed = "", true // it runs now
			}
			if changed || nodes[i].State != Running {
				report(nodes[i])
			}
		}
	}
	return nil
}

// answerIn returns the JSON object that a pod has printed, or nil. A pod's log has standard error,
// too: lines about progress, which begin with other bytes than an indented object. They may come
// before it, after it and between its lines, because two goroutines of the runtime write the log.
func answerIn(log []byte) json.RawMessage {
	var text []byte
	for line := range bytes.Lines(log) {
		if bytes.IndexByte([]byte("{ }"), line[0]) >= 0 {
			text = append(text, line...)
		}
	}
	for text = bytes.TrimSpace(text); len(text) > 0; {
		if text[0] == '{' && json.Valid(text) {
			return text
		}
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	return nil
}

// log returns what a job's pod has printed.
func (r *run) log(ctx context.Context, number int) ([]byte, error) {
	out, err := r.kubectl(ctx, nil, "logs", "job/"+r.name(number), "--limit-bytes", fmt.Sprint(maxLog))
	return bytes.TrimSpace(out), err
}

func lastLine(log []byte) string { return string(log[bytes.LastIndexByte(log, '\n')+1:]) }

// remove removes the jobs, also after an interrupt.
func (r *run) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	// If it fails, the cluster removes the jobs later.
	_, _ = r.kubectl(ctx, nil, "delete", "jobs", "--selector", jobLabel+"="+r.id, "--wait=false")
}
