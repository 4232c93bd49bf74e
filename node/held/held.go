// Package held reports to the hubs which trees this node has. So a hub keeps the objects of these
// trees even if their images are removed from the hub. From the hubs' answers, the package also
// learns which of the trees no hub has any more.
//
// It reports all trees on the disk, mounted or not: soon after a tree was added or removed, and
// every few hours. No other part of the node waits for a report. If a hub does not answer, the
// report is sent again later. An origin that accepts no reports (a mirror, an older hub) gets a
// report only every one or two days.
package held

import (
	"bytes"
	"context"
	cryptorand "crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/sleep"
	"lighter/wire"
	"lighter/wire/client"
)

// Hubs are the origins of a node.
type Hubs interface {
	// Origins returns the URLs of all origins, without credentials.
	Origins() []string
	// SendHeld sends a report to the origin at that position of Origins.
	SendHeld(ctx context.Context, origin int, held wire.Held) (wire.Unknown, error)
}

// backoff has the pauses after reports that failed: from a minute or two, to an hour or two.
var backoff = sleep.Backoff{First: 2 * time.Minute, Most: 2 * time.Hour, Jitter: 0.5}

const (
	// refusedPause is the pause after an origin has answered that it accepts no reports.
	refusedPause = 24 * time.Hour

	// idBytes is the length of a node's ID, in bytes.
	idBytes = 16
)

// Reporter reports what a node has. It is safe for concurrent use.
type Reporter struct {
	path  string        // of the file with the node's secret
	delay time.Duration // the least time between two listings of the trees; jitter may double it
	list  func() ([]chunk.ID, error)
	hubs  Hubs
	log   *slog.Logger

	mu      sync.Mutex // guards the following
	origins []*state
	problem error // why nothing can be reported
}

// state is what the reporter knows of an origin.
type state struct {
	Report
	trees    []chunk.ID // the trees in the last accepted report; valid if Reported is not zero
	unknown  map[chunk.ID]bool
	due      time.Time // when the trees are reported again even if they have not changed
	after    time.Time // no report is sent before this time
	failures int       // in a row
}

// Report is the state of the reports to one origin.
type Report struct {
	URL      string    `json:"url"`
	Reported time.Time `json:"reported,omitzero"` // when it last accepted a report; zero: never
	Trees    int       `json:"trees"`             // number of trees in that report
	Unknown  int       `json:"unknown"`           // number of trees in that report that the hub does not have
	Error    string    `json:"error,omitempty"`   // why the last report failed
	Refused  bool      `json:"refused,omitempty"` // the origin accepts no reports: a mirror, or an older hub
}

// New returns a reporter of the trees that list returns. root is the node's directory. A file in it
// has a secret, from which the node's ID is made. The reporter calls list at random intervals of
// one to two times delay, and reports the trees if they have changed.
func New(
	root string, delay time.Duration, list func() ([]chunk.ID, error), hubs Hubs, log *slog.Logger,
) *Reporter {
	r := &Reporter{path: filepath.Join(root, "holder"), delay: delay, list: list, hubs: hubs, log: log}
	for _, url := range hubs.Origins() {
		r.origins = append(r.origins, &state{Report: Report{URL: url}})
	}
	return r
}

// Run reports until ctx ends.
func (r *Reporter) Run(ctx context.Context) {
	for sleep.For(ctx, jitter(r.delay)) { // jitter, because many nodes may start at the same time
		r.round(ctx)
	}
}

// jitter returns a random duration between d and 2d.
func jitter(d time.Duration) time.Duration { return d + rand.N(d) }

// round sends the reports that are due.
func (r *Reporter) round(ctx context.Context) {
	trees, err := r.list()
	var report wire.Held
	if err == nil {
		report, err = r.report(trees)
	}
	r.mu.Lock()
	if err != nil && r.problem == nil {
		r.log.Warn("cannot report this node's trees: hubs may delete them when their images are removed", "err", err)
	}
	r.problem = err
	r.mu.Unlock()
	if err != nil {
		return
	}
	for i, s := range r.origins {
		if now := time.Now(); r.isDue(s, report.Trees, now) {
			unknown, err := r.hubs.SendHeld(ctx, i, report)
			if ctx.Err() != nil {
				return
			}
			r.reported(s, report.Trees, unknown.Trees, err, now)
		}
	}
}

// report makes a report of trees.
func (r *Reporter) report(trees []chunk.ID) (wire.Held, error) {
	secret, err := r.secret()
	if err != nil {
		return wire.Held{}, err
	}
	name, err := os.Hostname()
	if err != nil || len(name) > wire.MaxHolderName {
		name = ""
	}
	// A node on a copy of this machine's disk has the same secret. The two nodes must have
	// different IDs, or they would replace each other's reports.
	machine, _ := os.ReadFile("/etc/machine-id") // without this file, the host name distinguishes copies
	id := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s", secret, machine, name))
	slices.SortFunc(trees, func(a, b chunk.ID) int { return bytes.Compare(a[:], b[:]) })
	if len(trees) > wire.MaxHeld {
		r.log.Warn("this node has more trees than it can report: hubs may delete the other trees with their images",
			"trees", len(trees), "reported", wire.MaxHeld)
		trees = trees[:wire.MaxHeld]
	}
	return wire.Held{Holder: hex.EncodeToString(id[:idBytes]), Kind: wire.HolderNode, Name: name, Trees: trees}, nil
}

// secret returns the node's secret from its file. If there is no file, it makes one.
func (r *Reporter) secret() ([]byte, error) {
	secret, err := os.ReadFile(r.path)
	if err == nil && len(secret) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return secret, err
	}
	secret = []byte(cryptorand.Text() + "\n")
	return secret, durable.Replace(r.path, secret)
}

func (r *Reporter) isDue(s *state, trees []chunk.ID, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !now.Before(s.after) && (!now.Before(s.due) || !slices.Equal(s.trees, trees))
}

// reported stores the result of a report.
func (r *Reporter) reported(s *state, trees, unknown []chunk.ID, err error, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		s.Report = Report{URL: s.URL, Reported: now, Trees: len(trees), Unknown: len(unknown)}
		s.trees, s.unknown, s.failures = trees, map[chunk.ID]bool{}, 0
		for _, tree := range unknown {
			s.unknown[tree] = true
		}
		s.due = now.Add(wire.HeldInterval - rand.N(wire.HeldInterval/6))
		return
	}
	s.Error, s.Refused = err.Error(), false
	s.failures++
	s.after = now.Add(backoff.After(s.failures))
	if failed := (*client.Error)(nil); errors.As(err, &failed) && failed.IsRefusal() {
		s.after, s.Refused = now.Add(jitter(refusedPause)), true
	}
	r.log.Debug("cannot report this node's trees to a hub", "hub", s.URL, "err", err)
}

// Gone returns the reported trees that no hub has any more. It returns none until every origin has
// accepted a report: an origin that has accepted no report may have the trees.
func (r *Reporter) Gone() (trees []chunk.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, s := range r.origins {
		if s.Reported.IsZero() {
			return nil
		}
		if i == 0 {
			for tree := range s.unknown {
				trees = append(trees, tree)
			}
		}
		trees = slices.DeleteFunc(trees, func(tree chunk.ID) bool { return !s.unknown[tree] })
	}
	return trees
}

// Reports returns the state of the reports to each origin.
func (r *Reporter) Reports() []Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	reports := make([]Report, len(r.origins))
	for i, s := range r.origins {
		reports[i] = s.Report
		if r.problem != nil {
			reports[i].Error = r.problem.Error()
		}
	}
	return reports
}
