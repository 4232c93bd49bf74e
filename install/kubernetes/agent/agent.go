// Package agent is the process of the pod that installs Lighter on a node of a Kubernetes cluster,
// and of the pod that removes it. It runs package kubernetes on the machine, in a child process
// below the machine's root, and tells the cluster the state of the node: by a label, a condition
// and events, and by removing a taint.
//
// It promises that no container depends on it: it carries no data, and ends at any moment without
// an effect on the machine. It does not interrupt an installation that has begun, as long as the
// kubelet lets it.
//
// The pod needs the machine's root directory and process IDs, and runs as root: it installs
// services of the machine.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"lighter/node/control"
	"lighter/sleep"
)

// Names that operators see. docs/runtimes/kubernetes.md explains them.
const (
	ReadyLabel     = "lighter/ready"     // "true" while images are lazy on the node
	InstalledLabel = "lighter/installed" // "true" from the beginning of the installation to the end of the removal
	DefaultTaint   = "lighter/not-ready" // of nodes on which pods have to wait for Lighter
	ConditionType  = "LighterReady"
)

// Reasons of the condition, and of events.
const (
	installing  = "Installing"
	installed   = "Installed"
	ready       = "Ready"
	failed      = "InstallationFailed"
	rolledBack  = "RolledBack"
	notReady    = "NodeNotReady"
	notServing  = "NotServing"
	notLazy     = "NotLazy"
	removing    = "Removing"
	inUse       = "InUse"
	uninstalled = "Uninstalled"
)

// Agent keeps Lighter installed on one node.
type Agent struct {
	API     *API
	Node    string  // the name of this node
	Host    string  // the machine's root directory, as this process sees it
	Machine Machine // carries out what changes the machine
	Taint   string  // the key of the taint that is removed when the node serves
	Pod     string  // the UID of this pod
	Log     *slog.Logger

	Every time.Duration // between two examinations of the node

	isReady   atomic.Bool
	reported  Condition // as the API server has it
	root      string    // of Lighter's node
	untainted bool
	annotated *string // the annotation that was set last; nil: not known
}

// Intervals and bounds.
const (
	heartbeat    = 5 * time.Minute  // between two reports of the same condition
	readyTimeout = 5 * time.Minute  // for the node to become Ready after containerd was restarted
	afterFailure = 10 * time.Minute // before an installation that was rolled back is looked at again
	// The machine is examined for lost parts after so many examinations of the node: all of them,
	// or successive ones that got no answer.
	maxExaminations = 10
	maxSilent       = 2
)

var retry = sleep.Backoff{First: 5 * time.Second, Most: 5 * time.Minute}

// Handler answers /readyz, for the rollout of the daemon set, and /healthz.
func (a *Agent) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !a.isReady.Load() {
			http.Error(w, "Lighter is not installed, or its node does not serve", http.StatusServiceUnavailable)
		}
	})
	return mux
}

// Run installs Lighter, and then keeps the node's label and condition true until the context ends.
// It returns nil then. What the machine loses meanwhile is installed again.
func (a *Agent) Run(ctx context.Context) error {
	for again := false; a.untilInstalled(ctx, again) && a.watch(ctx); again = true {
	}
	return nil
}

// untilInstalled tries to install Lighter until it succeeds. It returns false when the context
// ends.
func (a *Agent) untilInstalled(ctx context.Context, again bool) bool {
	for failures := 0; ; failures++ {
		pause, err := a.install(ctx, again)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		a.Log.Error("installation failed", "err", err)
		if !sleep.For(ctx, max(pause, retry.After(failures))) {
			return false
		}
	}
}

// watch examines the node until it is time to look for what the machine may have lost. It returns
// false when the context ends.
func (a *Agent) watch(ctx context.Context) bool {
	for silent, n := 0, 0; silent < maxSilent && n < maxExaminations; n++ {
		reason, err := a.examine(ctx)
		if err != nil && ctx.Err() == nil {
			a.Log.Warn("report to the Kubernetes API failed", "err", err)
		}
		if silent++; reason != notServing {
			silent = 0
		}
		if !sleep.For(ctx, a.Every) {
			return false
		}
	}
	return true
}

// install installs Lighter and waits for the node. pause is how long it makes no sense to try
// again.
func (a *Agent) install(ctx context.Context, again bool) (pause time.Duration, err error) {
	n, apiErr := a.API.Node(ctx, a.Node)
	if apiErr == nil {
		a.reported = n.condition(ConditionType)
		yes := "true"
		apiErr = a.API.Label(ctx, a.Node, map[string]*string{InstalledLabel: &yes})
	}
	// What is lost is installed without the API server, too: its image may be lazy, and need the
	// node.
	if apiErr != nil && !again {
		return 0, apiErr
	}
	// The end of this pod does not interrupt the installation: the next pod would have to repeat
	// it.
	r := a.Machine.Install(context.WithoutCancel(ctx), again)
	for _, note := range r.Notes {
		a.Log.Info("installation", "note", note)
	}
	switch {
	case r.Error != "" && r.RolledBack:
		a.fail(ctx, n, rolledBack, r.Error)
		return afterFailure, errors.New(r.Error)
	case r.Error != "":
		a.fail(ctx, n, failed, r.Error)
		return 0, errors.New(r.Error)
	}
	a.root = r.Root
	if len(r.Done) > 0 {
		a.Log.Info("installed", "distribution", r.Distribution, "done", r.Done)
		a.event(ctx, n, "Normal", installed, "Lighter was installed ("+r.Distribution+"): "+strings.Join(r.Done, ", "))
	}
	if apiErr != nil {
		return 0, apiErr
	}
	if again && len(r.Done) == 0 {
		return 0, nil // nothing was lost
	}
	if err := a.awaitNode(ctx); err != nil {
		a.fail(ctx, n, notReady, err.Error())
		return 0, err
	}
	return 0, nil
}

// fail reports why Lighter is not installed.
func (a *Agent) fail(ctx context.Context, n Node, reason, message string) {
	if a.reported.Reason != reason || a.reported.Message != bounded(message) {
		a.event(ctx, n, "Warning", reason, message)
	}
	if err := a.report(ctx, "False", reason, message); err != nil {
		a.Log.Warn("report to the Kubernetes API failed", "err", err)
	}
}

// event reports an event. Without it, nothing is wrong with the node.
func (a *Agent) event(ctx context.Context, n Node, kind, reason, message string) {
	if err := a.API.Event(ctx, n, kind, reason, message); err != nil {
		a.Log.Warn("report of an event failed", "reason", reason, "err", err)
	}
}

// awaitNode waits until the kubelet says that the node is Ready.
func (a *Agent) awaitNode(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		n, err := a.API.Node(ctx, a.Node)
		c := n.condition("Ready")
		if err == nil && c.Status == "True" {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("the node %s is not Ready: %s", a.Node, c.Message)
		}
		if !sleep.For(ctx, time.Second) {
			return err
		}
	}
}

// examine asks Lighter's node for its state, and reports it. It returns the state's reason, also if
// it cannot be reported.
func (a *Agent) examine(ctx context.Context) (reason string, err error) {
	status, reason, message, images := a.state(ctx)
	if err := a.report(ctx, status, reason, message); err != nil {
		return reason, err
	}
	if err := a.annotate(ctx, images); err != nil {
		return reason, err
	}
	if reason == notServing || a.untainted {
		return reason, nil
	}
	removed, err := a.API.Untaint(ctx, a.Node, a.Taint)
	if removed {
		a.Log.Info("taint removed", "key", a.Taint)
	}
	a.untainted = err == nil
	return reason, err
}

// statusTimeout bounds the wait for the state of Lighter's node.
const statusTimeout = 10 * time.Second

// state returns the condition of Lighter's node, and the annotation about its images.
func (a *Agent) state(ctx context.Context) (status, reason, message, annotation string) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	s, err := control.New(filepath.Join(a.Host, a.root)).Status(ctx)
	switch {
	case err != nil:
		return "False", notServing, err.Error(), ""
	case s.NotLazy != "":
		return "False", notLazy, s.NotLazy, images(s)
	}
	return "True", ready, "Lighter " + s.Version + " serves images", images(s)
}

// report sets condition and label, if they have changed or the last report is old.
func (a *Agent) report(ctx context.Context, status, reason, message string) error {
	a.isReady.Store(status == "True")
	now := time.Now().UTC().Truncate(time.Second)
	c := Condition{ConditionType, status, reason, bounded(message), now, a.reported.Transition}
	if c.Status != a.reported.Status {
		c.Transition = now
	}
	if old := a.reported; old.Status == status && old.Reason == reason && old.Message == c.Message &&
		now.Sub(old.Heartbeat) < heartbeat {
		return nil
	}
	if status != a.reported.Status {
		a.Log.Info("the node's condition has changed", "status", status, "reason", reason, "message", message)
	}
	var label *string // no label
	if yes := "true"; status == "True" {
		label = &yes
	}
	if err := a.API.Label(ctx, a.Node, map[string]*string{ReadyLabel: label}); err != nil {
		return err
	}
	if err := a.API.SetCondition(ctx, a.Node, c); err != nil {
		return err
	}
	a.reported = c
	return nil
}
