package starts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lighter/bench"
	"lighter/test/testkit/site"
)

// reportLimit bounds the time until a node reports a start. record asks the node every pollInterval
// whether it has.
const (
	reportLimit  = 3 * time.Minute
	pollInterval = 200 * time.Millisecond
)

// traceFile is the placeholder for the file of an image's recordings in the command of a
// conversion.
const traceFile = "{trace}"

// needsRecordings reports whether any measured way (starts.go) uses recordings.
func (p plan) needsRecordings() bool {
	return p.needs(Lighter) || p.needs(LighterLocal) || p.needs(LighterBefore) ||
		slices.ContainsFunc(p.Peers, func(peer bench.Peer) bool {
			return p.needs(peer.Name) && strings.Contains(strings.Join(peer.Convert, " "), traceFile)
		})
}

// record starts each workload of an image on a wiped machine, as often as the configuration says.
// It also starts workloads that this run does not measure: so the startup packs are those of a full
// run, and results of partial runs can be merged. Then it waits until the hub has made startup
// packs from the recordings. If no way needs recordings, it does nothing.
func (r *run) record(ctx context.Context, image string) error {
	if r.recorded == nil {
		return nil
	}
	begin := time.Now()
	r.Site.SetPeer(nil)
	r.Site.UseHub(r.recorded)
	r.Site.SetNodeArgs()
	r.Site.SetNode("")
	var reported int64
	for _, w := range r.Workloads() {
		for range r.Recorded {
			if w.Image != image {
				continue
			}
			n, err := r.recordOne(ctx, w)
			if err != nil {
				return fmt.Errorf("record a start of %s: %w", w, err)
			}
			reported += n
		}
	}
	packs, err := bench.AwaitLayout(ctx, r.recorded, image, reported)
	if err != nil {
		return err
	}
	bench.Say("%-10s %d starts recorded in %s: %s", image, reported, bench.Seconds(time.Since(begin).Seconds()), packs)
	return r.exportRecordings(ctx, image)
}

// recordOne starts a workload once, and returns the number of reported traces: none if the workload
// reads almost nothing.
func (r *run) recordOne(ctx context.Context, w bench.Workload) (reported int64, err error) {
	m, ref := r.Site.Machine, site.Reference(w.Image)
	if err := r.Wipe(ctx); err != nil {
		return 0, err
	}
	if _, err := m.Pull(ctx, site.Lighter, ref); err != nil {
		return 0, err
	}
	if _, err := m.RunUntil(ctx, w.Ready, site.Lighter, ref, w.Argv...); err != nil {
		return 0, err
	}
	for end := time.Now().Add(reportLimit); ; {
		var status struct {
			Recording struct{ Reported, Skipped, Dropped int64 }
		}
		if err := m.NodeStatus(ctx, &status); err != nil {
			return 0, err
		}
		switch is := status.Recording; {
		case is.Reported > 0 || is.Skipped > 0:
			return is.Reported, nil
		case is.Dropped > 0:
			return 0, errors.New("report the trace to the hub: the node failed")
		case time.Now().After(end):
			return 0, fmt.Errorf("the node has not reported a trace after %s", reportLimit)
		}
		if err := pause(ctx); err != nil {
			return 0, err
		}
	}
}

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(pollInterval):
		return nil
	}
}

// recordingsOf returns the path of the file with an image's recordings.
func (r *run) recordingsOf(image string) string { return filepath.Join(r.Site.Dir, image+".trace") }

// exportRecordings writes the hub's recordings of an image to a file.
func (r *run) exportRecordings(ctx context.Context, image string) error {
	text, err := r.recorded.Lighter(ctx, "trace export", image+":latest")
	if err != nil {
		return err
	}
	return os.WriteFile(r.recordingsOf(image), []byte(text), 0o644)
}
