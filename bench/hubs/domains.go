package hubs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"lighter/bench"
	"lighter/sleep"
)

// manyDomains is the largest number of domains that a hub can have besides the default one. Each
// has a family of images.
const manyDomains = 64

var domainFamily = family{versions: 20, base: []int{300}, further: []int{30, 5}}

// domains compares an idle hub with many domains with an idle hub that has the same images in one
// domain.
func (r *run) domains(ctx context.Context) (err error) {
	shared, end, err := startShared()
	if err != nil {
		return err
	}
	defer end()
	for _, name := range []string{"SQLite and a directory", "PostgreSQL and S3"} {
		pair := []*large{{name: name + ", one domain"}, {name: name, domains: manyDomains}}
		for _, h := range pair {
			h.families, h.family = manyDomains, domainFamily
			if name == "PostgreSQL and S3" {
				if h.store, err = shared(); err != nil {
					return err
				}
			}
		}
		if err := r.domainsOf(ctx, name, pair[0], pair[1]); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) domainsOf(ctx context.Context, name string, one, many *large) (err error) {
	hubs := []*large{one, many}
	defer func() { err = errors.Join(err, stopAll(hubs)) }()
	for i, h := range hubs {
		h.root = filepath.Join(r.dir, fmt.Sprintf("domains-%d-%.3s", i, name))
		if err := r.fill(ctx, h); err != nil {
			return err
		}
	}
	var starts, used, memory [2][]float64
	for range r.Rounds {
		shares, err := r.idleShares(ctx, hubs)
		if err != nil {
			return err
		}
		for i, h := range hubs {
			bytes, err := h.memory()
			if err != nil {
				return err
			}
			starts[i], used[i] = append(starts[i], h.started), append(used[i], shares[i])
			memory[i] = append(memory[i], bytes)
		}
	}
	what := fmt.Sprintf("%d domains, %s", manyDomains, name)
	r.add(Result{Figure: "domains", What: "processor share of an idle hub: " + what, Value: bench.Median(used[1]),
		Unit: "ratio", All: used[1]}, idleShare)
	r.add(Result{Figure: "domains", What: "the same, one domain, " + name, Value: bench.Median(used[0]), Unit: "ratio",
		All: used[0]}, 0)
	r.add(Result{Figure: "domains", What: "memory : one domain: " + what,
		Value: bench.Median(memory[1]) / bench.Median(memory[0]), Unit: "ratio", All: memory[1], Base: memory[0]}, 0)
	r.add(Result{Figure: "domains", What: "memory: " + what, Value: bench.Median(memory[1]) / 1e6, Unit: "MB"}, 0)
	r.median("domains", "start: "+what, starts[1], 0)
	r.median("domains", "start: one domain, "+name, starts[0], 0)
	return nil
}

// stopAll stops the running hubs.
func stopAll(hubs []*large) (err error) {
	for _, h := range hubs {
		if h.process != nil {
			err = errors.Join(err, h.stop())
		}
	}
	return err
}

// idleShares restarts hubs, makes their collections and checks due, and returns the share of a
// processor that each hub then uses in idleTime.
func (r *run) idleShares(ctx context.Context, hubs []*large) (shares []float64, err error) {
	// Periodic jobs begin a minute after a hub's start, so idleTime includes them.
	for _, h := range hubs {
		if err := r.restart(ctx, h); err != nil {
			return nil, fmt.Errorf("%s: %w", h.name, err)
		}
	}
	if !sleep.For(ctx, startup) {
		return nil, ctx.Err()
	}
	shares = make([]float64, len(hubs))
	for i, h := range hubs {
		if shares[i], err = h.processor(); err != nil {
			return nil, err
		}
	}
	if !sleep.For(ctx, idleTime) {
		return nil, ctx.Err()
	}
	for i, h := range hubs {
		now, err := h.processor()
		if err != nil {
			return nil, err
		}
		shares[i] = (now - shares[i]) / idleTime.Seconds()
	}
	return shares, nil
}

// memory returns the bytes of memory that are resident for the process.
func (p *process) memory() (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return kib * 1024, err
		}
	}
	return 0, errors.New("parse /proc/PID/status: it has no VmRSS")
}
