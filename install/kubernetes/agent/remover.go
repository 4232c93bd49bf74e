package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"lighter/sleep"
)

// Remove removes Lighter from this node, and returns when the machine does the rest by itself. It
// waits for containers that use the node, says which ones, and leaves them alone.
func (a *Agent) Remove(ctx context.Context) error {
	for failures := 0; ; failures++ {
		err := a.remove(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		a.Log.Warn("Lighter is not removed yet", "err", err)
		pause := a.Every
		if waits := (*inUseError)(nil); !errors.As(err, &waits) {
			pause = retry.After(failures)
		}
		if !sleep.For(ctx, pause) {
			return nil
		}
	}
}

// inUseError says which containers have to go first.
type inUseError struct{ users []string }

func (e *inUseError) Error() string {
	return fmt.Sprintf("%s use Lighter, and have to be removed first (kubectl drain): they run on until then",
		strings.Join(e.users, ", "))
}

func (a *Agent) remove(ctx context.Context) error {
	n, err := a.API.Node(ctx, a.Node)
	if err != nil {
		return err
	}
	a.reported = n.condition(ConditionType)
	if a.reported.Reason != inUse { // nothing has changed since the last try
		if err := a.report(ctx, "False", removing, "Lighter is being removed"); err != nil {
			return err
		}
	}
	r := a.Machine.Withdraw(context.WithoutCancel(ctx), a.Pod)
	switch {
	case r.Error != "":
		a.fail(ctx, n, failed, r.Error)
		return errors.New(r.Error)
	case len(r.Users) > 0:
		waits := &inUseError{r.Users}
		a.fail(ctx, n, inUse, waits.Error())
		return waits
	}
	if r := a.Machine.Hand(context.WithoutCancel(ctx)); r.Error != "" {
		a.fail(ctx, n, failed, r.Error)
		return errors.New(r.Error)
	}
	a.event(ctx, n, "Normal", uninstalled,
		"The machine removes Lighter when this pod is gone (journalctl -u lighter-uninstall)")
	a.isReady.Store(true)
	if err := a.API.RemoveCondition(ctx, a.Node, ConditionType); err != nil {
		return err
	}
	if err := a.annotate(ctx, ""); err != nil {
		return err
	}
	// Last: without this label, the daemon set has no pod on this node any more.
	return a.API.Label(ctx, a.Node, map[string]*string{ReadyLabel: nil, InstalledLabel: nil})
}

// Await waits until no node has the label of Lighter: each one has handed the removal over to its
// machine, which removes the rest when the pod is gone. Nobody tells the API server when that has
// ended. If the context ends before, the error says which nodes have the label, and why.
func Await(ctx context.Context, api *API, every time.Duration) error {
	var last error // of the last answer
	for {
		nodes, err := api.Nodes(ctx, InstalledLabel)
		switch {
		case err == nil && len(nodes) == 0:
			return nil
		case err == nil:
			var waits []string
			for _, n := range nodes {
				waits = append(waits, n.Metadata.Name+": "+n.condition(ConditionType).Message)
			}
			last = errors.New("Lighter is still installed on: " + strings.Join(waits, "; "))
		case ctx.Err() == nil || last == nil:
			last = err
		}
		if !sleep.For(ctx, every) {
			return last
		}
	}
}
