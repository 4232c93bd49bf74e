package many

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"lighter/format/trace"
)

// Simulate is the main function of the process that simulates nodes. It executes the plan and
// writes the outcome as JSON. The environment sets the proxy, as for a real node.
func Simulate(ctx context.Context, plan string, out io.Writer) error {
	p, err := readPlan(plan)
	if err != nil {
		return err
	}
	t, err := p.trace()
	if err != nil {
		return err
	}
	var before Counters
	if p.Counter != "" {
		if before, err = awaitCounters(ctx, p.Counter); err != nil {
			return err
		}
	}
	nodes, err := openNodes(p)
	if err != nil {
		return errors.Join(err, closeNodes(nodes))
	}
	o, err := startAll(ctx, p, nodes, t)
	if err == nil && p.Counter != "" {
		o.Squid, err = readCounters(ctx, p.Counter)
		o.Squid = o.Squid.since(before)
	}
	if err := errors.Join(err, closeNodes(nodes)); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(o)
}

// openNodes makes the plan's nodes. If it fails, it also returns the nodes that it has made.
func openNodes(p Plan) (nodes []*node, err error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	for i := range p.Nodes {
		name := fmt.Sprintf("node%d", i)
		n, err := newNode(p, name, log.With("node", i))
		if err != nil {
			return nodes, fmt.Errorf("make %s: %w", name, err)
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

func closeNodes(nodes []*node) error {
	var errs []error
	for _, n := range nodes {
		errs = append(errs, n.close())
	}
	return errors.Join(errs...)
}

// startAll starts the image on all nodes, spread evenly over p.Spread, and waits until all fetches
// have ended.
func startAll(ctx context.Context, p Plan, nodes []*node, t trace.Trace) (Outcome, error) {
	o := Outcome{Starts: make([]Start, len(nodes))}
	reads := make([][]float64, len(nodes))
	before, err := usage()
	if err != nil {
		return o, err
	}
	begin := time.Now()
	var all sync.WaitGroup
	for i, n := range nodes {
		all.Go(func() {
			pause(ctx, p.Spread*time.Duration(i)/time.Duration(len(nodes)))
			began := time.Since(begin).Seconds()
			o.Starts[i], reads[i] = n.start(ctx, t, nil)
			o.Starts[i].Began = began
		})
	}
	all.Wait()
	o.Wall = time.Since(begin).Seconds()
	after, err := usage()
	if err != nil {
		return o, err
	}
	o.User, o.System, o.Memory = after.user-before.user, after.system-before.system, after.memory
	for _, r := range reads {
		o.Reads = append(o.Reads, r...)
	}
	return o, ctx.Err()
}

// used holds the processor time of this process in seconds, and its peak memory in bytes.
type used struct {
	user, system float64
	memory       int64
}

func usage() (used, error) {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return used{}, fmt.Errorf("get the resource usage: %w", err)
	}
	seconds := func(t unix.Timeval) float64 { return time.Duration(t.Nano()).Seconds() }
	return used{seconds(r.Utime), seconds(r.Stime), r.Maxrss << 10}, nil
}
