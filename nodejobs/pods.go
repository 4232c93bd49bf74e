package nodejobs

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

const (
	// StartTimeout is how long a job's pod may take until it runs. Then the job has failed.
	StartTimeout = 5 * time.Minute
	// usualStart is how long a pod may wait for a usual reason before this is reported.
	usualStart = 30 * time.Second
)

// pod is a pod of a job.
type pod struct {
	Metadata struct {
		Name   string
		Labels map[string]string
	}
	Status struct {
		Phase, Reason, Message string
		ContainerStatuses      []struct {
			State struct {
				Waiting *struct{ Reason, Message string }
			}
		}
	}
}

// waiting says why a job runs nothing yet.
type waiting struct {
	pod   string // empty: there is none
	why   string
	usual bool // each pod waits for this at first
}

// waits returns why the job with a name runs nothing yet, or nil if one of its pods has started.
func waits(pods []pod, job string) *waiting {
	w := &waiting{why: "the cluster has made no pod for it", usual: true}
	for _, p := range pods {
		if p.Metadata.Labels["job-name"] != job {
			continue
		}
		if p.Status.Phase != "Pending" {
			return nil
		}
		w = &waiting{pod: p.Metadata.Name, usual: true,
			why: cmp.Or(p.Status.Message, p.Status.Reason, "the node's kubelet has not taken it")}
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Waiting == nil {
				return nil // it runs, or has ended, and the phase is about to change
			}
			w.why = c.State.Waiting.Reason
			w.usual = w.why == "ContainerCreating"
			if text := c.State.Waiting.Message; text != "" {
				w.why += ": " + text
			}
		}
	}
	return w
}

// noteWaiting sets why a job runs nothing yet, and how it has failed if that takes too long. since
// is how long ago the job was made.
func (r *run) noteWaiting(ctx context.Context, result *Result, w *waiting, since time.Duration) (changed bool) {
	if w.usual && since < usualStart {
		return false
	}
	if w.usual && w.pod != "" {
		w.why = cmp.Or(r.warning(ctx, w.pod), w.why)
	}
	before := *result
	result.Error = "its pod does not start: " + w.why
	if since >= StartTimeout {
		result.State = Failed
		result.Error = fmt.Sprintf("its pod has not started within %s: %s", StartTimeout, w.why)
	}
	return result.State != before.State || result.Error != before.Error
}

// warning returns the last warning of the cluster about a pod, or "". Only such a warning says that
// the daemon's root does not exist.
func (r *run) warning(ctx context.Context, pod string) string {
	type event struct{ Message string }
	events, err := list[event](ctx, r, "events", "--field-selector", "type=Warning,involvedObject.name="+pod)
	if err != nil || len(events) == 0 {
		return ""
	}
	return events[len(events)-1].Message
}
