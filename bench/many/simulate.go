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

// Simulate is the process of the simulated nodes: it does what the plan says and
// writes the outcome, as JSON. What goes through a proxy the environment says, as it
// does for a node.
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
		return err
	}
	o, err := startAll(ctx, p, nodes, t)
	if err == nil && p.Counter != "" {
		o.Squid, err = readCounters(ctx, p.Counter)
		o.Squid = o.Squid.since(before)
	}
	var errs []error
	for _, n := range nodes {
		errs = append(errs, n.close())
	}
	if err = errors.Join(append(errs, err)...); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(o)
}

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

// startAll has every node start the image, each at its time, and waits until nothing is fetched any
// more.
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

// used is what this process has used: processor time in seconds, and the most memory
// that it had, in bytes.
type used struct {
	user, system float64
	memory       int64
}

func usage() (used, error) {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return used{}, fmt.Errorf("ask for the time that was used: %w", err)
	}
	seconds := func(t unix.Timeval) float64 { return time.Duration(t.Nano()).Seconds() }
	return used{seconds(r.Utime), seconds(r.Stime), r.Maxrss << 10}, nil
}
